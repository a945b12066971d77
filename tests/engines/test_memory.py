"""A state that has one place in memory, or a place in a file, gives the numbers of one that has two."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import Experiment, GossamerError, resume, simulate
from gossamer.data import Dataset, Samples, Scaling
from gossamer.engines import ExecutionPlan, OutOfMemory, Reference, Stacked, stacked
from gossamer.engines.memory import Buffers
from gossamer.engines.steps import chunk as chunk_module
from gossamer.engines.steps import traced
from gossamer.experiment import prepare
from gossamer.methods import METHODS, DFedAvg, Local, Message, Round, State
from gossamer.simulation import Diverged, Interrupted, Run
from gossamer.system.machine import free_memory
from gossamer.workers import can_fork
from observers import Listening, PressesCtrlC
from problems import graph_for, samples, tiny_net

RAGGED = [9, 1, 0, 4, 7, 2, 5]
forks = pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux only")


def experiment(**changed: Any) -> Experiment:
    settings: dict[str, Any] = {
        "method": "dfedavg", "dataset": samples(RAGGED, seed=1), "model": tiny_net, "batch_size": 4, "local_epochs": 1,
        "lr": 0.05, "rounds": 3, "dtype": "float64", **changed,
    }  # fmt: skip
    return Experiment(clients=len(settings["dataset"].clients), **settings)


def on_its_graph(name: str, **changed: Any) -> Experiment:
    graph: Any = graph_for(name, len(RAGGED))
    if name == "dfedsgpsm-s":
        graph = {"name": "directed-by-loss", "neighbours": 3}
    if name == "scaffold":  # clients that are not called keep what they have
        graph = {"name": "server", "participation": 0.5}
    own_work = getattr(METHODS.build(name), "local_work", None)
    return experiment(method=name, graph=graph, **({"local_epochs": None} if own_work else {}), **changed)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_needs_its_state_once(name: str) -> None:
    """Chunks of clients after each other, so that some are written while others are still to be read."""
    training = prepare(on_its_graph(name)).training
    roomy = Stacked(training, ExecutionPlan(2))
    tight = Stacked(training, ExecutionPlan(2), small_state=0)
    for index in range(3):
        one, other = roomy.round(index), tight.round(index)
        assert torch.equal(one.losses.nan_to_num(-1), other.losses.nan_to_num(-1))
        assert one.client_bytes.tolist() == other.client_bytes.tolist()
        assert one.server_bytes == other.server_bytes
    assert roomy.state.keys() == tight.state.keys()
    for part, rows in roomy.state.items():
        assert torch.equal(tight.state[part], rows), part
    assert torch.isfinite(tight.models()).all()
    assert not tight.undo(2)  # it would have to be kept


@pytest.mark.parametrize(("much", "trims"), [(stacked.LARGEST_THRESHOLD, 0), (0, 2)])
def test_beside_a_large_state_memory_is_returned_where_a_round_takes_much(
    monkeypatch: pytest.MonkeyPatch, much: int, trims: int
) -> None:
    engine, trimmed = Stacked(prepare(on_its_graph("dfedavg")).training, ExecutionPlan(2), small_state=0), [0]
    monkeypatch.setattr(stacked, "LARGEST_THRESHOLD", much)
    monkeypatch.setattr(stacked, "trim_freed_memory", lambda: trimmed.append(1))
    engine.round(0)
    assert sum(trimmed) == trims


def test_averaged_models_are_mixed_where_the_old_ones_lay() -> None:
    engine = Stacked(prepare(on_its_graph("dfedavg")).training, ExecutionPlan(2), small_state=0)
    before = engine.state["x"].data_ptr()
    engine.round(0)
    assert engine.state["x"].data_ptr() == before
    assert not engine._buffers._message_rows  # memory of their own


class Masked(nn.Module):
    """Holds numbers that no client trains: a recording must carry them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer("scale", torch.tensor(0.3))
        self.register_buffer("turned", torch.linspace(0, 1, 9).view(3, 3).t())
        self.register_buffer("repeated", torch.ones(3, 1).expand(3, 2))
        self.register_buffer("every_second", torch.linspace(0, 1, 6)[::2])

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layer(inputs * self.mask) * self.scale + self.nothing.sum()
        return scores + self.turned.t().view(-1)[:3] * self.repeated.sum() + self.every_second


@forks
@pytest.mark.parametrize("chunk", [1, 3])
def test_beside_a_large_state_steps_are_recorded_elsewhere(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here = []
    trace = chunk_module.step_graph

    def watched(*given: Any) -> Any:
        here.append(os.getpid())
        return trace(*given)

    monkeypatch.setattr(chunk_module, "step_graph", watched)
    described = experiment(model=Masked, local_epochs=None, local_steps=5)
    eager = simulate(described, workers=1, chunk=chunk, step="eager")
    small = simulate(described, workers=1, chunk=chunk, step="traced")
    assert set(here) == {os.getpid()}
    here.clear()
    large = simulate(described, workers=1, chunk=chunk, step="traced", small_state=0)
    assert here == []
    assert torch.equal(large.vectors, small.vectors)
    torch.testing.assert_close(large.vectors, eager.vectors, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "constant",
    [
        torch.tensor(2.5), torch.zeros(0, 3), torch.arange(6).view(2, 3).t(), torch.ones(3, 1).expand(3, 4),
        torch.ones(1).expand(4), torch.arange(9.0)[::2], torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16), torch.tensor([1 + 2j, 3j]).conj(), torch.tensor([1 + 2j, 3j]).conj().imag,
        torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    ],
)  # fmt: skip
def test_the_constants_of_a_recording_arrive_as_they_lay(constant: Tensor) -> None:
    found = traced.restore_constants(json.loads(json.dumps({"a": traced.describe_constant(constant)})))["a"]
    assert (found.dtype, found.shape, found.stride()) == (constant.dtype, constant.shape, constant.stride())
    assert torch.equal(found, constant)


@forks
def test_a_replay_that_gives_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "restore_constants", lambda described: {name: torch.zeros(3) for name in described})
    described, listener = experiment(model=Masked, local_epochs=None, local_steps=5), Listening()
    found = simulate(described, workers=1, chunk=3, step="traced", observers=[listener], small_state=0)
    assert any(said.startswith("a step cannot be recorded, and is taken as written") for said in listener.notes)
    eager = simulate(described, workers=1, chunk=3, step="eager")
    assert torch.equal(found.vectors, eager.vectors)


@forks
@pytest.mark.parametrize("name", ["dfedavg", "dfedadmm", "dfedsgpsm", "scaffold"])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_vectors_of_a_large_state_are_seen_and_not_gathered(
    name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push-sum model is not a part of the state, so that one has to be sent."""
    seen = []
    all_clients = Buffers.all_clients

    def watched(buffers: Buffers, own: Tensor) -> Tensor | None:
        seen.append(all_clients(buffers, own))
        return seen[-1]

    monkeypatch.setattr(Buffers, "all_clients", watched)
    alone = simulate(on_its_graph(name), workers=1)
    shared = simulate(on_its_graph(name), workers=workers, small_state=0)
    gathered = [seen[-1]]  # after the rounds, in which messages are seen
    torch.testing.assert_close(shared.vectors, alone.vectors, rtol=0, atol=1e-10)
    again = simulate(on_its_graph(name), workers=workers, small_state=0)  # in memory of its own
    assert torch.equal(shared.vectors, again.vectors)
    assert shared.vectors.data_ptr() != again.vectors.data_ptr()
    gathered.append(seen[-1])
    assert [rows is not None for rows in gathered] == [name != "dfedsgpsm"] * 2


class Remembers(DFedAvg):
    """Keeps the model of the round before."""

    def init(self, x0: Tensor) -> State:
        return {"x": x0, "before": x0 * 0}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x": local["y"] + 0.1 * state["before"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"], "before": state["x"]}


class Swaps(DFedAvg):
    """Two parts of its state change places in every round."""

    def init(self, x0: Tensor) -> State:
        return {"x": x0, "a": x0 * 0 + 1, "b": x0 * 0 + 2}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"] + 0.1 * state["a"], "a": state["b"], "b": state["a"]}


class SwapsEarly(Swaps):
    """The same before it sends."""

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {**state, "a": state["b"], "b": state["a"]}, {"x": local["y"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {**state, "x": mixed["x"] + 0.1 * state["a"]}


class LooksBackLater(DFedAvg):
    """Keeps a part of its old model from the third round on."""

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"] if round.number < 2 else 0.5 * (mixed["x"] + state["x"])}


class Merges(DFedAvg):
    """Writes its new state as a dictionary may be written."""

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return state | {"x": mixed["x"]}


class Copies(DFedAvg):
    """The same, another way."""

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        after = state.copy()
        after.update(mixed)
        return after


@pytest.mark.parametrize("small_state", [0, 1 << 20])
@pytest.mark.parametrize("method", [Remembers, Swaps, SwapsEarly, LooksBackLater, Merges, Copies])
def test_however_a_method_handles_its_state_nothing_is_written_over_too_early(method: Any, small_state: int) -> None:
    """Against clients that have a state each, and nothing in common."""
    training = prepare(experiment(method=method(), dataset=samples([4] * 5, seed=1))).training
    stacked, isolated = Stacked(training, ExecutionPlan(2), small_state=small_state), Reference(training)
    for index in range(4):
        stacked.round(index)
        isolated.round(index)
    torch.testing.assert_close(stacked.models(), isolated.models(), rtol=0, atol=1e-10)


@forks
@pytest.mark.parametrize("name", ["dfedavg", "dfedadmm-sam", "k-gt"])
def test_two_workers_with_little_memory(name: str) -> None:
    one, two = (simulate(on_its_graph(name), workers=workers, small_state=0).vectors for workers in (1, 2))
    torch.testing.assert_close(two, one, rtol=0, atol=1e-10)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=forks)])
def test_a_divergence_is_reported_without_the_state_before_it(tmp_path: Path, workers: int) -> None:
    blows_up = {"lr": 1.0, "weight_decay": 1e6, "local_epochs": None, "local_steps": 1}  # a millionfold in every round
    described = experiment(**blows_up, dtype="float32", rounds=9, checkpoint_every=2)
    with pytest.raises(Diverged, match=r"diverged in round \d+ at .*client.* Try a smaller lr") as end:
        simulate(described, out=tmp_path / "r", workers=workers, small_state=0)
    done = end.value.run.last["round"]
    assert f"diverged in round {done + 1}" in str(end.value)
    assert list(end.value.run.metrics["round"]) == list(range(1, done + 1))
    assert "diverged" in (tmp_path / "r" / "stopped.json").read_text()
    # What cannot be undone is not written down either.
    rounds = sorted({int(path.name[6:12]) for path in (tmp_path / "r" / "checkpoints").iterdir()})
    assert all(number % 2 == 0 and number <= done for number in rounds)
    # To go on regardless starts from the last checkpoint, and gives what one gets who went on at once.
    simulate(described, on_divergence="continue", out=tmp_path / "straight", workers=1, small_state=0)
    resume(tmp_path / "r", experiment=described, on_divergence="continue", workers=1, small_state=0)
    metrics = [(tmp_path / folder / "metrics.jsonl").read_bytes() for folder in ("r", "straight")]
    assert metrics[0] == metrics[1]


def test_an_interrupted_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    described = experiment(method="dfedadmm", rounds=6, checkpoint_every=2)
    with pytest.raises(Interrupted) as stop:
        simulate(described, out=tmp_path / "r", observers=[PressesCtrlC(5)], workers=1, small_state=0)
    assert stop.value.round == 4
    again = resume(tmp_path / "r", experiment=described, workers=1, small_state=0)
    straight = simulate(described, workers=1, small_state=0)
    assert torch.equal(again.vectors, straight.vectors)
    assert again.metrics.equals(straight.metrics)


@pytest.mark.parametrize("name", ["dfedavg", "dfedadmm-sam", "k-gt", "overlap-sgp", "dispfl", "scaffold"])
def test_a_state_in_a_file_is_the_same_state(name: str, tmp_path: Path) -> None:
    described = on_its_graph(name)
    kept = simulate(described, workers=1)
    spilled = simulate(described, workers=1, chunk=2, spill=tmp_path / "place")
    torch.testing.assert_close(spilled.vectors, kept.vectors, rtol=0, atol=1e-10)
    assert list((tmp_path / "place").iterdir()) == []  # the file has no name, and nothing is left of it


@forks
def test_every_worker_has_a_file_of_its_own(tmp_path: Path) -> None:
    described = on_its_graph("dfedadmm")
    run: Run = simulate(described, workers=2, spill=str(tmp_path), out=tmp_path / "r")
    torch.testing.assert_close(run.vectors, simulate(described, workers=1).vectors, rtol=0, atol=1e-10)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    assert torch.equal(resume(tmp_path / "r", experiment=described, workers=1, spill=tmp_path).vectors, run.vectors)


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="the system does not tell how much memory is free")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=forks)])
def test_a_state_that_does_not_fit_is_refused_before_it_is_made(workers: int, tmp_path: Path) -> None:
    """Four times the memory that is free, over all workers of the machine together."""
    width, kept = 200_000, 3
    clients = 4 * free_memory() // (7 * width * kept * 8)
    few = Samples(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
    owners = tuple(np.array([0]) for _ in range(clients))
    described = experiment(
        method="d-scaffold", graph="ring", dataset=Dataset("few", few, few, 3, (3,), Scaling(), None, clients=owners),
        model=lambda: nn.Sequential(nn.Linear(3, width), nn.Linear(width, 3)), local_epochs=None, local_steps=1,
        rounds=1,
    )  # fmt: skip
    with pytest.raises(
        GossamerError, match=r"out of memory: .* GB on this machine, and a round about .*--spill FOLDER"
    ) as refusal:
        simulate(described, workers=workers, out=tmp_path / "r", chunk=1)
    assert refusal.value.exit_code == 2
    assert isinstance(refusal.value, OutOfMemory)
    assert not (tmp_path / "r").exists()  # so the same command works as soon as there is room


def test_a_file_that_does_not_fit_is_refused_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.engines.memory.shutil.disk_usage", lambda _: SimpleNamespace(total=2000, free=1000))
    with pytest.raises(OutOfMemory, match=r"--spill .*place: .* on this machine, and 1 kB are free there"):
        simulate(experiment(), spill=tmp_path / "place", out=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_no_folder_at_all_is_refused() -> None:
    with pytest.raises(GossamerError, match=r"^spill: names no folder$"):
        simulate(experiment(), spill="")


def test_a_folder_that_was_mistyped_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(GossamerError, match=r"--spill .*place: there is no folder .*tmq. Make it first"):
        simulate(experiment(), spill=tmp_path / "tmq" / "place", out=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(GossamerError, match=r"--spill .*: cannot be written: No space left on device"):
        simulate(experiment(), spill=tmp_path, workers=1)
