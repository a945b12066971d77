"""Tables of papers beside ours, in the terminal."""

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from gossamer.pages.reproduction import TO_TARGET, Side, overview, side_by_side
from gossamer.studies import StudyRun, VariantResult
from gossamer.studies.reproduction import PaperStudy
from gossamer.system.words import counted
from gossamer.terminal import console

STYLES = {"holds": "green", "does not hold": "red", "cannot be told": "yellow"}


def say_papers() -> None:
    """All tables and figures that can be reproduced."""
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "of", "cells"):
        table.add_column(heading, justify="right" if heading == "cells" else "left")
    for name, shows, cells in overview():
        table.add_row(name, escape(shows), str(cells))
    console.out.print(table)


def say_reproduction(paper: PaperStudy, runs: Mapping[str, VariantResult], left: Sequence[StudyRun]) -> None:
    """The paper's table and ours side by side, the conclusions, and what is left to run."""
    side = side_by_side(paper, runs)
    counts = [n for n, heading in enumerate(side.headings) if heading.endswith(TO_TARGET)]
    console.out.print(f"[bold]{escape(f'{paper.source}: {paper.shows}')}[/bold]")
    console.out.print(_table(side, [n for n in range(len(side.headings)) if n not in counts]))
    if counts:  # a table of their own: side by side they would not fit into 80 columns
        console.out.print("\n[bold]Rounds: paper / ours[/bold]")
        console.out.print(_table(side, [0, *counts]))
    for conclusion in paper.conclusions:
        verdict, why = paper.judge(conclusion, runs)
        style = STYLES[verdict]
        console.out.print(f"[{style}]{verdict}[/{style}]: {escape(conclusion.says)} ({escape(why)})", soft_wrap=True)
    if left:
        some = ", ".join(f"{run.label} (seed {run.experiment.seed})" for run in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        console.out.print(
            f"{counted(len(left), 'run')} left: {escape(some)}{more}. The same command goes on with them."
        )


def _table(side: Side, columns: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number in columns:
        widest = max((len(row[number]) for row in side.rows), default=0)  # numbers are never broken
        heading = side.headings[number].removesuffix(TO_TARGET)
        table.add_column(
            heading, justify="right" if number else "left", min_width=widest if number else None, overflow="fold"
        )
    for row in side.rows:
        table.add_row(*(escape(row[number]) for number in columns))
    return table
