"""How clients are run (how many at a time, how a step is taken, how images lie) does not change the numbers."""

import math
import shutil
from collections import Counter
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer import Experiment, simulate
from gossamer.data import Augmentation, Dataset, Samples, Scaling
from gossamer.engines.steps.fingerprint import fingerprint
from gossamer.methods import DFedAvg, Local, Message, Round, State
from gossamer.methods.local import Gradient
from gossamer.simulation import Run
from gossamer.system.cache import cache_file
from gossamer.workers import ForkFailed, run_in_fork
from observers import Listening
from problems import graph_for, samples, tiny_net

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
#: One client with fewer samples than a batch, one with none at all; whole batches else, so few shapes are recorded.
RAGGED = [8, 1, 0, 4, 12, 8]
#: Enough steps of one shape that they are recorded, and compiled if asked.
ROUNDS = 4
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without notes of earlier runs, but with their libraries, so that little is compiled twice."""
    for library in cache_file("steps").parent.glob("*.so"):
        (tmp_path / "gossamer" / "steps").mkdir(parents=True, exist_ok=True)
        shutil.copy(library, tmp_path / "gossamer" / "steps")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def experiment(**changed: Any) -> Experiment:
    settings: dict[str, Any] = {
        "method": "dfedavg", "graph": "ring", "dataset": samples(RAGGED, seed=1), "model": tiny_net, "batch_size": 4,
        "local_epochs": 1, "lr": 0.1, "lr_decay": 0.9, "rounds": ROUNDS, "dtype": "float64", **changed,
    }  # fmt: skip
    return Experiment(clients=len(settings["dataset"].clients), **settings)


def run(described: Experiment, listener: Listening | None = None, **options: Any) -> Run:
    return simulate(described, observers=[listener] if listener else [], **{"workers": 1, **options})


def assert_same(one: Run, other: Run, tolerance: float) -> None:
    assert torch.isfinite(other.vectors).all()
    torch.testing.assert_close(one.vectors, other.vectors, rtol=0, atol=tolerance)
    torch.testing.assert_close(
        torch.tensor(one.metrics["local_loss"].to_numpy()), torch.tensor(other.metrics["local_loss"].to_numpy()),
        rtol=0, atol=tolerance,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("method", "dtype", "chunks"),
    [
        ("dfedavg", "float64", (1, 2, 6)),
        ("dfedavg", "float32", (3,)),
        ("dfedsam-mgs", "float64", (3,)),
        ("dfedadmm-sam", "float64", (1,)),
        ("dfedadmm-sam", "float32", (3,)),
        ("local-g-ecl", "float64", (3,)),
        ("dfedsgpsm", "float64", (6,)),
        ("dispfl", "float64", (2,)),
        ("fedavg", "float64", (2,)),
    ],
)
def test_recorded_steps_of_every_chunk_size_are_the_eager_ones_of_a_loop(
    method: str, dtype: str, chunks: tuple[int, ...]
) -> None:
    """Clients of unequal size, one without samples; the learning rate changes from round to round."""
    described = experiment(method=method, graph=graph_for(method, 6), dtype=dtype, weight_decay=1e-3, clip=5.0)
    loop = run(described, chunk=1, step="eager")
    for chunk in chunks:
        listener = Listening()
        assert_same(run(described, listener, chunk=chunk, step="traced"), loop, TOLERANCE[dtype])
        assert f"{chunk} at a time, traced" in listener.how
        assert not any("step" in note for note in listener.notes)  # nothing kept the steps from being recorded


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("chunk", [1, 3])
def test_it_does_not_matter_which_step_is_the_recorded_one(steps: int, chunk: int) -> None:
    """Before a round's first step the local model is the very tensor that the state holds; after it, they differ."""
    described = experiment(method="dfedadmm", dataset=samples([8] * 3, seed=1), local_epochs=None, local_steps=steps)
    assert_same(run(described, chunk=chunk, step="traced"), run(described, chunk=1, step="eager"), 1e-10)


def test_one_client_taking_two_steps_is_not_two_clients_taking_one() -> None:
    """Their batches have the same shape: two with unequal work go step by step, and a third does its steps in a row."""
    described = experiment(dataset=samples([4, 8, 8], seed=1), local_epochs=1)
    assert_same(run(described, chunk=2, step="traced"), run(described, chunk=1, step="eager"), 1e-10)


@needs_compiler
@pytest.mark.parametrize(
    ("sizes", "chunk", "workers"),
    [([8] * 4, 4, 1), ([8] * 70, 1, 2)],
    ids=["together", "one-by-one"],
)
def test_compiled_steps(sizes: list[int], chunk: int, workers: int) -> None:
    """Few shapes of batches, so that little is compiled; with two workers, each compiles for itself."""
    described = experiment(dataset=samples(sizes, seed=1), model=lambda: nn.Linear(3, 3), rounds=6)
    listener = Listening()
    compiled = run(described, listener, chunk=chunk, step="compiled", workers=workers)
    assert "compiled" in listener.how
    assert listener.notes == []
    assert_same(compiled, run(described, chunk=1, step="eager"), 1e-10)


@needs_compiler
def test_a_damaged_library_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    described = experiment(dataset=samples([8] * 4, seed=1), model=lambda: nn.Linear(3, 3))
    # Apart, since a process that has loaded a library does not look at its file again.
    run_in_fork(lambda: str(run(described, chunk=4, step="compiled")))
    libraries = list((tmp_path / "gossamer" / "steps").glob("*.so"))
    assert libraries
    for library in libraries:
        library.write_bytes(library.read_bytes()[:20_000])  # to load this would end the process
    listener = Listening()
    mended = run(described, listener, chunk=4, step="compiled")
    assert_same(mended, run(described, chunk=1, step="eager"), 1e-10)
    assert listener.notes == []
    assert all(library.stat().st_size > 20_000 for library in (tmp_path / "gossamer" / "steps").glob("*.so"))


@needs_compiler
@pytest.mark.usefixtures("own_cache")
def test_steps_of_known_code_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []

    def counting(work: Any) -> str:
        recorded.append(work)
        return run_in_fork(work)

    monkeypatch.setattr("gossamer.engines.steps.compiled.run_in_fork", counting)
    known = experiment(dataset=samples([8] * 4, seed=1), model=lambda: nn.Linear(3, 3))
    first = run(known, chunk=4, step="compiled")
    assert len(recorded) == 1
    assert_same(run(known, chunk=4, step="compiled"), first, 0)
    assert len(recorded) == 1
    # Somebody may have changed what has a known name: it is tried before it is taken.
    usual = DFedAvg.step
    monkeypatch.setattr(DFedAvg, "step", lambda self, *given: {"y": 0.5 * usual(self, *given)["y"]})
    assert_same(run(known, chunk=4, step="compiled"), run(known, chunk=1, step="eager"), 1e-10)
    assert len(recorded) == 2


@needs_compiler
def test_where_nothing_can_be_built_apart_this_process_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(work: Any) -> str:
        raise ForkFailed("not today")

    monkeypatch.setattr("gossamer.engines.steps.compiled.run_in_fork", fails)
    described = experiment(dataset=samples([8] * 4, seed=1), model=lambda: nn.Linear(3, 3))
    listener = Listening()
    compiled = run(described, listener, chunk=4, step="compiled")
    assert listener.notes == []
    assert_same(compiled, run(described, chunk=1, step="eager"), 1e-10)


@needs_compiler
@pytest.mark.usefixtures("own_cache")
def test_a_long_run_says_what_it_measures_and_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A threshold of zero makes any run a long one."""
    for threshold in ("planning.choice.WORTH_MEASURING", "planning.trials.WORTH_COMPILING"):
        monkeypatch.setattr(f"gossamer.engines.{threshold}", 0.0)
    described = experiment(dataset=samples([8] * 4, seed=1), model=lambda: nn.Linear(3, 3))
    plain = run(described, chunk=1, step="eager")
    for kept in (False, True):
        listener = Listening()
        assert_same(run(described, listener), plain, 1e-10)
        assert any("measuring" in what for what in listener.waits) == (not kept)
        assert "measured, per client and step" in listener.how
        assert ("kept from an earlier run" in listener.how) == kept


class Own(nn.Linear):
    """A user's own module: its code may have changed under the same name."""


def hooked() -> nn.Module:
    module = nn.Linear(3, 3)
    module.register_forward_hook(lambda module, inputs, outputs: outputs)
    return module


@wraps(functional.cross_entropy)
def disguised(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum(1) + targets


@pytest.mark.parametrize(
    "thing",
    [
        Own(3, 3), nn.Sequential(nn.Linear(3, 3), Own(3, 3)), hooked(), lambda x: x, partial(torch.relu), [object()],
        disguised, torch.vmap(functional.relu),
    ],
    ids=["own", "inside", "hook", "function", "partial", "object", "disguised", "wrapped"],
)  # fmt: skip
def test_what_a_user_wrote_has_no_fingerprint(thing: Any) -> None:
    assert fingerprint(thing) is None


def test_a_fingerprint_tells_things_apart() -> None:
    frozen = nn.Linear(3, 3)
    frozen.weight.requires_grad_(False)  # a constant of the step
    things = [
        nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(3, 3).double(), nn.Linear(3, 3).eval(), frozen,
        nn.Sequential(nn.Linear(3, 3)),
        nn.Dropout(0.1), nn.Dropout(0.2), DFedAvg(), torch.zeros(2), torch.ones(2),
        1, 1.0, "1", None, [1, 2], (1, 2), {1: 2},
    ]  # fmt: skip
    names = [fingerprint(thing) for thing in things]
    assert None not in names
    assert len(set(names)) == len(things)
    assert fingerprint(nn.Linear(3, 3)) == names[0]


def test_a_layer_that_is_there_twice_is_not_two_layers() -> None:
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    chains = [nn.Sequential(*layers) for layers in ((a, a, b), (a, b, b), (a, b, a), (a, b, nn.Linear(3, 3)))]
    assert len({fingerprint(chain) for chain in chains}) == 4


@needs_compiler
def test_a_model_with_a_layer_that_is_there_twice() -> None:
    def twice() -> nn.Module:
        layer = nn.Linear(3, 3)
        return nn.Sequential(layer, nn.Tanh(), layer)

    described = experiment(dataset=samples([8] * 4, seed=1), model=twice)
    assert_same(run(described, chunk=4, step="compiled"), run(described, chunk=1, step="eager"), 1e-10)


def colour_images(clients: int) -> Dataset:
    random = torch.Generator().manual_seed(0)
    train = Samples(torch.randn(24, 3, 8, 8, generator=random), torch.arange(24) % 3)
    owners = tuple(part.numpy() for part in torch.arange(24).chunk(clients))
    return Dataset("noise", train, train, 3, (3, 8, 8), Scaling(), Augmentation(pad=2), clients=owners)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


@pytest.mark.parametrize(("dtype", "lr"), [("float64", 0.1), ("float32", 0.01)])
def test_images_with_their_channels_last(dtype: str, lr: float) -> None:
    described = experiment(dataset=colour_images(4), model=small_cnn, dtype=dtype, lr=lr)
    plain = run(described, chunk=1, step="eager", channels_last=False)
    ways = [(1, "eager"), (1, "traced"), (4, "traced")]
    for chunk, step in ways:
        listener = Listening()
        turned = run(described, listener, chunk=chunk, step=step, channels_last=True)
        assert "channels last" in listener.how
        assert_same(turned, plain, TOLERANCE[dtype])


@needs_compiler
def test_a_compiled_convolution_with_pooling() -> None:
    described = experiment(dataset=colour_images(4), model=small_cnn, batch_size=6)
    listener = Listening()
    compiled = run(described, listener, chunk=4, step="compiled", channels_last=True)
    assert not listener.notes
    assert_same(compiled, run(described, chunk=1, step="eager", channels_last=False), 1e-10)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("asked", [{}, {"chunk": 2}, {"chunk": 2, "channels_last": True}, {"step": "traced"}], ids=str)
def test_what_is_not_asked_for_is_measured(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> None:
    monkeypatch.setattr("gossamer.engines.planning.choice.WORTH_MEASURING", 0.0)
    described = experiment(dataset=colour_images(4), model=small_cnn)
    listener = Listening()
    found = run(described, listener, **asked)
    assert_same(found, run(described, chunk=1, step="eager", channels_last=False), 1e-10)
    assert "measured, per client and step" in listener.how
    chosen = listener.how.partition(" (")[0]
    assert f"{asked.get('chunk', '')} at a time" in chosen
    assert asked.get("step", "steps") in chosen
    if "channels_last" in asked:
        assert "channels last" in chosen


class Faster(DFedAvg):
    """A step that looks at the number of the round, every time."""

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return {"y": local["y"] - round.lr * (1 + round.number) * gradient(local["y"])}


class FasterOnce(DFedAvg):
    """A step that changes in one round only: the first and the last look alike."""

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return {"y": local["y"] - round.lr * (3 if round.number == ROUNDS - 2 else 1) * gradient(local["y"])}


class FasterUnpacked(DFedAvg):
    """The same, taken from all that a round holds."""

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        number, _, lr, *_ = round
        return {"y": local["y"] - lr * (3 if number == ROUNDS - 2 else 1) * gradient(local["y"])}


class Rooted(DFedAvg):
    """A step that needs the learning rate as a number."""

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return {"y": local["y"] - math.sqrt(round.lr) * gradient(local["y"])}


@pytest.mark.parametrize("method", [Faster, FasterOnce, FasterUnpacked, Rooted])
@pytest.mark.parametrize("chunk", [1, 3])
def test_a_step_that_cannot_be_recorded_is_taken_as_written_and_that_is_said(method: Any, chunk: int) -> None:
    described = experiment(method=method())
    listener = Listening()
    traced = run(described, listener, chunk=chunk, step="traced")
    assert_same(traced, run(described, chunk=1, step="eager"), 1e-10)
    (note,) = [note for note in listener.notes if "step" in note]
    assert "cannot be recorded" in note
    if method in (Faster, FasterOnce):
        assert "number of the round" in note


CALLED: list[str] = []


class Calls(DFedAvg):
    """Notes when its Python is called."""

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        CALLED.append("step")
        return super().step(state, local, gradient, round)

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        CALLED.append("finish")
        return super().finish(state, local, round)


class CallsByNumber(Calls):
    """What is after its steps looks at the number of the round."""

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        state, message = super().finish(state, local, round)
        return state, {"x": (1 + round.number) * message["x"]}


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize(("method", "recorded"), [(Calls, {"step", "finish"}), (CallsByNumber, {"step"})])
def test_a_round_is_recorded_as_a_whole_or_else_its_steps(method: Any, recorded: set[str], chunk: int) -> None:
    described = experiment(method=method(), dataset=samples([8] * 6, seed=1))
    calls, listener = [], Listening()
    for rounds in (ROUNDS, 2 * ROUNDS):
        CALLED.clear()
        traced = run(described.model_copy(update={"rounds": rounds}), listener, chunk=chunk, step="traced")
        calls.append(Counter(CALLED))
    assert {name for name in ("step", "finish") if calls[0][name] == calls[1][name]} == recorded
    assert not any("step" in note for note in listener.notes)
    assert_same(traced, run(described.model_copy(update={"rounds": 2 * ROUNDS}), chunk=1, step="eager"), 1e-10)


class Branching(nn.Module):
    """Decides by looking at its data, which neither `vmap` nor a recording can do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layer(inputs)
        return scores if scores.sum() > 0 else 2 * scores


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_with_a_branch_on_its_data_runs_one_client_at_a_time_and_as_written(workers: int) -> None:
    described = experiment(model=Branching)
    listener = Listening()
    fallback = run(described, listener, chunk=6, step="traced", workers=workers)
    assert f"on {workers} worker" in listener.how
    assert "1 at a time" in listener.how
    assert "vmap cannot run this model" in listener.how
    assert any("a step cannot be recorded" in words for words in listener.notes)
    assert_same(fallback, run(described, chunk=1, step="eager"), 1e-10)


def test_a_branch_is_said_where_nobody_asks_for_a_chunk() -> None:
    listener = Listening()
    run(experiment(model=Branching), listener)
    assert "1 at a time" in listener.how
    assert "vmap cannot run this model" in listener.how


def test_one_worker_speaks_for_all() -> None:
    listener = Listening()
    simulate(experiment(), observers=[listener], workers=3)
    assert [record.round for record in listener.records] == [1, 2, 3, 4]
    assert (len(listener.starts), len(listener.outcomes)) == (1, 1)
