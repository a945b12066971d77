"""`gossamer show`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from gossamer.commands.options import Out
from gossamer.runs.files import make_folder
from gossamer.runs.record import RunRecord, read_runs
from gossamer.terminal import console
from gossamer.terminal.run_view import run_table, say_curves, say_early_ends


def show(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.")],
    out: Out = None,
) -> None:
    """Print runs side by side and draw their curves (PNG and HTML)."""
    records = read_runs(runs)
    console.out.print(run_table(records, wide=console.out.width >= 120))
    say_early_ends(records)
    folder = out or (runs[0] if len(runs) == 1 else Path("."))
    make_folder(folder)
    # The runs of one variant differ in their seed alone, and are one curve.
    variants: dict[str, list[RunRecord]] = {}
    for record in records:
        variants.setdefault(re.sub(r"-seed\d+$", "", record.label), []).append(record)
    say_curves(variants, folder, ", ".join(path.name for path in runs))
