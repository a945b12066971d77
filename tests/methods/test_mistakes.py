"""Methods as users of torch write them: each gives the right numbers, or is refused with the line that teaches.

In simulation on one and on two workers, in every engine, and as peers.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import Experiment, simulate
from gossamer.engines import Reference
from gossamer.errors import ExperimentError
from gossamer.experiment.preparation import prepare
from networks import make_kits, make_peers, run_together
from problems import samples

LAB = '''
import itertools
import random
from functools import cached_property

import numpy as np
import torch
from torch import nn


class Pure:
    """Local steps with a correction c, which a client learns from what it receives."""

    sends = {"x": "average"}

    def init(self, x0):
        return {"x": x0, "c": torch.zeros_like(x0)}

    def begin(self, state, round):
        return {"y": state["x"]}

    def step(self, state, local, gradient, round):
        return {"y": local["y"] - round.lr * (gradient(local["y"]) + state["c"])}

    def finish(self, state, local, round):
        return {**state, "x": local["y"]}, {"x": local["y"]}

    def receive(self, state, mixed, round):
        return {"x": mixed["x"], "c": state["c"] + 0.1 * (state["x"] - mixed["x"])}

    def model(self, state):
        return state["x"]


# In place

class InReceive(Pure):
    def receive(self, state, mixed, round):
        state["c"] += 0.1 * (state["x"] - mixed["x"])
        state["x"] = mixed["x"]
        return state


class InStep(Pure):
    def step(self, state, local, gradient, round):
        local["y"] -= round.lr * (gradient(local["y"]) + state["c"])
        return local


class InFinish(Pure):
    def finish(self, state, local, round):
        state["x"].add_(local["y"] - state["x"])
        return state, {"x": state["x"]}


class InBegin(Pure):
    def begin(self, state, round):
        y = state["x"]
        y[:1].zero_()
        return {"y": y}


class InInit(Pure):
    def init(self, x0):
        x0.mul_(0.5)
        return {"x": x0, "c": torch.zeros_like(x0)}


class InModel(Pure):
    def model(self, state):
        return state["x"].sub_(state["c"])


class InRound(Pure):
    def receive(self, state, mixed, round):
        round.degree.add_(1)
        return super().receive(state, mixed, round)


class InOut(Pure):
    def receive(self, state, mixed, round):
        torch.add(state["c"], state["x"] - mixed["x"], alpha=0.1, out=state["c"])
        return {"x": mixed["x"], "c": state["c"]}


class InNumpy(Pure):
    def receive(self, state, mixed, round):
        state["c"].numpy()[:] += 0.1
        return {"x": mixed["x"], "c": state["c"]}


class Opens(Pure):
    def open(self, state, full_gradient, round):
        return {**state, "c": full_gradient()}, {"c": full_gradient()}

    def opened(self, state, mixed, round):
        return {**state, "c": state["c"] - mixed["c"]}


class InOpen(Opens):
    def open(self, state, full_gradient, round):
        state["c"] += full_gradient()
        return state, {"c": state["c"]}


class InOpened(Opens):
    def opened(self, state, mixed, round):
        state["c"] -= mixed["c"]
        return state


class InPart(Pure):
    def receive(self, state, mixed, round):
        state["x"][:3] = 0
        return {"x": mixed["x"], "c": state["c"]}


class InDetached(Pure):
    def step(self, state, local, gradient, round):
        y = local["y"].detach()
        y -= round.lr * gradient(local["y"])
        return {"y": y}


class InLaterReceive(Pure):
    def receive(self, state, mixed, round):
        if round.number < 2:
            return super().receive(state, mixed, round)
        state["c"] += 0.1 * (state["x"] - mixed["x"])
        return {"x": mixed["x"], "c": state["c"]}


class InLaterStep(Pure):
    def step(self, state, local, gradient, round):
        if round.number < 2:
            return super().step(state, local, gradient, round)
        local["y"] -= round.lr * (gradient(local["y"]) + state["c"])
        return local


class InLaterFinish(Pure):
    def finish(self, state, local, round):
        if round.number < 2:
            return super().finish(state, local, round)
        state["x"].copy_(local["y"])
        return state, {"x": state["x"]}


class FailsLater(Pure):
    def receive(self, state, mixed, round):
        if round.number == 2:
            raise ValueError("not this one")
        return super().receive(state, mixed, round)


# Changes a dictionary, not a tensor: harmless

class SetsEntries(Pure):
    def begin(self, state, round):
        local = {"y": state["x"]}
        return local

    def step(self, state, local, gradient, round):
        local["y"] = local["y"] - round.lr * (gradient(local["y"]) + state["c"])
        return local

    def finish(self, state, local, round):
        state["x"] = local.pop("y")
        return state, {"x": state["x"]}

    def receive(self, state, mixed, round):
        state["c"] = state["c"] + 0.1 * (state["x"] - mixed["x"])
        state["x"] = mixed.pop("x")
        return state


class SetsInBegin(Pure):
    def begin(self, state, round):
        state["c"] = 0 * state["c"]
        return {"y": state["x"]}


class SetsInModel(Pure):
    def model(self, state):
        state["x"] = state["x"] - state["c"]
        return state["x"]


# Keys, shapes, types, returns

class WrongKey(Pure):
    def receive(self, state, mixed, round):
        return {"x": mixed["y"], "c": state["c"]}


class WrongStateKey(Pure):
    def begin(self, state, round):
        return {"y": state["z"]}


class WrongSends(Pure):
    sends = {"y": "average"}


class SendsMore(Pure):
    def finish(self, state, local, round):
        return {**state, "x": local["y"]}, {"x": local["y"], "c": state["c"]}


class WrongShape(Pure):
    def receive(self, state, mixed, round):
        return {"x": mixed["x"].unsqueeze(0), "c": state["c"]}


class WrongType(Pure):
    def receive(self, state, mixed, round):
        return {"x": mixed["x"].to(torch.float16), "c": state["c"]}


class WrongModel(Pure):
    def model(self, state):
        return state["x"].sum()


class NoReturn(Pure):
    def step(self, state, local, gradient, round):
        local["y"] = local["y"] - round.lr * gradient(local["y"])


class NoReturnOfInit(Pure):
    def init(self, x0):
        self_state = {"x": x0}


class NoMessage(Pure):
    def finish(self, state, local, round):
        return {**state, "x": local["y"]}


class ANumber(Pure):
    def begin(self, state, round):
        return {"y": state["x"], "k": 0}


class NewInStep(Pure):
    def step(self, state, local, gradient, round):
        return {**super().step(state, local, gradient, round), "g": gradient(local["y"])}


class GradientOfLocal(Pure):
    def step(self, state, local, gradient, round):
        return {"y": local["y"] - round.lr * gradient(local)}


class GradientOfPart(Pure):
    def step(self, state, local, gradient, round):
        return {"y": local["y"] - round.lr * gradient(local["y"][1:]).sum()}


class HalfMessage(Pure):
    def finish(self, state, local, round):
        return {**state, "x": local["y"]}, {"x": local["y"].half()}


class WholeMessage(Pure):
    def finish(self, state, local, round):
        return {**state, "x": local["y"]}, {"x": (100 * local["y"]).long()}

    def receive(self, state, mixed, round):
        return {"x": mixed["x"] / 100, "c": state["c"]}


class Exits(Pure):
    def finish(self, state, local, round):
        raise SystemExit(3)


# What torch records

class NoGrad(Pure):
    @torch.no_grad()
    def step(self, state, local, gradient, round):
        return {"y": local["y"] - round.lr * (gradient(local["y"]) + state["c"])}


class Optimizer(Pure):
    def step(self, state, local, gradient, round):
        y = nn.Parameter(local["y"].clone())
        y.grad = gradient(local["y"]) + state["c"]
        torch.optim.SGD([y], lr=round.lr).step()
        return {"y": y.detach()}


class ReturnsParameter(Pure):
    def step(self, state, local, gradient, round):
        y = nn.Parameter(local["y"].clone())
        y.grad = gradient(local["y"])
        torch.optim.Adam([y], lr=round.lr).step()
        return {"y": y}


class Records(Pure):
    def step(self, state, local, gradient, round):
        y = local["y"].requires_grad_()
        return {"y": (y - round.lr * gradient(y)).detach()}


class Inference(Pure):
    @torch.inference_mode()
    def step(self, state, local, gradient, round):
        return {"y": local["y"] - round.lr * gradient(local["y"])}


# Random numbers and hidden state

class DrawsTorch(Pure):
    def step(self, state, local, gradient, round):
        g = gradient(local["y"])
        return {"y": local["y"] - round.lr * (g + 0.1 * torch.randn_like(g))}


class DrawsNumpy(Pure):
    def finish(self, state, local, round):
        y = local["y"] * float(np.random.rand())
        return {**state, "x": y}, {"x": y}


class DrawsPython(Pure):
    def receive(self, state, mixed, round):
        return {"x": mixed["x"] * random.random(), "c": state["c"]}


class DrawsAfresh(Pure):
    def receive(self, state, mixed, round):
        return {"x": mixed["x"] * np.random.default_rng().random(), "c": state["c"]}


class HoldsStream(Pure):
    def __init__(self):
        self.rng = torch.Generator().manual_seed(1)

    def receive(self, state, mixed, round):
        return {"x": mixed["x"] + torch.rand(mixed["x"].shape, generator=self.rng), "c": state["c"]}


class Draws(Pure):
    draws = True

    def receive(self, state, mixed, round):
        return {"x": mixed["x"] + 0.01 * round.noise, "c": state["c"]}


class Counter(Pure):
    def __init__(self):
        self.calls = 0

    def step(self, state, local, gradient, round):
        self.calls += 1
        return {"y": local["y"] - round.lr / self.calls * gradient(local["y"])}


class ClassCounter(Pure):
    calls = 0

    def receive(self, state, mixed, round):
        ClassCounter.calls += 1
        return super().receive(state, mixed, round)


class Remembers(Pure):
    def __init__(self):
        self.seen = []

    def receive(self, state, mixed, round):
        self.seen.append(mixed["x"].norm())
        return super().receive(state, mixed, round)


class HoldsCounter(Pure):
    def __init__(self):
        self.counter = itertools.count(1)

    def receive(self, state, mixed, round):
        return {"x": mixed["x"] / next(self.counter), "c": state["c"]}


class HoldsModule(Pure):
    def __init__(self):
        self.net = nn.Linear(31, 1)

    def receive(self, state, mixed, round):
        with torch.no_grad():
            self.net.weight.copy_(mixed["x"][None])
        return {"x": self.net.weight[0].detach().clone(), "c": state["c"]}


class DrawsTorchLater(Pure):
    def finish(self, state, local, round):
        y = local["y"] if round.number < 2 else local["y"] + 0.01 * torch.randn(1, dtype=torch.float64)
        return {**state, "x": y}, {"x": y}


class DrawsNumpyLater(Pure):
    def begin(self, state, round):
        return {"y": state["x"] if round.number < 2 else float(np.random.rand()) * state["x"]}


class CountsLater(Pure):
    calls = 0

    def receive(self, state, mixed, round):
        if round.number > 1:
            self.calls += 1
        return {"x": mixed["x"] / (1 + self.calls), "c": state["c"]}


class ChangesFrozen(Pure):
    def __init__(self):
        self.net = nn.Linear(1, 1).requires_grad_(False)

    def receive(self, state, mixed, round):
        self.net.weight.copy_(mixed["x"].norm())
        return {"x": mixed["x"] / self.net.weight[0], "c": state["c"]}


class Caches(Pure):
    @cached_property
    def factor(self):
        return 0.1

    def receive(self, state, mixed, round):
        return {"x": mixed["x"], "c": state["c"] + self.factor * (state["x"] - mixed["x"])}


# Python numbers and numpy, on the way: slower, and right

class Item(Pure):
    def step(self, state, local, gradient, round):
        g = gradient(local["y"]) + state["c"]
        if g.norm().item() < 0:
            g = 0 * g
        return {"y": local["y"] - round.lr * g}


class ItemLater(Pure):
    def step(self, state, local, gradient, round):
        g = gradient(local["y"]) + state["c"]
        if round.number > 1 and g.norm().item() < 0:
            g = 0 * g
        return {"y": local["y"] - round.lr * g}


class Numpy(Pure):
    def step(self, state, local, gradient, round):
        g = (gradient(local["y"]) + state["c"]).numpy()
        y = np.asarray(local["y"]) - np.float64(round.lr) * g.astype("float64")
        return {"y": torch.from_numpy(y).to(local["y"].dtype)}

    def receive(self, state, mixed, round):
        c = state["c"].numpy() + 0.1 * (state["x"].numpy() - mixed["x"].numpy())
        return {"x": mixed["x"], "c": torch.from_numpy(c)}
'''

ROUNDS = 4

#: The class, and what its refusal names.
REFUSED = [
    ("InReceive", ("`receive`", 'state["c"]', "in receive", 'state["c"] = state["c"] + ...')),
    ("InStep", ("`step`", 'local["y"]', "in step", 'local["y"] = local["y"] - ...')),
    ("InFinish", ("`finish`", 'state["x"]', "in finish", 'state["x"] = state["x"] + ...')),
    ("InBegin", ("`begin`", 'state["x"]', "in begin", ".clone()")),
    ("InInit", ("`init`", "x0", "in init", "x0 = x0 * ...")),
    ("InModel", ("`model`", 'state["x"]', "in model", 'state["x"] - ...')),
    ("InRound", ("`receive`", "round.degree", "in receive")),
    ("InOut", ("`receive`", 'state["c"]', "in receive")),
    ("InNumpy", ("`receive`", 'state["c"]', ".clone()")),
    ("InPart", ("`receive`", 'state["x"]', "in receive", ".clone()")),
    ("InDetached", ("`step`", 'local["y"]', "in step", 'local["y"] = local["y"] - ...')),
    ("InOpen", ("`open`", 'state["c"]', "in open", 'state["c"] = state["c"] + ...')),
    ("InOpened", ("`opened`", 'state["c"]', "in opened", 'state["c"] = state["c"] - ...')),
    ("SetsInBegin", ("`begin`", "state['c']", "lost")),
    ("SetsInModel", ("`model`", "state['x']", "lost", "`finish` or `receive`")),
    ("WrongKey", ("`receive`", "mixed['y']", "mixed has 'x'", "`sends` has 'x'", "in receive")),
    ("WrongStateKey", ("`begin`", "state['z']", "state has 'x', 'c'", "in begin")),
    ("WrongSends", ("`sends` has 'y'", "`finish`", "has 'x'")),
    ("SendsMore", ("`finish`", "'c'", "`sends` has 'x'")),
    ("WrongShape", ("`receive`", "state['x']", "(1, 31)", "`init` gave (31,)")),
    ("WrongType", ("`receive`", "state['x']", "float16", "`init` gave torch.float64")),
    ("WrongModel", ("`model`", "shape ()", "(31,)")),
    ("NoReturn", ("`step`", "None", "is a `return` missing?")),
    ("NoReturnOfInit", ("`init`", "None", "is a `return` missing?")),
    ("NoMessage", ("`finish`", "`return state, message`")),
    ("ANumber", ("`begin`", "int", "'k'", "torch.as_tensor")),
    ("NewInStep", ("`step`", "local['g']", "`begin`")),
    ("GradientOfLocal", ("gradient at a dictionary with 'y'", 'such as local["y"]')),
    ("GradientOfPart", ("gradient at a tensor of shape", "(31,)")),
    ("HalfMessage", ("`finish`", "'x'", "float16", "`encode`")),
    ("WholeMessage", ("`finish`", "'x'", "int64", "torch.float32")),
    ("Exits", ("`finish`", "SystemExit", "in finish")),
    ("ReturnsParameter", ("`step`", "'y'", "nn.Parameter", ".detach()")),
    ("Records", ("`step`", "requires_grad", ".detach().clone().requires_grad_()")),
    ("Inference", ("torch.inference_mode()", "Leave it out")),
    ("DrawsTorch", ("`step`", "torch's global stream", "`draws = True`", "`round.noise`")),
    ("DrawsNumpy", ("`finish`", "numpy's global stream", "`round.noise`")),
    ("DrawsPython", ("`receive`", "`random`", "`round.noise`")),
    ("DrawsAfresh", ("`receive`", "other numbers", "`round.noise`")),
    ("HoldsStream", ("`receive`", "self.rng", "state")),
    ("Counter", ("`step`", "self.calls", "`round.number`")),
    ("ClassCounter", ("`receive`", "ClassCounter.calls", "state")),
    ("Remembers", ("`receive`", "self.seen", "state")),
    ("HoldsCounter", ("`receive`", "other numbers", "state")),
    ("HoldsModule", ("'net'", "state", "requires_grad_(False)")),
    ("ChangesFrozen", ("`receive`", "self.net", "state")),
]
#: What is seen only in the round that does it.
REFUSED_LATER = [
    ("InLaterReceive", ("round 3", "`receive`", 'state["c"]', "new tensor")),
    ("InLaterStep", ("round 3", "`step`", 'local["y"]', "new tensor")),
    ("InLaterFinish", ("round 3", "`finish`", 'state["x"]', "new tensor")),
    ("DrawsTorchLater", ("round 3", "method 'DrawsTorchLater'", "torch's global stream", "`round.noise`")),
    ("DrawsNumpyLater", ("round 3", "method 'DrawsNumpyLater'", "numpy's global stream", "`round.noise`")),
    ("CountsLater", ("round 3", "method 'CountsLater'", "self.calls", "state")),
]
#: The class, and the one that gives the same numbers.
RIGHT = [
    ("SetsEntries", "Pure"),
    ("Item", "Pure"),
    ("ItemLater", "Pure"),
    ("Numpy", "Pure"),
    ("NoGrad", "Pure"),
    ("Optimizer", "Pure"),
    ("Caches", "Pure"),
    ("Draws", "Draws"),
    ("Opens", "Opens"),
]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "mistakes_lab.py").write_text(LAB)
    monkeypatch.syspath_prepend(str(tmp_path))
    import mistakes_lab  # type: ignore[import-not-found]

    yield mistakes_lab
    sys.modules.pop("mistakes_lab")


def experiment(method: Any, **settings: Any) -> Experiment:
    from problems import tiny_net

    return Experiment(
        method=method, dataset=samples([8, 5, 7, 6], seed=1), model=tiny_net, graph="ring", clients=4, rounds=ROUNDS,
        batch_size=4, local_epochs=2, lr=0.1, dtype="float64", **settings,
    )  # fmt: skip


def peer_experiment(name: str) -> Experiment:
    return Experiment(
        method=f"mistakes_lab:{name}", model="softmax", graph="full", clients=2, rounds=ROUNDS, batch_size=300,
        local_steps=2, dtype="float64",
    )  # fmt: skip


def reference_models(method: Any) -> Tensor:
    engine = Reference(prepare(experiment(method)).training)
    for index in range(ROUNDS):
        engine.round(index)
    return engine.models()


def check_words(message: str, says: tuple[str, ...]) -> None:
    for word in says:
        assert word in message, message


@pytest.mark.parametrize(("name", "says"), REFUSED, ids=[name for name, _ in REFUSED])
def test_a_mistake_is_refused_at_the_first_step(lab: Any, name: str, says: tuple[str, ...]) -> None:
    for options in ({"workers": 1, "chunk": 1}, {"workers": 2}, {"workers": 1, "step": "traced"}):
        with pytest.raises(ExperimentError) as refused:
            simulate(experiment(getattr(lab, name)()), **options)
        check_words(str(refused.value), (f"method '{name}'", *says))


@pytest.mark.parametrize(("name", "says"), REFUSED, ids=[name for name, _ in REFUSED])
def test_a_peer_is_refused_at_its_start(lab: Any, tmp_path: Path, name: str, says: tuple[str, ...]) -> None:
    kits = make_kits(tmp_path, peer_experiment(name))
    with pytest.raises(ExperimentError) as refused:
        make_peers(kits[:1])
    about_size = [word for word in says if "31" in word]
    check_words(str(refused.value), tuple(word for word in says if word not in about_size))
    assert not (kits[0] / "run").exists()


@pytest.mark.parametrize(("name", "says"), REFUSED_LATER, ids=[name for name, _ in REFUSED_LATER])
def test_a_mistake_of_a_later_round_ends_the_run_there(
    lab: Any, tmp_path: Path, name: str, says: tuple[str, ...]
) -> None:
    for options in ({"workers": 1, "chunk": 1}, {"workers": 1, "chunk": 4}, {"workers": 2}, {"step": "traced"}):
        with pytest.raises(ExperimentError) as refused:
            simulate(experiment(getattr(lab, name)()), **options)
        check_words(str(refused.value), says)
    with pytest.raises(ExperimentError) as refused:
        reference_models(getattr(lab, name)())
    check_words(str(refused.value), says)
    with pytest.raises(ExperimentError) as refused:
        run_together(make_peers(make_kits(tmp_path, peer_experiment(name))))
    check_words(str(refused.value), says)


def test_an_error_of_a_later_round_names_round_and_line(lab: Any, tmp_path: Path) -> None:
    says = ("round 3", "ValueError: not this one", "in receive")
    for workers in (1, 2):
        with pytest.raises(ExperimentError) as refused:
            simulate(experiment(lab.FailsLater()), workers=workers)
        check_words(str(refused.value), says)
    with pytest.raises(ExperimentError) as refused:
        run_together(make_peers(make_kits(tmp_path, peer_experiment("FailsLater"))))
    check_words(str(refused.value), says)


@pytest.mark.parametrize(("name", "like"), RIGHT, ids=[name for name, _ in RIGHT])
def test_what_is_unusual_and_right_gives_the_same_numbers_everywhere(
    lab: Any, tmp_path: Path, name: str, like: str
) -> None:
    right = simulate(experiment(getattr(lab, like)()), workers=1, chunk=1, step="eager").vectors
    assert right is not None
    options: list[dict[str, Any]] = [
        {"workers": 1, "chunk": 1}, {"workers": 1, "chunk": 4}, {"workers": 2}, {"step": "traced"},
        {"step": "traced", "chunk": 1},
    ]  # fmt: skip
    for each in options:
        torch.testing.assert_close(simulate(experiment(getattr(lab, name)()), **each).vectors, right)
    torch.testing.assert_close(reference_models(getattr(lab, name)()), right)
    peers: Tensor = run_together(make_peers(make_kits(tmp_path, peer_experiment(name))))
    alone = simulate(peer_experiment(like), workers=1)
    torch.testing.assert_close(peers, alone.vectors)
