"""The tables that commands print."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.markup import escape
from rich.table import Table

from gossamer.graphs import GraphSummary
from gossamer.parts import Catalog, parameters_of, summary_of
from gossamer.runs.record import RunRecord
from gossamer.terminal.console import number, percent, size


def results_table(table: pd.DataFrame, title: str, seeds: int) -> Table:
    """The comparison's table: mean ± spread over the seeds; the best variant stands out."""
    shown = _table(title)
    shown.add_column("variant", no_wrap=True)
    for name in ("best", "last", "worst\nclient", "consensus", "sent per\nclient", "time"):
        shown.add_column(name, justify="right", no_wrap=True)
    leader = table["best accuracy"].idxmax() if table["best accuracy"].notna().any() else None
    for label, row in table.iterrows():
        spread = {key: row[f"{key} spread"] if seeds > 1 else None for key in ACCURACIES}
        shown.add_row(
            escape(str(label)),
            *(percent(row[key], spread[key]) for key in ACCURACIES),
            number(row["consensus"]),
            size(row["bytes per client"]),
            f"{row['seconds']:.1f} s",
            style="bold green" if label == leader else None,
        )
    return shown


ACCURACIES = ("best accuracy", "last accuracy", "worst client")


def run_table(records: Sequence[RunRecord], wide: bool) -> Table:
    """One row per run, for `show`; on a wide terminal with its method and graph."""
    shown = _table(None)
    shown.add_column("run", overflow="fold", min_width=16)
    for name in ("method", "graph") if wide else ():
        shown.add_column(name)
    for name in ("rounds", "best", "last", "worst\nclient", "consensus", "sent per\nclient", "time"):
        shown.add_column(name, justify="right", no_wrap=True)
    for record in records:
        sent = record.metrics["bytes_per_client"].sum() if len(record.metrics) else 0
        shown.add_row(
            escape(record.label),
            *(escape(part_text(record.experiment.get(key, ""))) for key in ("method", "graph") if wide),
            f"{record.rounds}/{record.experiment['rounds']}",
            percent(record.best()),
            percent(record.last("test_accuracy")),
            percent(record.last("client_accuracy_worst")),
            number(record.last("consensus")),
            size(sent),
            f"{record.seconds:.1f} s",
        )
    return shown


def _table(title: str | None) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", header_style="bold",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip


def part_text(spec: Any) -> str:
    """A part of an experiment in a few words: its name and parameters."""
    if isinstance(spec, Mapping):
        inner = " ".join(f"{k}={v}" for k, v in spec.items() if k != "name")
        return f"{spec.get('name', '')} {inner}".strip()
    return str(spec)


def catalog_list(catalog: Catalog, more: Callable[[Any], str] | None = None) -> Table:
    """What there is of one kind: the name and one line, then the parameters with their defaults."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(style="bold cyan", no_wrap=True)
    shown.add_column()
    for name, maker in catalog.items():
        words = [f"{key}={value}" for key, value in parameters_of(maker).items()]
        words = [", ".join(words)] if words else []
        words += [more(maker)] if more else []
        shown.add_row(name, escape(summary_of(maker)))
        if words:
            shown.add_row("", f"[dim]{escape(' · '.join(words))}[/]")
    return shown


def graph_table(summary: GraphSummary, message: int, model: str) -> Table:
    """A graph's numbers, with what they mean."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(justify="right", no_wrap=True)
    shown.add_column(style="dim")

    def row(name: str, value: float | None, text: str, meaning: str) -> None:
        shown.add_row(name, "–" if value is None else format(value, text), meaning)

    kind = {1: "static", None: "drawn anew at every step"}.get(summary.period, f"repeats after {summary.period} steps")
    shown.add_row("graph", summary.name, f"{summary.clients} clients, {kind}{', directed' if summary.directed else ''}")
    degrees = f"{summary.degree_min} / {summary.degree_mean:.4g} / {summary.degree_max}"
    shown.add_row("degree", degrees, "messages a client sends per step: least / mean / most")
    row("diameter", summary.diameter, "d", "hops between the clients furthest apart")
    row(
        "λ",
        summary.lambda_,
        ".6f",
        "second largest |eigenvalue|" + ("" if summary.period == 1 else ", mean over steps"),
    )
    row("spectral gap", summary.spectral_gap, ".6f", "1 − λ: larger mixes faster")
    row("p", summary.p, ".6f", "1 − λ², of a static symmetric graph")
    row("contraction", summary.contraction, ".6f", "what one step leaves of the disagreement")
    row("rounds to a tenth", summary.rounds_to_tenth, "d", "until disagreement has shrunk tenfold")
    row("exact after", summary.exact_after, "d", "steps until every client holds the exact mean")
    row("links", summary.links_per_step, ".5g", "messages per step, all clients together")
    shown.add_row("sent per round", size(summary.links_per_step * message), f"for one message of {model} per link")
    return shown
