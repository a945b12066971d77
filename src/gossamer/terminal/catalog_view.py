"""The built-in parts: what `gossamer methods`, `graphs`, `datasets` and `models` print."""

import inspect
from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from gossamer.experiment import plain
from gossamer.methods import METHODS, costs, families, graph_needed, model_sizes, traits_of
from gossamer.pages.manual import parameter_rows
from gossamer.parts import Catalog, parameters_of, summary_of
from gossamer.terminal.console import plain_table, ruled_table


def catalog_table(catalog: Catalog) -> Table:
    """The parts of one kind: each with its name, one line, and its parameters with their defaults."""
    shown = ruled_table()
    shown.add_column(catalog.kind, style="bold cyan", no_wrap=True)
    shown.add_column("what it is", ratio=3)
    shown.add_column("parameters", style="dim", ratio=2)
    for name, maker in catalog.items():
        words = [f"{key}={value}" for key, value in parameters_of(maker).items()]
        shown.add_row(name, escape(summary_of(maker)), escape("\n".join(words)))
    return shown


def method_table() -> Table:
    """The methods by family: what each does, and what it keeps and sends, in model sizes."""
    shown = ruled_table()
    shown.add_column("method", no_wrap=True)
    shown.add_column("what it does")
    shown.add_column("keeps", justify="right", no_wrap=True)
    shown.add_column("sends", justify="right", no_wrap=True)
    for family, names in families().items():
        shown.add_row(f"[bold]{family}[/]")
        for name in names:
            cost = costs(METHODS.build(name))
            summary = escape(summary_of(METHODS[name]))
            shown.add_row(f"  [bold cyan]{name}[/]", summary, model_sizes(cost.keeps), model_sizes(cost.sends))
    shown.caption = "In model sizes: what a client keeps between rounds, and sends over each link in a round."
    shown.caption_justify = "left"
    return shown


def part_view(catalog: Catalog, name: str) -> RenderableType:
    """One part: its whole description, and its parameters with their ranges and meanings."""
    maker = catalog.find(name)
    facts = plain_table()
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for key, value in part_facts(catalog, name).items():
        if key not in ("name", "summary", "parameters"):
            facts.add_row(key, f"{model_sizes(value)} × the model" if key in ("keeps", "sends") else escape(value))
    parameters = ruled_table()
    for head in ("parameter", "values", "default", "meaning"):
        parameters.add_column(head, style="bold cyan" if head == "parameter" else None)
    for row in parameter_rows(maker):
        parameters.add_row(*(escape(cell.replace("`", "")) for cell in row))
    description = escape(inspect.getdoc(maker) or "")
    return Group(
        f"[bold cyan]{name}[/]\n{description}\n",
        *([facts] if facts.row_count else []),
        *([parameters] if parameters.row_count else []),
    )


def part_facts(catalog: Catalog, name: str) -> dict[str, Any]:
    """A part in plain values, for programs."""
    maker: Callable[..., Any] = catalog.find(name)
    facts: dict[str, Any] = {"name": name, "summary": summary_of(maker)}
    if catalog is METHODS:
        method = METHODS.build(name)
        cost, traits = costs(method), traits_of(method)
        facts |= {"family": traits.family, "graph": graph_needed(method), "keeps": cost.keeps, "sends": cost.sends}
        facts |= {"paper": traits.paper} if traits.paper else {}
    defaults = {key: None if text == "none" else text if text == "required" else plain(getattr(maker, key))
                for key, text in parameters_of(maker).items()}  # fmt: skip
    return {**facts, "parameters": defaults}
