"""Several workers: what happens when one of them, or the command itself, is killed, and what is refused."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
Settings = Callable[..., list[str]]
ROUNDS = 8

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.fixture
def straight(gossamer: Command, settings: Settings, place: Path) -> Callable[..., Path]:
    """A run by one worker that nothing interrupts, to compare with."""

    def run(**changed: object) -> Path:
        arguments = settings(rounds=ROUNDS, checkpoint_every=2, **changed)
        assert gossamer("run", *arguments, "--workers", 1, "--out", "straight", "-q").code == 0
        return place / "straight"

    return run


def assert_same_record(one: Path, other: Path) -> None:
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    for name in ("final.safetensors", "best.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert not list(other.rglob("*.part"))


@pytest.mark.parametrize(("method", "workers", "then"), [("dfedavg", 2, 3), ("dfedadmm", 3, 1)])
def test_a_killed_worker_ends_the_run_and_another_number_of_workers_goes_on(
    gossamer: Command, spawn: Callable[..., Any], straight: Callable[..., Path], settings: Settings, place: Path,
    method: str, workers: int, then: int,
) -> None:  # fmt: skip
    reference, killed = straight(method=method), place / "killed"
    arguments = settings(rounds=ROUNDS, checkpoint_every=2, method=method)
    child = spawn("run", *arguments, "--workers", workers, "--out", "killed", hold=(killed, 5))
    processes = child.after(killed, 5)
    assert len(processes) == workers - 1
    os.kill(processes[-1], signal.SIGKILL)
    child.let_go()
    answer = child.wait()
    assert answer.code == 1
    assert answer.err.count("error:") == 1
    assert f"worker {workers - 1} of {workers} (process {processes[-1]}) was killed by SIGKILL." in answer.err
    assert "gossamer resume killed" in answer.err
    assert "Traceback" not in answer.text
    assert child.all_gone(processes)
    kept = (killed / "metrics.jsonl").read_bytes()
    assert (reference / "metrics.jsonl").read_bytes().startswith(kept)
    files = [path.name for path in (killed / "checkpoints").iterdir()]
    assert {name[:12] for name in files} == {"round-000002", "round-000004"}
    assert len(files) == 2 * workers  # every worker wrote its own clients
    onward = gossamer("resume", "killed", "--workers", then)
    assert onward.code == 0
    assert "going on after round 4" in onward.err
    assert_same_record(reference, killed)


def test_workers_do_not_outlive_the_command(
    gossamer: Command, spawn: Callable[..., Any], straight: Callable[..., Path], settings: Settings, place: Path
) -> None:
    reference, killed = straight(), place / "killed"
    arguments = settings(rounds=ROUNDS, checkpoint_every=2)
    child = spawn("run", *arguments, "--workers", 3, "--out", "killed", hold=(killed, 3))
    processes = child.after(killed, 3)
    assert len(processes) == 2
    assert child.signal_after(killed, 3, signal.SIGKILL).code == -signal.SIGKILL
    assert child.all_gone(processes)
    assert gossamer("resume", "killed", "--workers", 2, "-q").code == 0
    assert_same_record(reference, killed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_workers_after_a_round(
    gossamer: Command, spawn: Callable[..., Any], straight: Callable[..., Path], settings: Settings, place: Path,
    number: int,
) -> None:  # fmt: skip
    reference, stopped = straight(), place / "stopped"
    arguments = settings(rounds=ROUNDS, checkpoint_every=0)
    child = spawn("run", *arguments, "--workers", 2, "--out", "stopped", hold=(stopped, 3))
    processes = child.after(stopped, 3)
    answer = child.signal_after(stopped, 3, number)
    assert answer.code == 130
    done = len([json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()])
    assert f"stopped after round {done}, checkpoint written. Go on with:  gossamer resume stopped" in answer.err
    assert "Traceback" not in answer.err
    assert child.all_gone(processes)
    files = sorted(path.name for path in (stopped / "checkpoints").iterdir())
    assert files == [f"round-{done:06d}-clients-{clients}.safetensors" for clients in ("0-1", "2-3")]
    assert gossamer("resume", "stopped", "--workers", 1, "-q").code == 0
    assert (reference / "metrics.jsonl").read_bytes() == (stopped / "metrics.jsonl").read_bytes()


def test_a_signal_to_everyone_stops_everyone(
    spawn: Callable[..., Any], gossamer: Command, straight: Callable[..., Path], settings: Settings, place: Path
) -> None:
    """As a scheduler sends it when the time is up: to each process of a job."""
    reference, stopped = straight(), place / "stopped"
    arguments = settings(rounds=ROUNDS, checkpoint_every=0)
    child = spawn("run", *arguments, "--workers", 3, "--out", "stopped", hold=(stopped, 3))
    processes = child.after(stopped, 3)
    for process in processes:
        os.kill(process, signal.SIGTERM)
    answer = child.signal_after(stopped, 3, signal.SIGTERM)
    assert answer.code == 130
    assert "checkpoint written" in answer.err
    assert child.all_gone(processes)
    assert gossamer("resume", "stopped", "--workers", 2, "-q").code == 0
    assert (reference / "metrics.jsonl").read_bytes() == (stopped / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("number", ["0", "-1"])
def test_no_workers(refused: Callable[..., str], settings: Settings, number: str) -> None:
    says = ("workers: should be a whole number, at least 1", f"(got {number})")
    refused("run", *settings(), "--workers", number, "--out", "r", says=says)


@pytest.mark.parametrize("number", ["0", "-1"])
def test_no_workers_go_on_with_nothing(gossamer: Command, settings: Settings, number: str, place: Path) -> None:
    assert gossamer("run", *settings(), "--out", "r", "-q").code == 0
    answer = gossamer("resume", "r", "--workers", number)
    assert answer.code == 2
    assert f"workers: should be a whole number, at least 1 (got {number})" in answer.err
    answer = gossamer("compare", *settings(), "--sweep=lr=0.1,0.2", "--workers", number, "--out", "c")
    assert answer.code == 2
    assert f"workers: should be a whole number, at least 1 (got {number})" in answer.err


def test_more_workers_than_clients(gossamer: Command, settings: Settings, place: Path) -> None:
    answer = gossamer("run", *settings(), "--workers", 6, "--out", "r")
    assert answer.code == 0
    assert answer.err.count("note: 6 workers for 4 clients: 4 will do") == 1
    assert len(list((place / "r" / "checkpoints").iterdir())) == 4


@pytest.mark.parametrize("workers", [1, 2])
def test_a_place_for_the_state_that_cannot_be_made(
    refused: Callable[..., str], settings: Settings, place: Path, workers: int
) -> None:
    (place / "a file").write_text("")
    refused(
        "run", *settings(), "--workers", workers, "--spill", "a file/inside", "--out", "r",
        says=("--spill a file/inside: there is no folder", "Make it first"),
    )  # fmt: skip
    refused(
        "run", *settings(), "--workers", workers, "--spill", "a file", "--out", "r",
        says=("--spill a file: is not a folder",),
    )  # fmt: skip


def test_a_place_for_the_state(gossamer: Command, settings: Settings, place: Path) -> None:
    assert gossamer("run", *settings(), "--workers", 1, "--out", "kept", "-q").code == 0
    assert gossamer("run", *settings(), "--workers", 2, "--spill", "there", "--out", "spilled", "-q").code == 0
    assert list((place / "there").iterdir()) == []
    one, other = ((place / folder / "metrics.jsonl").read_bytes() for folder in ("kept", "spilled"))
    assert one == other


def test_a_run_folder_that_is_taken_is_refused_by_all_workers_in_one_voice(
    gossamer: Command, refused: Callable[..., str], settings: Settings, place: Path
) -> None:
    assert gossamer("run", *settings(), "--out", "r", "-q").code == 0
    for _ in range(3):
        refused("run", *settings(), "--workers", 3, "--out", "r", says=("r: holds a run already (finished)",))


OWN_MODEL = """
import torch
from torch import nn

class Allergic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs):
        if self.training and torch.is_grad_enabled() and len(inputs) == 7:
            raise LookupError("seven samples")
        return self.layer(inputs.flatten(1))
"""


def test_an_exception_in_a_worker_is_told_once(
    gossamer: Command, own_module: Callable[[str], str], settings: Settings, place: Path
) -> None:
    """The last of six clients holds 39 samples, the others 40: only there is a batch of seven."""
    module = own_module(OWN_MODEL)
    changed = {
        "model": f"{module}:Allergic", "dataset": '{name="digits", train_samples=239}', "partition": "iid",
        "clients": 6, "batch_size": 8, "local_steps": None, "local_epochs": 1,
    }  # fmt: skip
    answer = gossamer("run", *settings(**changed), "--workers", 2, "--chunk", 1, "--out", "r")
    assert answer.code == 2, answer.text
    assert answer.err.count("error:") == 1
    assert "error: round 1, client 5: LookupError: seven samples (" in answer.err
    assert "Traceback" not in answer.err
