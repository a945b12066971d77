"""`gossamer report`."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.commands.options import Baseline, DataDir, Target, parse_targets
from gossamer.errors import RunFolderError
from gossamer.studies import read_comparison
from gossamer.terminal.console import say_where


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.")],
    target: Target = [],  # noqa: B006  # typer copies it
    baseline: Baseline = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file to write.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write one HTML page of runs: verdict, tables, curves, clients, graph, how to repeat it."""
    from gossamer.pages.report import REPORT, write_report  # the modules that draw take half a second to import

    if out is not None and out.is_dir():
        raise RunFolderError(f"{out}: is a folder; --out takes the name of a file, such as {out / REPORT}")
    result = read_comparison(runs, parse_targets(target), baseline)
    place = out or (runs[0] if len(runs) == 1 else Path(".")) / REPORT
    say_where(write_report(result, place, ", ".join(path.resolve().name for path in runs), runs, data_dir))
