"""The listings of built-in parts, and the help of every command."""

import json
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import version
from typing import Any

import pytest

from gossamer.commands.app import app
from gossamer.data import DATASETS, PARTITIONS
from gossamer.experiment import Experiment
from gossamer.graphs import GRAPHS
from gossamer.methods import METHODS
from gossamer.models import LOSSES, MODELS
from gossamer.parts import Catalog, summary_of
from gossamer.terminal import console

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
    for catalog in catalogs:
        for name, maker in catalog.items():
            assert name in words
            one = gossamer(command, name)
            assert one.code == 0
            assert summary_of(maker) in one.out
            for field in fields(maker):  # type: ignore[arg-type]
                assert not field.repr or f" {field.name} " in one.out, f"{name}: {field.name}"


@pytest.mark.parametrize("command", ["methods", "graphs", "datasets", "models"])
def test_a_listing_fits_a_narrow_terminal(gossamer: Command, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(console.out, "width", 80)
    answer = gossamer(command)
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "…" not in answer.out.replace("1, 2, 4, 8, …", "").replace("8, … places", "")


def test_listings_for_programs(gossamer: Command) -> None:
    listed = json.loads(gossamer("methods", "--json").out)["methods"]
    assert [each["name"] for each in listed] == list(METHODS)
    one = json.loads(gossamer("methods", "dfedsam", "--json").out)
    assert one in listed
    assert one["parameters"] == {"rho": 0.01}
    assert (one["family"], one["keeps"], one["sends"]) == ("averaging", 1.0, 1.0)
    assert set(json.loads(gossamer("datasets", "--json").out)) == {"datasets", "partitions"}
    assert json.loads(gossamer("models", "cross-entropy", "--json").out)["name"] == "cross-entropy"


def test_an_unknown_name_in_a_listing(refused: Callable[..., str]) -> None:
    refused("methods", "dfedasm", says=("unknown method 'dfedasm'", "did you mean 'dfedsam'?"))
    refused("datasets", "dirichelt", says=("unknown data set or partition", "did you mean 'dirichlet'?"))


def test_the_version(gossamer: Command) -> None:
    answer = gossamer("--version")
    assert (answer.code, answer.out.split()[:2]) == (0, ["gossamer", version("gossamer")])


@pytest.mark.parametrize(
    ("command", "key"),
    [(["run"], key) for key in Experiment.model_fields if key != "device"]
    + [(["compare"], "rounds"), (["partition"], "clients"), (["theory"], "lr"), (["bench"], "clients")]
    + [(["network", "demo"], "local_steps"), (["run"], "method.rho")],
)
def test_a_key_given_as_an_option_is_answered_with_how_to_set_it(
    gossamer: Command, command: list[str], key: str
) -> None:
    for option in {f"--{key}", f"--{key.replace('_', '-')}"}:
        answer = gossamer(*command, option, "3")
        assert answer.code == 2
        assert f"--set {key}=VALUE" in answer.err


def test_an_option_that_is_no_key(gossamer: Command) -> None:
    answer = gossamer("run", "--sed", "3")
    assert answer.code == 2
    assert "--set KEY=VALUE: did you mean 'seed'?" in answer.err
    assert "sets it" not in answer.err


def test_every_command_has_help(gossamer: Command) -> None:
    answer = gossamer("--help")
    assert answer.code == 0
    names = [command.callback.__name__ for command in app.registered_commands if command.callback] + ["network"]
    assert {"run", "resume", "compare", "show", "graph", "partition", "methods", "datasets", "models"} <= set(names)
    for name in names:
        assert name in answer.out
        assert gossamer(name, "-h").code == 0
