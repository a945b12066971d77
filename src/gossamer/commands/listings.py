"""`gossamer methods`, `graphs`, `datasets` and `models`: the built-in parts."""

from gossamer.data import DATASETS, PARTITIONS
from gossamer.graphs import GRAPHS
from gossamer.models import LOSSES, MODELS
from gossamer.terminal import console
from gossamer.terminal.catalog_view import catalog_table, method_table


def methods() -> None:
    """List the methods."""
    console.out.print(method_table())


def graphs() -> None:
    """List the graphs."""
    console.out.print(catalog_table(GRAPHS))


def datasets() -> None:
    """List the data sets and the partitions that split them among clients."""
    console.out.print(catalog_table(DATASETS))
    console.out.print("\n[bold]Partitions[/]")
    console.out.print(catalog_table(PARTITIONS))


def models() -> None:
    """List the models and the losses."""
    console.out.print(catalog_table(MODELS))
    console.out.print("\n[bold]Losses[/]")
    console.out.print(catalog_table(LOSSES))
