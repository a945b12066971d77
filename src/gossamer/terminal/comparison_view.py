"""A comparison: its table, for the terminal and for a page, its title and the command to try next."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from gossamer.experiment import Experiment
from gossamer.measure import METRICS, Score
from gossamer.studies import COMPARISON, DEFAULT_SWEEP, Comparison, Study, part_label
from gossamer.system.words import size
from gossamer.terminal.console import number, ruled_table, score_text, with_caption
from gossamer.terminal.run_view import WAY_UP, has_server

if TYPE_CHECKING:
    import pandas as pd


#: Heads of columns that break elsewhere than at every space.
HEADS = {"sent by a client": "sent by\na client"}


def results_table(comparison: Comparison, title: str, swept: str, wide: bool) -> Table:
    """Mean ± spread over the seeds, one row per variant; the best one stands out.

    A narrow terminal has no room for every column with its spread: the table says which ones it leaves out.
    """
    table, score = comparison.table, comparison.score
    columns = result_columns(score)
    seeds = max(map(len, comparison.runs.values()))
    left_out = [] if wide or seeds == 1 else [name for name in columns if name.split()[0] in ("last", "time")]
    shown = ruled_table(title)
    shown.add_column(escape(swept.replace(", ", ",\n")), overflow="fold", min_width=12)  # folded before any number is
    for name in columns:
        if name not in left_out:
            shown.add_column(HEADS.get(name, name.replace(" ", "\n")), justify="right", no_wrap=True)
    best = table[f"best {score.words}"].dropna()
    leader = None if best.empty else best.idxmax() if METRICS[score.key].direction == "up" else best.idxmin()
    for label, cells in result_cells(table, score).items():
        kept = [cell for name, cell in zip(columns, cells, strict=True) if name not in left_out]
        shown.add_row(escape(label), *kept, style="bold green" if label == leader else None)
    captions = [f"Left out on a narrow terminal: {', '.join(left_out)}; they are in table.csv."] if left_out else []
    captions += [WAY_UP] if has_server(comparison.records) else []
    return with_caption(shown, captions)


def results_markdown(comparison: Comparison, swept: str) -> str:
    """The same table in Markdown."""
    titles = [swept, *result_columns(comparison.score)]
    lines = [f"| {' | '.join(titles)} |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    cells = result_cells(comparison.table, comparison.score)
    lines += [f"| {' | '.join([label, *row])} |" for label, row in cells.items()]
    return "\n".join(lines) + "\n"


def result_columns(score: Score) -> list[str]:
    """The heads of the columns. An accuracy is known by its percent sign; a loss is named."""
    what = "" if score.key == "test_accuracy" else " loss"
    worst = ["worst client"] if score.worst else []
    return [f"best{what}", f"last{what}", *worst, "consensus", "sent by a client", "time"]


def result_cells(table: "pd.DataFrame", score: Score) -> dict[str, list[str]]:
    """The cells of each variant's row."""
    rows = {}
    for label, row in table.iterrows():
        keys = [f"{which} {score.words}" for which in ("best", "last", *(["worst client"] if score.worst else []))]
        cells = [score_text(score.key, row[key], row.get(f"{key} spread")) for key in keys]
        sent = size(row["bytes sent by a client in all rounds, up"])
        rows[str(label)] = [*cells, number(row["consensus"]), sent, f"{row['seconds']:.1f} s"]
    return rows


def comparison_title(study: Study, partitioned: bool) -> str:
    """What all variants have in common, in one line; a partition only if it split the data."""

    def facts(experiment: Experiment) -> list[str]:
        keys = ("dataset", "partition", "graph", "model") if partitioned else ("dataset", "graph", "model")
        parts = [part_label(experiment, key) for key in keys]
        return [f"{experiment.clients} clients", f"{experiment.rounds} rounds", *parts]

    columns = zip(*(facts(cell.of(study.experiment)) for cell in study.cells), strict=True)
    count = study.seeds if isinstance(study.seeds, int) else len(study.seeds)
    seeds = f", {count} seeds: mean ± standard deviation" if count > 1 else ""
    return " · ".join(column[0] for column in columns if len(set(column)) == 1) + seeds


def next_command(study: Study, folder: Path) -> str:
    """The default comparison on the full graph; any other one with more seeds; after several seeds, its runs."""
    again = f"gossamer compare {shlex.quote(str(folder / COMPARISON))}"
    if study.experiment.graph is None and study.sweep == DEFAULT_SWEEP:
        return f"{again} --set graph=full"
    return f"gossamer show {shlex.quote(str(folder))}" if study.seeds != 1 else f"{again} --seeds 3"
