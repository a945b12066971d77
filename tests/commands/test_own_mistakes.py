"""A user's own part that goes wrong is refused before anything is written, with the part named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import Experiment, simulate
from gossamer.errors import ExperimentError
from gossamer.experiment import load_experiment
from gossamer.methods import DFedSAM

LAB = """
import torch
from torch import nn
from gossamer.methods import DFedAvg


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs):
        return self.layer(inputs.flatten(1))


class Raises(Layer):
    def forward(self, inputs):
        return {}["missing"]


class Counts(Layer):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs):
        if self.training:
            self.seen.add_(1)
        return super().forward(inputs)


class Draws(Layer):
    def forward(self, inputs):
        return nn.functional.dropout(super().forward(inputs), 0.5, self.training)


def broken(*arguments):
    raise KeyError("broken")


def one_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")[:1]


def no_loss(outputs, targets):
    return "none"


class Unknown(DFedAvg):
    sends = {"x": "avg"}


class Silent(DFedAvg):
    sends = None


class Noisy(DFedAvg):
    def step(self, state, local, gradient, round):
        return {"y": local["y"] + round.noise}


class NoNetwork:
    def bind(self, clients, seed):
        return None


class Forgets(DFedAvg):
    def finish(self, state, local, round):
        return local


class Shrinks(DFedAvg):
    def receive(self, state, mixed, round):
        return {"x": mixed["x"][:3]}


class Renames(DFedAvg):
    def receive(self, state, mixed, round):
        return {"y": mixed["x"]}
"""


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model=lab:Raises", ("fails on samples", "KeyError: 'missing'")),
        ("model=lab:Counts", ("changes its buffer 'seen'",)),
        ("model=lab:broken", ("model:", "KeyError")),
        ("loss=lab:one_loss", ("one number for each of", "(got (1,))")),
        ("loss=lab:no_loss", ("one number for each of", "(got str)")),
        ("loss=lab:broken", ("loss fails on outputs", "KeyError", "line", "in broken")),
        ("partition=lab:broken", ("partition:", "KeyError: 'broken'")),
        ("dataset=lab:broken", ("dataset:", "KeyError: 'broken'")),
        ("graph=lab:broken", ("graph 'broken':", "KeyError: 'broken'")),
        ("graph=lab:NoNetwork", ("graph 'NoNetwork':", "`bind`", "Network", "got None")),
        ("partition=lab:Layer", ("split(targets, clients, seed)", "Layer")),
        ("method=lab:Silent", ("'Silent'", "`sends`", '{"x": "average"}', "got None")),
        ("method=lab:Noisy", ("`step`", "NoneType", "`draws = True`")),
        ("method=lab:Unknown", ("unknown operator 'avg'", "did you mean 'average'?")),
        ("method=lab:Forgets", ("`finish`", "a dictionary with 'y'", "`return state, message`")),
        ("method=lab:Shrinks", ("`receive`", "state['x'] as (3,)", "`init` gave (")),
        ("method=lab:Renames", ("`receive`", "lacks 'x'", "it has 'y'")),
        ("clients=1000000000", ("clients", "less than or equal to")),
        ("local_steps=99999999999999999999", ("local_steps",)),
        ("lr=" + "[" * 5000, ("lr", "valid number")),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_mistakes_in_own_parts(refused: Callable[..., str], place: Path, setting: str, says: tuple[str, ...]) -> None:
    (place / "lab.py").write_text(LAB)
    refused("run", "--set", setting, "--set", "rounds=1", "--out", "run", says=says)


def test_a_graph_that_fails_is_named_by_the_graph_command_too(refused: Callable[..., str], place: Path) -> None:
    (place / "lab.py").write_text(LAB)
    refused("graph", "lab:broken", says=("graph 'broken'", "KeyError: 'broken'", "line"))


def test_a_part_is_set_before_its_parameters_in_any_order() -> None:
    settings = [("method.rho", 0.3), ("method", "dfedsam")]
    for given in (settings, settings[::-1]):
        assert load_experiment(None, dict(given)).method == DFedSAM(rho=0.3)


def test_a_name_that_no_file_system_takes(refused: Callable[..., str], place: Path) -> None:
    refused("run", "--set", "rounds=1", "--out", "a" * 300, says=("cannot be written", "name too long"))


def test_random_numbers_in_a_forward_pass_are_keyed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "lab.py").write_text(LAB)
    experiment = Experiment(model="lab:Draws", clients=3, rounds=2, local_steps=2)
    vectors = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        vectors.append(simulate(experiment).vectors)
    assert torch.equal(*vectors)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_divergence": "contine"}, "'stop' or 'continue'"),
        ({"chunk": "4"}, "whole number"),
        ({"chunk": 0}, "at least 1"),
    ],
)
def test_wrong_words_from_python(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        simulate(Experiment(clients=3, rounds=1), **options)
