"""`gossamer methods`, `graphs`, `datasets` and `models`: the built-in parts."""

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from gossamer.commands.options import Json
from gossamer.data import DATASETS, PARTITIONS
from gossamer.errors import ExperimentError, did_you_mean
from gossamer.graphs import GRAPHS
from gossamer.methods import METHODS
from gossamer.models import LOSSES, MODELS
from gossamer.parts import Catalog
from gossamer.terminal import console
from gossamer.terminal.catalog_view import catalog_table, method_table, part_facts, part_view

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Describe this one, with its parameters.")]


def methods(name: Name = None, as_json: Json = False) -> None:
    """List the methods, or describe one."""
    say_parts({"methods": METHODS}, name, as_json)


def graphs(name: Name = None, as_json: Json = False) -> None:
    """List the graphs, or describe one."""
    say_parts({"graphs": GRAPHS}, name, as_json)


def datasets(name: Name = None, as_json: Json = False) -> None:
    """List the data sets and the partitions that split them among clients, or describe one."""
    say_parts({"datasets": DATASETS, "partitions": PARTITIONS}, name, as_json)


def models(name: Name = None, as_json: Json = False) -> None:
    """List the models and the losses, or describe one."""
    say_parts({"models": MODELS, "losses": LOSSES}, name, as_json)


def say_parts(catalogs: Mapping[str, Catalog], name: str | None, as_json: bool) -> None:
    """Print all parts of some catalogs, or one of them, as a table or as JSON."""
    if name is not None:
        catalog = holder(catalogs, name)
        if as_json:
            print(json.dumps(part_facts(catalog, name), indent=2))
        else:
            console.out.print(part_view(catalog, name))
        return
    if as_json:
        print(json.dumps({key: [part_facts(each, one) for one in each] for key, each in catalogs.items()}, indent=2))
        return
    command = next(iter(catalogs))
    for catalog in catalogs.values():
        console.out.print(method_table() if catalog is METHODS else catalog_table(catalog))
    console.say(f"[dim]gossamer {command} NAME describes one of them; --json is for programs.[/]")


def holder(catalogs: Mapping[str, Catalog], name: str) -> Catalog:
    """The catalog that has a part of this name; of a user's own part, the first one."""
    known = [part for catalog in catalogs.values() for part in catalog]
    if name not in known and ":" not in name:
        kinds = " or ".join(catalog.kind for catalog in catalogs.values())
        raise ExperimentError(f"unknown {kinds} '{name}': {did_you_mean(name, known)}")
    return next((catalog for catalog in catalogs.values() if name in catalog), next(iter(catalogs.values())))
