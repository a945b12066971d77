"""What goes wrong in one worker is said once, with the reason, and leaves nothing behind."""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import Experiment, Observer, per_client, simulate
from gossamer.engines import ExecutionPlan
from gossamer.errors import ExperimentError, GossamerError, RunFolderError
from gossamer.experiment import prepare
from gossamer.methods import DFedAvg, Local, Message, Round, State
from gossamer.parts.user_code import LIBRARY_MODULES
from gossamer.runs.folder import EXPERIMENT
from gossamer.simulation import Diverged, Interrupted, RoundRecord
from gossamer.simulation.launch import open_folder
from gossamer.workers import Group, WorkerLost, as_group, can_fork, launch
from observers import Listening, Signalling
from problems import samples, tiny_net

pytestmark = pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux only")
CLIENTS = 6
#: Whoever waits longer than this waits in vain, however slow the machine.
SECONDS = 300
#: Processes that other tests have left to this one.
OTHERS: set[int] = set()
#: What depends on who is quicker is tried so many times.
TRIES = 5


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After whatever happened: no worker, and the process as it was."""
    before = signal.getsignal(signal.SIGCHLD)
    OTHERS.clear()
    OTHERS.update(children())
    yield
    assert children() == []
    assert signal.getsignal(signal.SIGCHLD) == before
    # And it works the next time.
    assert as_group(2, torch.device("cpu"), lambda group: group.all_sum(torch.ones(1)).item()) == 2


def children() -> list[int]:
    """The processes that this one has started, apart from those that other tests keep for later."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = status.read_text().partition(" (")
            _, _, fields = rest.rpartition(") ")
            command = (status.parent / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
        of_others = "from multiprocessing." in command or int(number) in OTHERS
        if int(fields.split()[1]) == os.getpid() and not of_others:
            found.append(int(number))
    return found


def experiment(**changed: Any) -> Experiment:
    settings: dict[str, Any] = {
        "method": "dfedavg", "dataset": samples([4] * CLIENTS, seed=1), "model": tiny_net, "batch_size": 4,
        "local_steps": 2, "rounds": 3, **changed,
    }  # fmt: skip
    return Experiment(clients=CLIENTS, **settings)


class Allergic(nn.Module):
    """Cannot stand one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.max() > 1e6:
            raise LookupError("a sample it cannot stand")
        scores: Tensor = self.layer(inputs)
        return scores


def poisoned(client: int) -> Experiment:
    """One client holds that sample."""
    rng = np.random.default_rng(0)
    held = [(rng.normal(size=(4, 3)), rng.integers(3, size=4)) for _ in range(CLIENTS)]
    held[client][0][:] = 1e7
    return experiment(dataset=per_client(held, held[0], classes=3), model=Allergic)


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong in this file is not taken for a mistake in a user's code, but for a bug."""
    module = sys.modules["gossamer.parts.user_code"]  # `gossamer.parts.user_code` is the function of that name
    monkeypatch.setattr(module, "LIBRARY_MODULES", LIBRARY_MODULES | {__name__.partition(".")[0]})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_in_a_users_code_is_told_with_its_line(workers: int) -> None:
    where = r"\(/.*/test_failures\.py, line \d+, in forward\)"
    with pytest.raises(GossamerError, match=rf"^round 1, client 5: LookupError: a sample .* stand {where}$") as told:
        simulate(poisoned(CLIENTS - 1), workers=workers)
    assert told.value.exit_code == 2


#: One for each step that `Leaving` has taken.
CALLS: list[int] = []


class Leaving(nn.Module):
    """Ends the process that it runs in, as no module should, after some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # not in evaluation
            CALLS.append(1)
            if len(CALLS) == 10:
                sys.exit(0)
        scores: Tensor = self.layer(inputs)
        return scores


@pytest.mark.parametrize("workers", [1, 2])
def test_a_users_code_that_ends_the_process_is_a_mistake(workers: int) -> None:
    CALLS.clear()
    with pytest.raises(ExperimentError, match=r"^round \d, client \d: SystemExit: 0 \(.*line \d+, in forward\)$"):
        simulate(experiment(model=Leaving), workers=workers, chunk=1, step="eager")


class OtherMessage(DFedAvg):
    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x" if round.number < 1 else "z": local["y"]}


class ShortMessage(DFedAvg):
    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x": local["y"] if round.number < 1 else local["y"][:5]}


class OtherState(DFedAvg):
    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state if round.number < 1 else state | {"z": local["y"]}, {"x": local["y"]}


class NoState(DFedAvg):
    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"]} if round.number < 1 else None  # type: ignore[return-value]


class ShortState(DFedAvg):
    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"] if round.number < 1 else mixed["x"][:5]}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("method", [OtherMessage, ShortMessage, OtherState, NoState, ShortState])
def test_a_method_that_gives_something_else_in_a_later_round_is_refused(method: Any, chunk: int, workers: int) -> None:
    with pytest.raises(ExperimentError, match=r"^round 2: the method's `(finish|receive)` gives "):
        simulate(experiment(method=method(), rounds=3), workers=workers, chunk=chunk)


class Exploding(DFedAvg):
    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"] * (1.0 if round.number < 2 else float("inf"))}


@pytest.mark.parametrize("workers", [1, 2])
def test_models_that_break_in_the_last_round_are_noticed(workers: int, tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"^diverged in round 3: the loss or the model is not finite") as caught:
        simulate(experiment(method=Exploding(), rounds=3), workers=workers, out=tmp_path / "r")
    assert list(caught.value.run.metrics["round"]) == [1, 2]


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("workers", [2, 3])
def test_an_exception_in_one_worker_names_the_worker_and_the_reason(workers: int, tmp_path: Path) -> None:
    for number in range(TRIES):
        with pytest.raises(WorkerLost) as lost:
            simulate(poisoned(CLIENTS - 1), workers=workers, out=tmp_path / str(number))
        words = str(lost.value)
        assert f"worker {workers - 1} of {workers} (process " in words
        assert "failed: LookupError: a sample it cannot stand" in words
        assert words.count("Traceback") == 1  # it may be a bug, so where it was is told
        assert f"gossamer resume {tmp_path / str(number)}" in words
        assert lost.value.exit_code == 1


@pytest.mark.parametrize(
    ("code", "how"), [(3, "ended without an error message, with exit code 3"), (0, "ended before the others")]
)
def test_a_worker_that_just_ends_is_named_with_its_exit_code(code: int, how: str) -> None:
    def work(group: Group) -> None:
        if group.rank == 2:
            os._exit(code)
        group.barrier()

    for _ in range(TRIES):
        with pytest.raises(WorkerLost, match=rf"^worker 2 of 3 \(process \d+\) {how}\.$"):
            as_group(3, torch.device("cpu"), work)


def test_a_long_error_is_told_in_part() -> None:
    """Nobody hears a worker before it has ended, and a pipe holds only so much."""

    def work(group: Group) -> None:
        if group.rank:
            raise LookupError("ü" * 1_000_000)
        group.barrier()

    with pytest.raises(WorkerLost, match=r"^worker 1 of 2 \(process \d+\) failed: LookupError: ü{1000}"):
        as_group(2, torch.device("cpu"), work)


#: Groups that end in every way, in a process where nobody else opens and closes anything.
GROUPS = """
import os, re, signal, torch
from gossamer.workers import WorkerLost, as_group

def ends(group):
    group.barrier()

def fails(group):
    if group.rank == 1:
        raise LookupError
    group.barrier()

def is_killed(group):
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()

def are_killed(group):
    if group.rank:  # one after the other, while the first one is being told
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()

def is_told_to_end(group):
    if group.rank == 1:  # a scheduler tells all processes at once, and it is the first one that says so
        os.kill(os.getpid(), signal.SIGTERM)
    group.barrier()

def opened():
    return sorted(os.listdir("/proc/self/fd"))

before = opened()
for work in (ends, fails, is_killed, are_killed, is_told_to_end) * 5:
    try:
        as_group(3, torch.device("cpu"), work)
    except WorkerLost as error:
        print(re.sub(r".* [(]process [0-9]+[)] |[:.](.|\\n)*", "", str(error)))
print(before == opened())
"""


def in_a_process_of_its_own(script: str) -> "subprocess.CompletedProcess[str]":
    """Not measured: what measures coverage hears SIGTERM too."""
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, env=unmeasured
    )


def test_no_descriptor_is_left_open() -> None:
    done = in_a_process_of_its_own(GROUPS)
    ends = ["failed", "was killed by SIGKILL", "was killed by SIGKILL", "ended before the others"]
    assert done.stdout.splitlines() == [*ends * 5, "True"], done.stderr


@pytest.mark.usefixtures("ours")
def test_an_exception_in_the_first_worker_is_that_exception() -> None:
    """The others leave when it does, which is no reason."""
    for _ in range(TRIES):
        with pytest.raises(LookupError, match="a sample it cannot stand"):
            simulate(poisoned(2), workers=2, chunk=1)


def test_a_refusal_by_the_first_worker_is_that_refusal(tmp_path: Path) -> None:
    (tmp_path / "a letter.txt").write_text("dear client")
    for _ in range(TRIES):
        with pytest.raises(RunFolderError, match="exists and is not a run folder"):
            simulate(experiment(), workers=2, out=tmp_path)


def test_a_refusal_by_all_workers_is_said_once() -> None:
    for _ in range(TRIES):
        with pytest.raises(GossamerError, match=r"^--spill /proc/nowhere: cannot be written: [^\n]*$") as refusal:
            simulate(experiment(), workers=2, spill="/proc/nowhere")
        assert refusal.value.exit_code == 2


@pytest.mark.parametrize("workers", [2, 3])
def test_a_divergence_is_a_divergence(workers: int, tmp_path: Path) -> None:
    for number in range(TRIES):
        with pytest.raises(Diverged, match="diverged in round 1 at 6 clients") as end:
            simulate(experiment(lr=1e30), workers=workers, out=tmp_path / str(number))
        assert end.value.run.ending.reason == str(end.value)
        assert "diverged" in (tmp_path / str(number) / "stopped.json").read_text()


def test_an_interrupt_is_an_interrupt(tmp_path: Path) -> None:
    for number in range(TRIES):
        with pytest.raises(Interrupted) as stop:
            simulate(
                experiment(rounds=9),
                workers=2,
                observers=[Signalling(signal.SIGINT, after=2)],
                out=tmp_path / str(number),
            )
        assert stop.value.folder == tmp_path / str(number)
        assert stop.value.round == 2


class Murderer(Observer):
    """Kills a worker when a round is over."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.victim = 0

    def round(self, record: RoundRecord) -> bool:
        if record.round == 2:
            self.victim = max(children())
            os.kill(self.victim, self.number)
        return False


@pytest.mark.parametrize(("workers", "number"), [(2, signal.SIGKILL), (3, signal.SIGSEGV)])
def test_a_worker_that_is_killed_is_named_with_the_signal(
    workers: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers need not show where they were: it is no fault of theirs.
    monkeypatch.setattr(launch, "die_with_parent", lambda parent: faulthandler.disable())
    for _ in range(2):
        observer = Murderer(number)
        with pytest.raises(WorkerLost) as lost:
            simulate(experiment(rounds=20), workers=workers, observers=[observer])
        words = f"worker {workers - 1} of {workers} (process {observer.victim}) was killed by {number.name}."
        assert str(lost.value).startswith(words)
        assert ("when memory runs out" in str(lost.value)) == (number == signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_does_not_start_is_not_waited_for(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies, or hangs, before it could join the others."""
    monkeypatch.setattr(launch, "die_with_parent", lambda parent: os.kill(os.getpid(), number))
    monkeypatch.setattr(launch, "START_TIMEOUT", 60.0 if number == signal.SIGKILL else 0.5)
    says = "was killed by SIGKILL" if number == signal.SIGKILL else "did not start within 0.5 s.*with one worker"
    with pytest.raises(WorkerLost, match=rf"^worker 1 of 2 \(process \d+\) {says}"):
        simulate(experiment(), workers=2)
    monkeypatch.undo()


@pytest.mark.usefixtures("ours")
def test_a_run_in_a_thread_of_its_own_has_workers_too() -> None:
    """Where no signal can be caught."""
    found: list[Any] = []

    def work() -> None:
        found.append(simulate(experiment(dtype="float64"), workers=3))
        try:
            simulate(poisoned(CLIENTS - 1), workers=2)
        except WorkerLost as error:
            found.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SECONDS)
    assert len(found) == 2
    alone = simulate(experiment(dtype="float64"), workers=1)
    torch.testing.assert_close(found[0].vectors, alone.vectors, rtol=0, atol=1e-10)
    assert "failed: LookupError: a sample it cannot stand" in found[1]


def test_more_workers_than_clients_is_said_and_done_with_fewer() -> None:
    observer = Listening()
    run = simulate(experiment(dtype="float64"), workers=9, observers=[observer])
    assert observer.notes == ["9 workers for 6 clients: 6 will do"]
    alone = simulate(experiment(dtype="float64"), workers=1)
    torch.testing.assert_close(run.vectors, alone.vectors, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, r"workers: should be a whole number, at least 1 \(got 0\)"),
        ({"workers": -1}, r"workers: .* \(got -1\)"),
        ({"workers": 1.5}, r"workers: .* \(got 1.5\)"),
        ({"workers": True}, r"workers: .* \(got True\)"),
        ({"chunk": 0}, r"chunk: should be a whole number, at least 1 \(got 0\)"),
        ({"step": "nonsense"}, r"step: should be 'eager' or .*'compiled' or 'lanes' \(got 'nonsense'\)"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        simulate(experiment(), **options)


def test_clients_at_a_time_that_there_are_not_is_said() -> None:
    listener = Listening()
    simulate(experiment(), workers=2, chunk=99, observers=[listener])
    assert listener.notes == ["3 clients at a time, not 99 as asked: a worker has 3 clients"]


def test_a_restart_that_only_one_worker_knows_of_is_one_for_all(tmp_path: Path) -> None:
    """A launcher counts restarts for each machine, and may tell the first worker of none."""
    described = experiment()
    simulate(described, workers=2, out=tmp_path / "unfinished")
    assert (tmp_path / "unfinished" / EXPERIMENT).is_file()

    def work(group: Group) -> tuple[str, bool]:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(group.rank)
        path = tmp_path / ("unfinished" if group.rank else "new")
        folder, going_on = open_folder(group, path, False, prepare(described), ExecutionPlan())
        return folder.path.name, going_on

    try:
        assert as_group(2, torch.device("cpu"), work) == ("unfinished", True)
    finally:
        del os.environ["TORCHELASTIC_RESTART_COUNT"]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_number_of_workers_that_means_nothing_in_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_WORKERS", value)
    with pytest.raises(ExperimentError, match=rf"GOSSAMER_WORKERS.*{value}"):
        simulate(experiment())


def test_a_number_of_workers_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_WORKERS", "7")
    observer = Listening()
    simulate(experiment(), observers=[observer])
    assert observer.notes == ["7 workers for 6 clients: 6 will do"]


#: A pool ends its processes by SIGTERM. One with a handler in Python may hear it just before it waits, and wait for
#: ever; and one that collects what gRPC has left behind hangs as well. So neither is there.
POOL = """
import multiprocessing
from gossamer import Experiment, simulate
from gossamer.errors import ExperimentError

def run(workers):
    try:
        return len(simulate(Experiment(clients=6, rounds=1, local_steps=1), workers=workers).vectors)
    except ExperimentError as error:
        return error

with multiprocessing.get_context("fork").Pool(1) as pool:
    print(*pool.map(run, [None, 2]), sep="\\n")
"""


def test_a_process_of_somebody_elses_pool_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a process may have no children."""
    monkeypatch.delenv("GOSSAMER_WORKERS")
    done = in_a_process_of_its_own(POOL)
    alone, refused = done.stdout.splitlines()
    assert alone == str(CLIENTS), done.stderr
    assert refused.startswith("workers: they cannot be forked here")
