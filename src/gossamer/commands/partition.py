"""`gossamer partition`."""

import json

from rich.markup import escape

from gossamer.commands.options import DataDir, File, Json, Picture, Settings, overrides
from gossamer.experiment import load_experiment, prepare
from gossamer.terminal import console
from gossamer.terminal.partition_view import partition_table


def partition(
    file: File = None,
    settings: Settings = [],  # noqa: B006  # typer copies it
    out: Picture = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print the samples of each client: sizes and labels, as a table and a picture."""
    prepared = prepare(load_experiment(file, overrides(settings)), data_dir)
    summary = prepared.partition
    for note in prepared.notes:
        console.note(f"[yellow]note:[/] {escape(note)}")
    if as_json:
        print(json.dumps(summary.to_dict()))
    else:
        console.out.print(partition_table(summary))
    if out:
        from gossamer.pages.figures import plot_partition

        plot_partition(summary).save(out)
        if not as_json:
            console.say_where(out)
