"""The tables that commands print."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from gossamer.graphs import GraphSummary
from gossamer.methods import METHODS, costs, families, graph_needed, model_sizes
from gossamer.parts import Catalog, parameters_of, summary_of
from gossamer.runs.record import RunRecord
from gossamer.system.words import size
from gossamer.terminal.console import number, percent

if TYPE_CHECKING:
    import pandas as pd

RESULTS = ("best", "last", "worst\nclient", "consensus", "sent per\nclient", "time")


def results_table(table: "pd.DataFrame", title: str, swept: str, seeds: int, wide: bool) -> Table:
    """The comparison's table: mean ± spread over the seeds; the best variant stands out.

    A narrow terminal has no room for every column with its spread: what the others tell nearly as well is left out.
    """
    left_out = () if wide or seeds == 1 else ("last", "time")
    shown = _table(title)
    shown.add_column(escape(swept.replace(", ", ",\n")), overflow="fold", min_width=12)  # it gives way, no number does
    for name in RESULTS:
        if name not in left_out:
            shown.add_column(name, justify="right", no_wrap=True)
    leader = table["best accuracy"].idxmax() if table["best accuracy"].notna().any() else None
    for label, cells in result_cells(table, seeds).items():
        kept = [cell for name, cell in zip(RESULTS, cells, strict=True) if name not in left_out]
        shown.add_row(escape(label), *kept, style="bold green" if label == leader else None)
    return shown


def results_markdown(table: "pd.DataFrame", swept: str, seeds: int) -> str:
    """The same table for a page."""
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


def catalog_list(catalog: Catalog) -> Table:
    """What there is of one kind: the name and one line, then the parameters with their defaults."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(style="bold cyan", no_wrap=True)
    shown.add_column()
    for name, maker in catalog.items():
        words = [f"{key}={value}" for key, value in parameters_of(maker).items()]
        shown.add_row(name, escape(summary_of(maker)))
        if words:
            shown.add_row("", f"[dim]{escape(', '.join(words))}[/]")
    return shown


def method_list() -> Table:
    """The methods by family: what each does, needs and costs (in model sizes), its parameters, its source."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(no_wrap=True)
    shown.add_column()
    for family, names in families().items():
        shown.add_row(f"[bold]{family}[/]", "")
        for name in names:
            maker, method = METHODS[name], METHODS.build(name)
            cost = costs(method)
            facts = f"keeps {model_sizes(cost.keeps)}, sends {model_sizes(cost.sends)} · graph: {graph_needed(method)}"
            parameters = ", ".join(f"{key}={value}" for key, value in parameters_of(maker).items())
            words = [word for word in (facts, parameters, method.paper) if word]
            shown.add_row(f"  [bold cyan]{name}[/]", escape(summary_of(maker)))
            shown.add_row("", f"[dim]{escape(' · '.join(words))}[/]")
    shown.add_row("", "\n[dim]Costs are in model sizes: kept by a client, and sent over each link in a round.[/]")
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
