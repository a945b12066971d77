"""A comparison: its tables, its title and the command to try next."""

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gossamer.experiment import Experiment
from gossamer.pages.tables import Column, Sheet, head_lines, seeds_words, sheets
from gossamer.studies import COMPARISON, DEFAULT_SWEEP, Comparison, Study, part_label
from gossamer.system.words import counted
from gossamer.terminal import console

#: Characters of a label that are shown in one line, if there are several columns of labels; longer ones are folded.
SHORT_LABEL = 12


def say_tables(comparison: Comparison, title: str, elsewhere: str, more: Sequence[Column] = ()) -> None:
    """Print the tables of a comparison.

    A narrow terminal has no room for every column: each table says which ones it leaves out, and `elsewhere` where they
    are. `more` are columns of the first table, between its labels and its numbers, that are left out first.
    """
    first, *others = sheets(comparison, title, seconds=True)
    labels = sum(column.is_text for column in first.columns)
    columns = [*first.columns[:labels], *more, *first.columns[labels:]]
    dispensable = (*(column.head for column in more if column.is_text), *first.dispensable)
    console.out.print(
        sheet_table(first._replace(columns=columns, dispensable=dispensable), console.out.width, elsewhere)
    )
    for sheet in others:
        console.out.print("", sheet_table(sheet, console.out.width, elsewhere))


def sheet_table(sheet: Sheet, width: int, elsewhere: str) -> Table:
    """A sheet as a table for a terminal of some width; the row that leads in the first column of numbers stands out."""
    columns, left_out = list(sheet.columns), []
    judged = next((column for column in columns if any(cell.best for cell in column.cells)), None)
    # Where even these are not enough, the other numbers go, from the right: labels would shrink to nothing.
    others = [column.head for column in reversed(columns) if not column.is_text and column is not judged]
    for head in (*sheet.dispensable, *(others if judged else others[:-1])):
        if needed_width(columns) > width and any(column.head == head for column in columns):
            columns = [column for column in columns if column.head != head]
            left_out.append(head)
    shown = console.ruled_table(sheet.title or None)
    for column in columns:
        if column.is_text:
            shown.add_column(escape("\n".join(label_head(column))), overflow="fold", min_width=label_width(column))
        else:
            shown.add_column("\n".join(head_lines(column)), justify="right", no_wrap=True)
    for place, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        leads = judged is not None and judged.cells[place].best
        shown.add_row(*(escape(cell.text) for cell in row), style="bold green" if leads else None)
    said = [f"Left out on a narrow terminal: {', '.join(left_out)}; {elsewhere}."] if left_out else []
    return console.with_caption(shown, [*said, *sheet.notes])


def needed_width(columns: Sequence[Column]) -> int:
    """Characters of a table whose labels may be folded and whose numbers may not."""
    widths = [
        label_width(column) if column.is_text else max(map(len, [*head_lines(column), *column.texts]))
        for column in columns
    ]
    return 2 + sum(widths) + 2 * (len(widths) - 1)


def label_width(column: Column) -> int:
    """Characters that a column of labels has at least."""
    return max(*map(len, label_head(column)), min(SHORT_LABEL, max(map(len, column.texts))))


def label_head(column: Column) -> list[str]:
    """The head of a column of labels; a long one is broken at its spaces, and a dotted key at its dots."""
    if len(column.head) <= SHORT_LABEL:
        return [column.head]
    return [
        line
        for part in column.head.replace(".", ".\n").split("\n")
        for line in textwrap.wrap(part, SHORT_LABEL, break_long_words=False)
    ]


def comparison_title(study: Study, comparison: Comparison) -> str:
    """What all variants have in common, in one line; a partition only if it split the data."""

    def facts(experiment: Experiment) -> list[str]:
        keys = ("dataset", "partition", "graph", "model") if comparison.partitioned else ("dataset", "graph", "model")
        parts = [part_label(experiment, key) for key in keys]
        return [counted(experiment.clients, "client"), counted(experiment.rounds, "round"), *parts]

    columns = zip(*(facts(cell.of(study.experiment)) for cell in study.cells), strict=True)
    common = " · ".join(column[0] for column in columns if len(set(column)) == 1)
    return ", ".join(filter(None, [common, seeds_words(comparison)]))


def say_left(comparison: Comparison, budget: float | None) -> None:
    """Print which runs the budget left no time for, and how to go on."""
    runs, total = comparison.left, comparison.left[0].total
    console.say(f"the budget of {budget:g} minutes is spent; {len(runs)} of {counted(total, 'run')} are left:")
    for run in runs:
        console.say(f"  {escape(str(run))}")
    console.say_next(f"gossamer resume {shlex.quote(str(comparison.folder))} --budget {budget:g}")


def next_command(study: Study, folder: Path) -> str:
    """The default comparison on the full graph; any other one with more seeds; after several seeds, its runs."""
    again = f"gossamer compare {shlex.quote(str(folder / COMPARISON))}"
    if study.experiment.graph is None and study.sweep == DEFAULT_SWEEP:
        return f"{again} --set graph=full"
    return f"gossamer show {shlex.quote(str(folder))}" if study.seeds != 1 else f"{again} --seeds 3"
