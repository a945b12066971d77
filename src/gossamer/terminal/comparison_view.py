"""A comparison: its table, for the terminal and for a page, its title and the command to try next."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from gossamer.experiment import Experiment
from gossamer.studies import COMPARISON, DEFAULT_SWEEP, Study, part_label, variants
from gossamer.system.words import size
from gossamer.terminal.console import number, percent, ruled_table

if TYPE_CHECKING:
    import pandas as pd

RESULTS = ("best", "last", "worst\nclient", "consensus", "sent per\nclient", "time")


def results_table(table: "pd.DataFrame", title: str, swept: str, seeds: int, wide: bool) -> Table:
    """Mean ± spread over the seeds, one row per variant; the best one stands out.

    A narrow terminal has no room for every column with its spread: the least important ones are left out.
    """
    left_out = () if wide or seeds == 1 else ("last", "time")
    shown = ruled_table(title)
    shown.add_column(escape(swept.replace(", ", ",\n")), overflow="fold", min_width=12)  # folded before any number is
    for name in RESULTS:
        if name not in left_out:
            shown.add_column(name, justify="right", no_wrap=True)
    leader = table["best accuracy"].idxmax() if table["best accuracy"].notna().any() else None
    for label, cells in result_cells(table, seeds).items():
        kept = [cell for name, cell in zip(RESULTS, cells, strict=True) if name not in left_out]
        shown.add_row(escape(label), *kept, style="bold green" if label == leader else None)
    return shown


def results_markdown(table: "pd.DataFrame", swept: str, seeds: int) -> str:
    """The same table in Markdown."""
    titles = [swept, *(name.replace("\n", " ") for name in RESULTS)]
    lines = [f"| {' | '.join(titles)} |", "|---" + "|---:" * len(RESULTS) + "|"]
    lines += [f"| {' | '.join([label, *cells])} |" for label, cells in result_cells(table, seeds).items()]
    return "\n".join(lines) + "\n"


def result_cells(table: "pd.DataFrame", seeds: int) -> dict[str, list[str]]:
    """The cells of each variant's row."""
    rows = {}
    for label, row in table.iterrows():
        accuracies = ("best accuracy", "last accuracy", "worst client")
        cells = [percent(row[key], row[f"{key} spread"] if seeds > 1 else None) for key in accuracies]
        cells += [number(row["consensus"]), size(row["bytes per client"]), f"{row['seconds']:.1f} s"]
        rows[str(label)] = cells
    return rows


def comparison_title(study: Study) -> str:
    """What all variants have in common, in one line."""

    def facts(experiment: Experiment) -> list[str]:
        parts = [part_label(experiment, key) for key in ("dataset", "partition", "graph", "model")]
        return [f"{experiment.clients} clients", f"{experiment.rounds} rounds", *parts]

    columns = zip(*(facts(variant.experiment) for variant in variants(study.experiment, study.sweep)), strict=True)
    seeds = f", {study.seeds} seeds: mean ± standard deviation" if study.seeds > 1 else ""
    return " · ".join(column[0] for column in columns if len(set(column)) == 1) + seeds


def next_command(study: Study, folder: Path) -> str:
    """The default comparison on the full graph; any other one with more seeds; after several seeds, its runs."""
    again = f"gossamer compare {shlex.quote(str(folder / COMPARISON))}"
    if study.experiment.graph is None and study.sweep == DEFAULT_SWEEP:
        return f"{again} --set graph=full"
    return f"gossamer show {shlex.quote(str(folder))}" if study.seeds > 1 else f"{again} --seeds 3"
