"""The tables that commands print."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from gossamer.graphs import GraphSummary
from gossamer.parts import Catalog, parameters_of, summary_of
from gossamer.runs.record import RunRecord
from gossamer.terminal.console import percent, size


def results_table(table: pd.DataFrame, title: str, seeds: int) -> Table:
    """The comparison's table: mean ± spread over the seeds."""
    shown = Table(title=title, title_justify="left", header_style="bold", title_style="bold")
    shown.add_column("variant")
    columns = ("best", "last", "worst client", "gap", "consensus", "sent per client", "time")
    for name in columns:
        shown.add_column(name, justify="right")
    leader = table["best accuracy"].idxmax() if table["best accuracy"].notna().any() else None
    for label, row in table.iterrows():

        def number(key: str, text: str, row: pd.Series = row) -> str:
            value, spread = row[key], row[f"{key} spread"]
            if value != value:
                return "–"
            return format(value, text) + (f" ± {format(spread, '.1g')}" if seeds > 1 else "")

        shown.add_row(
            str(label),
            percent(row["best accuracy"], row["best accuracy spread"]),
            percent(row["last accuracy"], row["last accuracy spread"]),
            percent(row["worst client"], row["worst client spread"]),
            percent(row["gap"], row["gap spread"]),
            number("consensus", ".3g"),
            size(row["bytes per client"]),
            f"{row['seconds']:.1f} s",
            style="green" if label == leader else None,
        )
    return shown


def run_table(records: Sequence[RunRecord]) -> Table:
    """One row per run, for `show`."""
    shown = Table(header_style="bold")
    shown.add_column("run")
    names = ("method", "graph", "rounds", "best", "last", "worst client", "consensus", "sent per client", "time")
    for name in names:
        shown.add_column(name, justify="left" if name in ("method", "graph") else "right")
    for record in records:
        sent = record.metrics["bytes_per_client"].sum() if len(record.metrics) else 0
        shown.add_row(
            record.label,
            part_text(record.experiment.get("method", "")),
            part_text(record.experiment.get("graph", "default")),
            f"{record.rounds}/{record.experiment['rounds']}",
            percent(record.best()),
            percent(record.last("test_accuracy")),
            percent(record.last("client_accuracy_worst")),
            f"{record.last('consensus'):.3g}",
            size(sent),
            f"{record.seconds:.1f} s",
        )
    return shown


def part_text(spec: Any) -> str:
    """A part of an experiment in a few words: its name and parameters."""
    if isinstance(spec, Mapping):
        inner = " ".join(f"{k}={v}" for k, v in spec.items() if k != "name")
        return f"{spec.get('name', '')} {inner}".strip()
    return str(spec)


def catalog_table(catalog: Catalog, extra: Mapping[str, Iterable[str]] | None = None) -> Table:
    """What there is of one kind, one line each, with parameters and their defaults."""
    shown = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("name", style="bold cyan", no_wrap=True)
    shown.add_column("what it is")
    shown.add_column("parameters (defaults)")
    for title in extra or {}:
        shown.add_column(title)
    more = [list(column) for column in (extra or {}).values()]
    for row, (name, maker) in enumerate(catalog.items()):
        parameters = ", ".join(f"{key}={value}" for key, value in parameters_of(maker).items())
        shown.add_row(name, summary_of(maker), parameters or "[dim]none[/]", *(column[row] for column in more))
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
