"""What `gossamer graph` prints."""

from rich.table import Table

from gossamer.graphs import GraphSummary
from gossamer.system.words import size
from gossamer.terminal.console import plain_table


def graph_table(summary: GraphSummary, message: int, model: str) -> Table:
    """A graph's numbers, with their meaning."""
    shown = plain_table()
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
    over = "" if summary.period == 1 else ", mean over steps"
    row("λ", summary.lambda_, ".6f", f"second largest |eigenvalue|{over}")
    row("spectral gap", summary.spectral_gap, ".6f", "1 − λ: larger mixes faster")
    row("p", summary.p, ".6f", "1 − λ², of a static symmetric graph")
    row("contraction", summary.contraction, ".6f", "share of the disagreement that one step leaves")
    row("rounds to a tenth", summary.rounds_to_tenth, "d", "until disagreement has shrunk tenfold")
    row("exact after", summary.exact_after, "d", "steps until every client holds the exact mean")
    row("links", summary.links_per_step, ".5g", "messages per step, all clients together")
    shown.add_row("sent per round", size(summary.links_per_step * message), f"for one message of {model} per link")
    return shown
