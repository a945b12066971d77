"""Tables of papers beside ours, in the terminal."""

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from gossamer.pages.reproduction import TO_TARGET, Side, overview, side_by_side
from gossamer.pages.tuned import standings
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
    console.out.print(f"[bold]{escape(f'{paper.source}: {paper.shows}')}[/bold]")
    # Rounds have tables of their own: side by side they would not fit into 80 columns.
    apart = {n: heading for n, heading in enumerate(side.headings) if " to " in heading or heading.startswith("to ")}
    apart = {n: heading for n, heading in apart.items() if heading != "to round"}
    if side.rows:
        console.out.print(_table(side, [n for n in range(len(side.headings)) if n not in apart]))
        if paper.tuning is None:
            if apart:
                console.out.print("\n[bold]Rounds: paper / ours[/bold]")
                console.out.print(_table(side, [0, *apart], drop=TO_TARGET))
        else:
            for target in paper.targets:
                console.out.print(f"\n[bold]To {target} %, of one client[/bold]")
                columns = [n for n, heading in apart.items() if heading.endswith(f" to {target} %")]
                console.out.print(_table(side, [0, *columns], drop=f" to {target} %"))
            for line in standings(paper, runs):
                console.out.print(f"\n{escape(line)}")
    if side.missing:
        some = "; ".join(side.missing[:3]) + (f"; and {len(side.missing) - 3} more" if len(side.missing) > 3 else "")
        console.out.print(f"\nNot run: {escape(some)}.")
    if paper.conclusions:
        console.out.print("\n[bold]What the paper says[/bold]" if paper.source != "ours" else "\n[bold]Asked[/bold]")
        console.out.print(_conclusions(paper, runs))
    if left:
        some = "; ".join(f"{run.label} (seed {run.experiment.seed})" for run in left[:3])
        more = f"; and {len(left) - 3} more" if len(left) > 3 else ""
        console.out.print(
            f"\n{counted(len(left), 'run')} left: {escape(some)}{more}. The same command goes on with them."
        )


def _conclusions(paper: PaperStudy, runs: Mapping[str, VariantResult]) -> Table:
    """Every conclusion with its verdict before it, and the reason below it."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for conclusion in paper.conclusions:
        verdict, why = paper.judge(conclusion, runs)
        reason = f"[dim]{escape(why)}[/dim]"
        table.add_row(f"[{STYLES[verdict]}]{verdict}[/]", f"{escape(conclusion.says)}\n{reason}")
    return table


def _table(side: Side, columns: Sequence[int], drop: str = "") -> Table:
    """Some columns of the table, whose headings lose an ending that the title says."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number in columns:
        widest = max((len(row[number]) for row in side.rows), default=0)  # numbers are never broken
        heading = side.headings[number].removesuffix(drop)
        table.add_column(
            heading, justify="right" if number else "left", min_width=widest if number else None, overflow="fold"
        )
    for row in side.rows:
        table.add_row(*(escape(row[number]) for number in columns))
    return table
