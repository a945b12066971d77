"""`gossamer show`."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.commands.options import Baseline, Out, Target, parse_targets
from gossamer.pages.tables import seeds_words, write_tables
from gossamer.runs.files import make_folder
from gossamer.studies import read_comparison
from gossamer.terminal.comparison_view import say_tables
from gossamer.terminal.run_view import run_columns, say_figures, say_remarks


def show(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.")],
    target: Target = [],  # noqa: B006  # typer copies it
    baseline: Baseline = None,
    out: Out = None,
) -> None:
    """Print runs side by side, those that differ in their seed alone as one, and draw their curves.

    With --out, the tables are written there too, in CSV, Markdown and LaTeX.
    """
    result = read_comparison(runs, parse_targets(target), baseline)
    names, spread = ", ".join(path.name for path in runs), seeds_words(result)
    say_tables(result, spread, "a wider terminal shows them", run_columns(result))
    say_remarks(result)
    folder = out or (runs[0] if len(runs) == 1 else Path("."))
    make_folder(folder)
    tables = write_tables(result, folder, ", ".join(filter(None, [names, spread]))) if out else ()
    say_figures(result, folder, names, *tables)
