"""Interruptions of every kind: what is left can be gone on with, to the very bytes of an uninterrupted run."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

Command = Callable[..., Any]
Settings = Callable[..., list[str]]
ROUNDS = 10


@pytest.fixture
def straight(gossamer: Command, settings: Settings, place: Path) -> Callable[..., Path]:
    """A run that nothing interrupts, to compare with."""

    def run(**changed: object) -> Path:
        assert gossamer("run", *settings(rounds=ROUNDS, **changed), "--out", "straight", "-q").code == 0
        return place / "straight"

    return run


def assert_same(one: Path, other: Path) -> None:
    """The same metrics, the same vectors of every client, the same models."""
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    last = f"checkpoints/round-{ROUNDS:06d}.safetensors"
    vectors, others = load_file(one / last), load_file(other / last)
    assert vectors.keys() == others.keys()
    assert all(torch.equal(vectors[name], others[name]) for name in vectors)
    for name in ("final.safetensors", "best.safetensors"):
        model, twin = load_file(one / name), load_file(other / name)
        assert all(torch.equal(model[part], twin[part]) for part in model)
    assert not list(other.rglob("*.part"))


def whole_lines(folder: Path) -> int:
    content = (folder / "metrics.jsonl").read_text()
    assert content == "" or content.endswith("\n")
    return len([json.loads(line) for line in content.splitlines()])


@pytest.mark.parametrize(("cadence", "method"), [(2, "dfedavgm"), (0, "dfedavg")])
def test_kill_and_resume(
    gossamer: Command, spawn: Callable[..., Any], straight: Callable[..., Path], settings: Settings, place: Path,
    cadence: int, method: str,
) -> None:  # fmt: skip
    changed = {"checkpoint_every": cadence, "method": method}
    reference, killed = straight(**changed), place / "killed"
    child = spawn("run", *settings(rounds=ROUNDS, **changed), "--out", "killed", hold=(killed, 5))
    assert child.signal_after(killed, 5, signal.SIGKILL).code == -signal.SIGKILL
    assert not (killed / "final.safetensors").exists()
    before = (killed / "metrics.jsonl").read_bytes()
    assert (reference / "metrics.jsonl").read_bytes().startswith(before)
    assert "unfinished: 'gossamer resume killed'" in gossamer("show", "killed").out
    answer = gossamer("resume", "killed")
    assert answer.code == 0
    words = "going on after round 4" if cadence else "has no checkpoint: starting again from the beginning"
    assert words in answer.err
    assert_same(reference, killed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_and_resume(
    gossamer: Command, spawn: Callable[..., Any], straight: Callable[..., Path], settings: Settings, place: Path,
    number: int,
) -> None:  # fmt: skip
    reference, stopped = straight(), place / "stopped"
    child = spawn("run", *settings(rounds=ROUNDS), "--out", "stopped", hold=(stopped, 3))
    answer = child.signal_after(stopped, 3, number)
    assert answer.code == 130
    done = whole_lines(stopped)
    assert f"stopped after round {done}, checkpoint written. Go on with:  gossamer resume stopped" in answer.err
    assert "Traceback" not in answer.err
    assert [p.name for p in (stopped / "checkpoints").iterdir()] == [f"round-{done:06d}.safetensors"]
    onward = gossamer("resume", "stopped")
    assert onward.code == 0
    assert f"going on after round {done}" in onward.err
    assert_same(reference, stopped)


def test_an_interrupted_comparison_names_itself(
    gossamer: Command, spawn: Callable[..., Any], settings: Settings, place: Path
) -> None:
    command = ["compare", *settings(rounds=4), "--sweep=lr=0.1,0.2", "--seeds", "2"]
    assert gossamer(*command, "--out", "straight", "-q").code == 0
    second = place / "c" / "0.1-seed1"
    answer = spawn(*command, "--out", "c", hold=(second, 2)).signal_after(second, 2, signal.SIGINT)
    assert answer.code == 130
    assert "Go on with:  gossamer resume c\n" in answer.err
    assert not (place / "c" / "0.2-seed0").exists()
    onward = gossamer("resume", "c")
    assert onward.code == 0
    assert "(seed 1): going on after round " in onward.err  # the one it was in when it was asked to stop
    assert "(seed 0): round 1/4" in onward.err.split("going on")[1]
    assert "(seed 0): round 1/4" not in onward.err.split("going on")[0]  # finished before, and taken as it is
    for run in ("0.1-seed0", "0.1-seed1", "0.2-seed0", "0.2-seed1"):
        one, other = (place / folder / run / "metrics.jsonl" for folder in ("straight", "c"))
        assert one.read_bytes() == other.read_bytes()
    again = gossamer(*command, "--out", "c", "-q")  # the very same comparison: all of it is there
    assert again.code == 0


@pytest.mark.parametrize(
    ("limit", "cadence", "file"), [(9000, 2, "round-000002.safetensors"), (4000, 0, "metrics.jsonl")]
)
def test_a_full_disk(
    gossamer: Command, spawn: Callable[..., Any], straight: Callable[..., Path], settings: Settings, place: Path,
    limit: int, cadence: int, file: str,
) -> None:  # fmt: skip
    """The limit on file sizes stops a write half-way, exactly as a full disk does."""
    changed = {"checkpoint_every": cadence, "evaluate": "{clients=1, training=1}"}
    reference = straight(**changed)
    answer = spawn("run", *settings(rounds=ROUNDS, **changed), "--out", "full", limit=limit).wait()
    assert answer.code == 2
    assert answer.err.count("error:") == 1
    assert "Traceback" not in answer.err
    for words in (f"{file}: cannot be written", "File too large", "is kept"):
        assert words in answer.err
    done = whole_lines(place / "full")
    assert 0 < done < ROUNDS
    assert not list((place / "full").rglob("*.part"))
    assert gossamer("resume", "full").code == 0
    assert_same(reference, place / "full")


def test_a_disk_that_is_full_from_the_start(
    gossamer: Command, spawn: Callable[..., Any], settings: Settings, place: Path
) -> None:
    answer = spawn("run", *settings(), "--out", "full", limit=100).wait()
    assert answer.code == 2
    assert "full/environment.json: cannot be written: File too large" in answer.err
    assert not (place / "full").exists()  # so the same command works as soon as there is room
    assert gossamer("run", *settings(), "--out", "full", "-q").code == 0


def test_a_finished_run_is_left_alone(gossamer: Command, straight: Callable[..., Path], place: Path) -> None:
    folder = straight()
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}
    answer = gossamer("resume", "straight")
    assert answer.code == 0
    assert "straight: is finished already; there is nothing left to do" in answer.err
    assert "read from straight" in answer.out
    assert "written to" not in answer.out
    assert "best accuracy" in answer.out
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()} == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def other_round(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(b'"round":"8"') == 1
    path.write_bytes(content.replace(b'"round":"8"', b'"round":"7"'))


def empty(path: Path) -> None:
    path.write_bytes(b"")


made: list[Path] = []


@pytest.fixture
def half(spawn: Callable[..., Any], settings: Settings, place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of rounds 6 and 8, killed after that: made once, a copy for each test."""
    if made:
        return Path(shutil.copytree(made[0], place / "half"))
    child = spawn("run", *settings(rounds=ROUNDS, checkpoint_every=2), "--out", "half", hold=(place / "half", 9))
    assert child.signal_after(place / "half", 9, signal.SIGKILL).code == -signal.SIGKILL
    assert sorted(p.name[6:12] for p in (place / "half" / "checkpoints").iterdir()) == ["000006", "000008"]
    made.append(Path(shutil.copytree(place / "half", tmp_path_factory.mktemp("killed") / "half")))
    return place / "half"


@pytest.mark.parametrize("damage", [cut, flip, other_round, empty])
def test_a_damaged_checkpoint(
    gossamer: Command, straight: Callable[..., Path], half: Path, damage: Callable[[Path], None]
) -> None:
    reference = straight(checkpoint_every=2)
    damage(half / "checkpoints" / "round-000008.safetensors")
    answer = gossamer("resume", "half")
    assert answer.code == 0
    assert "round-000008.safetensors: damaged: " in answer.err
    assert "Going back to the checkpoint before it" in answer.err
    assert "going on after round 6" in answer.err
    assert_same(reference, half)


def test_all_checkpoints_damaged(gossamer: Command, straight: Callable[..., Path], half: Path) -> None:
    reference = straight(checkpoint_every=2)
    for path in (half / "checkpoints").iterdir():
        cut(path)
    answer = gossamer("resume", "half", "--quiet")  # even quiet: this must be known
    assert answer.code == 0
    assert answer.err.count("damaged: ") == 2
    assert answer.err.count("Going back") == 1
    assert "half: has no whole checkpoint: starting again from the beginning" in answer.err
    assert_same(reference, half)


def test_a_torn_last_line(gossamer: Command, straight: Callable[..., Path], half: Path) -> None:
    reference = straight(checkpoint_every=2)
    with (half / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 10, "lr": 0.0\x00\xff')
    assert gossamer("show", "half").code == 0
    assert gossamer("resume", "half").code == 0
    assert_same(reference, half)


def test_what_cannot_be_resumed(gossamer: Command, refused: Callable[..., str], half: Path) -> None:
    kept = (half / "experiment.toml").read_text()
    (half / "experiment.toml").write_text(kept.replace("lr = 0.1", "lr = 0.2"))
    refused("resume", "half", says=("round-000008.safetensors", "checkpoint of another experiment", "edited"))
    (half / "experiment.toml").write_text(kept.replace("rounds = 10", "rouns = 10"))
    refused("show", "half", says=("half/experiment.toml", "rounds"))
    for spoilt in (kept.replace("rounds = 10", "rouns = 10"), ""):
        (half / "experiment.toml").write_text(spoilt)
        refused("resume", "half", says=("half/experiment.toml: does not say how many rounds",))
    (half / "experiment.toml").write_text("kind = 1\n" + kept)
    refused("resume", "half", says=("half/experiment.toml: unknown key 'kind'",))
    (half / "experiment.toml").write_text(kept)
    lines = (half / "metrics.jsonl").read_text().splitlines(keepends=True)
    (half / "metrics.jsonl").write_text("".join(lines[:3]))
    refused("resume", "half", says=("metrics.jsonl: holds 3 whole rounds", "checkpoint is of round 8", "delete"))
