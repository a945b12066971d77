"""The built-in parts: what `gossamer methods`, `graphs`, `datasets` and `models` print."""

from rich.markup import escape
from rich.table import Table

from gossamer.methods import METHODS, costs, families, graph_needed, model_sizes, traits_of
from gossamer.parts import Catalog, parameters_of, summary_of
from gossamer.terminal.console import plain_table


def catalog_table(catalog: Catalog) -> Table:
    """The parts of one kind: each with its name and one line, then its parameters with their defaults."""
    shown = plain_table()
    shown.add_column(style="bold cyan", no_wrap=True)
    shown.add_column()
    for name, maker in catalog.items():
        words = [f"{key}={value}" for key, value in parameters_of(maker).items()]
        shown.add_row(name, escape(summary_of(maker)))
        if words:
            shown.add_row("", f"[dim]{escape(', '.join(words))}[/]")
    return shown


def method_table() -> Table:
    """The methods by family: what each does, needs and costs (in model sizes), its parameters, its source."""
    shown = plain_table()
    shown.add_column(no_wrap=True)
    shown.add_column()
    for family, names in families().items():
        shown.add_row(f"[bold]{family}[/]", "")
        for name in names:
            maker, method = METHODS[name], METHODS.build(name)
            cost = costs(method)
            facts = f"keeps {model_sizes(cost.keeps)}, sends {model_sizes(cost.sends)} · graph: {graph_needed(method)}"
            parameters = ", ".join(f"{key}={value}" for key, value in parameters_of(maker).items())
            words = [word for word in (facts, parameters, traits_of(method).paper) if word]
            shown.add_row(f"  [bold cyan]{name}[/]", escape(summary_of(maker)))
            shown.add_row("", f"[dim]{escape(' · '.join(words))}[/]")
    shown.add_row("", "\n[dim]Costs are in model sizes: kept by a client, and sent over each link in a round.[/]")
    return shown
