"""The listings of built-in parts, and the help of every command."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from gossamer.commands.app import app
from gossamer.data import DATASETS, PARTITIONS
from gossamer.graphs import GRAPHS
from gossamer.methods import METHODS
from gossamer.models import LOSSES, MODELS
from gossamer.parts import Catalog

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("command", "catalogs"),
    [
        ("methods", [METHODS]),
        ("graphs", [GRAPHS]),
        ("datasets", [DATASETS, PARTITIONS]),
        ("models", [MODELS, LOSSES]),
    ],
)
def test_listings(gossamer: Command, command: str, catalogs: list[Catalog]) -> None:
    answer = gossamer(command)
    assert answer.code == 0
    words = answer.out.split()
    blocks = answer.out
    for catalog in catalogs:
        for name, maker in catalog.items():
            assert name in words
            for field in fields(maker):  # type: ignore[arg-type]
                assert not field.repr or f"{field.name}=" in blocks, f"{name}: {field.name}"


def test_every_command_has_help(gossamer: Command) -> None:
    answer = gossamer("--help")
    assert answer.code == 0
    names = [command.callback.__name__ for command in app.registered_commands if command.callback] + ["network"]
    assert {"run", "resume", "compare", "show", "graph", "partition", "methods", "datasets", "models"} <= set(names)
    for name in names:
        assert name in answer.out
        assert gossamer(name, "-h").code == 0
