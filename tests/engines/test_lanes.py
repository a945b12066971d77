"""Steps with clients in the lanes of vectors give the numbers of the others, or say why they cannot be taken."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import Experiment, simulate
from gossamer.engines import ExecutionPlan, Stacked
from gossamer.experiment import prepare
from gossamer.methods import DFedAvg, Gradient, Local, Message, Round, State
from gossamer.simulation import Run
from observers import Listening
from problems import graph_for, samples, tiny_net

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
#: More clients than lanes, of unequal sizes and numbers of steps, one with fewer samples than a batch, one with none.
RAGGED = [8, 1, 0, 4, 12, 8, 5, 3, 8, 4, 4, 9, 2, 7, 4, 8, 6, 4, 4]

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")


def experiment(method: Any = "dfedavg", sizes: list[int] = RAGGED, **changed: Any) -> Experiment:
    graph = graph_for(method, len(sizes)) if isinstance(method, str) else "ring"
    settings: dict[str, Any] = {
        "graph": graph, "dataset": samples(sizes, seed=1), "model": tiny_net, "batch_size": 4,
        "local_epochs": 1, "lr": 0.1, "lr_decay": 0.9, "rounds": 3, "dtype": "float64", **changed,
    }  # fmt: skip
    return Experiment(method=method, clients=len(sizes), **settings)


def run(described: Experiment, listener: Listening | None = None, **options: Any) -> Run:
    return simulate(described, observers=[listener] if listener else [], **{"workers": 1, **options})


def assert_in_lanes(described: Experiment, tolerance: float, **options: Any) -> None:
    listener = Listening()
    found, expected = run(described, listener, step="lanes", **options), run(described, chunk=1, step="eager")
    assert not any("lanes" in note for note in listener.notes), listener.notes
    assert "lanes steps" in listener.how
    torch.testing.assert_close(found.vectors, expected.vectors, rtol=0, atol=tolerance)
    losses = [torch.tensor(one.metrics["local_loss"].to_numpy()) for one in (found, expected)]
    torch.testing.assert_close(*losses, rtol=0, atol=tolerance)


@pytest.mark.parametrize("method", ["dfedadmm-sam", "scaffold", "local-g-ecl"])
def test_methods_that_keep_more_than_a_model(method: str) -> None:
    """Any other can be named here: all pass, but compiling each takes seconds."""
    assert_in_lanes(experiment(method, weight_decay=1e-3, clip=5.0), 1e-10)


class Exchanges(DFedAvg):
    """Parts of the state change places before it sends, and what it sends lies where one of them was."""

    def init(self, x0: Tensor) -> State:
        return {"x": x0, "a": x0 * 0 + 1, "b": x0 * 0 + 2, "same": x0 * 0 + 3}

    def begin(self, state: State, round: Round) -> Local:
        return {"y": state["x"], "start": state["x"], "steps": round.steps}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {**local, "y": y - round.lr * (gradient(y) + 0.01 * (y - local["start"]) + 0.01 * state["same"])}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        after = {**state, "a": state["b"], "b": state["a"] + 0.1 * local["start"] / local["steps"].clamp(min=1)}
        return after, {"x": local["y"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {**state, "x": mixed["x"] + 0.1 * state["a"]}


class Counts(Exchanges):
    """It looks at the number of the round, so that only its steps can be recorded for all rounds."""

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x": local["y"] * (1 - 0.01 * round.number)}


@pytest.mark.parametrize("method", [Exchanges, Counts])
@pytest.mark.parametrize("options", [{}, {"small_state": 0}, {"workers": 2}], ids=["twice", "once", "shared"])
def test_states_that_are_held_once_and_twice_or_shared(method: type[DFedAvg], options: dict[str, Any]) -> None:
    assert_in_lanes(experiment(method=method(), sizes=RAGGED[:9]), 1e-10, chunk=5, **options)


@pytest.mark.parametrize(
    ("dtype", "chunk", "workers"), [("float32", 19, 1), ("float64", 19, 1), ("float64", 7, 2), ("float64", 1, 1)]
)
def test_any_number_of_clients_at_a_time(dtype: str, chunk: int, workers: int) -> None:
    assert_in_lanes(experiment(dtype=dtype), TOLERANCE[dtype], chunk=chunk, workers=workers)


class Gated(nn.Module):
    """A module of one's own, with a sigmoid, a softmax, a mean and a shared layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.inner(self.inner(inputs)).sigmoid() * inputs.softmax(1)
        return self.outer(hidden - hidden.mean(1, keepdim=True)) + inputs.abs().clamp(max=1.0)


def test_a_module_of_ones_own() -> None:
    assert_in_lanes(experiment(model=Gated), 1e-10, chunk=19)


def test_a_regression() -> None:
    described = experiment(model=lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)), loss=squared)
    assert_in_lanes(described, 1e-10, chunk=8)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets[:, None]) ** 2).mean(1)


class Sorting(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).sort(1).values


def large() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4000), nn.Linear(4000, 3))


@pytest.mark.parametrize(
    ("model", "reason"),
    [(lambda: Sorting(3, 3), "operation sort"), (large, "28,003")],
    ids=["unknown-operation", "large-model"],
)
def test_what_cannot_be_taken_is_replayed_and_the_run_says_why(model: Any, reason: str) -> None:
    described, listener = experiment(sizes=[8, 4, 8], model=model), Listening()
    found = run(described, listener, chunk=3, step="lanes")
    assert any("cannot be run in lanes" in note and reason in note for note in listener.notes), listener.notes
    assert "traced steps" in listener.how
    torch.testing.assert_close(found.vectors, run(described, chunk=1, step="eager").vectors, rtol=0, atol=1e-10)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.system.cpp.COMPILER", "no-such-compiler")
    listener = Listening()
    run(experiment(sizes=[8, 4, 8]), listener, chunk=3, step="lanes")
    assert any("there is no no-such-compiler" in note for note in listener.notes), listener.notes


def test_a_client_that_diverges_spoils_no_other() -> None:
    """NaN stays in its lane."""
    engine = Stacked(prepare(experiment(sizes=[8, 4, 8])).training, ExecutionPlan(3, "lanes"))
    engine.state["x"][2] = torch.nan
    report = engine._local_work(0)
    assert report[2].tolist() == [False, False, True]
