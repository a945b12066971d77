"""`gossamer network demo`: real processes with real TLS, shown while they learn; none is left behind."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gossamer.terminal import console

Command = Callable[..., Any]
SMALL = (
    "--peers", "3", "-s", "model=softmax", "-s", 'dataset={name="digits", train_samples=200}', "-s", "local_steps=2",
)  # fmt: skip


def events(run: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (run / "log.jsonl").read_text().splitlines()]


def finals(run: Path) -> float:
    return float(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["test_accuracy"])


def test_three_peers_learn(gossamer: Command, place: Path) -> None:
    answer = gossamer("network", "demo", *SMALL, "--rounds", 3, "--lose", 0.2, "--double", 0.1, "--out", "net")
    assert answer.code == 0, answer.text
    assert "3 peers · mutual TLS · dfedavg · ring · digits" in answer.out
    assert "20 % lost · 10 % doubled" in answer.out
    for name in ("alice", "bob", "carol"):
        shown = f"{100 * finals(place / 'net/runs' / name):.1f} %"
        assert re.search(rf"^ {name} +3 +\d\.\d+ +{shown} +\S+ k?B +\d+ *$", answer.out, re.MULTILINE), answer.out
        assert (place / "net/runs" / name / "final.safetensors").exists()
    assert re.search(r"^ best to worst +\d+\.\d points", answer.out, re.MULTILINE)
    assert "gossamer show net/runs" in answer.out
    assert gossamer("show", "net/runs").code == 0
    replayed = gossamer("network", "replay", "net/kits", "--runs", "net/runs")
    assert "3 peers, 3 rounds: the replay ends with the same models" in replayed.out, replayed.text


def test_a_regression_shows_its_loss(gossamer: Command, own_module: Callable[[str], str], place: Path) -> None:
    lab = own_module(
        "import numpy as np\nfrom gossamer import per_client\n"
        "def slopes():\n    x = np.random.default_rng(0).normal(size=(4, 12, 2))\n"
        "    return per_client([(each, each.sum(1)) for each in x[:3]], test=(x[3], x[3].sum(1)))\n"
    )
    parts = ("--peers", 3, "-s", "model=softmax", "-s", f"dataset={lab}:slopes", "-s", "loss=squared-error")
    answer = gossamer("network", "demo", *parts, "--rounds", 2, "--out", "net")
    assert answer.code == 0, answer.text
    assert "test loss" in answer.out
    assert "%" not in answer.out + answer.err
    assert "–" not in answer.out


def test_two_peers_talk_to_each_other(gossamer: Command, place: Path) -> None:
    answer = gossamer("network", "demo", *SMALL, "--peers", 2, "--rounds", 2, "--out", "net")
    assert answer.code == 0, answer.text
    assert "2 peers · mutual TLS · dfedavg · full · digits" in answer.out


def test_a_killed_peer_comes_back(
    gossamer: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "screen").open("w") as screen:  # as on a terminal
        monkeypatch.setattr(console, "err", Console(file=screen, force_terminal=True, width=120, height=30))
        answer = gossamer("network", "demo", *SMALL, "--rounds", 60, "--kill", "--out", "net")
    shown = (tmp_path / "screen").read_text()
    assert answer.code == 0, answer.text + shown
    assert events(place / "net/runs/bob").count("started") == 2
    assert "finished" in events(place / "net/runs/bob")  # and may then stay for the others
    assert re.search(r" bob +60 .* 2 times", answer.out)
    said = [shown.index(words) for words in ("bob killed with SIGKILL after", "bob started again", "bob is back, at")]
    assert said == sorted(said)
    assert "killed (SIGKILL)" in shown
    assert "bob away" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_it_leaves_no_process(spawn: Command, place: Path, number: int) -> None:
    demo = spawn("network", "demo", *SMALL, "--rounds", 100_000, "--out", "net")
    peers = demo.after(place / "net/runs/alice", 2)
    assert len(peers) == 3
    demo.send(number)
    answer = demo.wait()
    if number != signal.SIGKILL:
        assert answer.code == 130
        assert "stopped" in answer.err
    assert "Traceback" not in answer.text
    assert demo.all_gone(peers)


def test_a_peer_that_fails_ends_it(gossamer: Command, place: Path) -> None:
    answer = gossamer("network", "demo", *SMALL, "--rounds", 50, "-s", "lr=1e38", "--out", "net")
    assert answer.code == 1
    assert re.search(r"error: (alice|bob|carol): diverged in round 1: .* The other peers were stopped\.", answer.err)
    assert "what there is of it: net" in answer.err
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--method", "fedavg"), ("'fedavg' needs a server", "'dfedavg'")),
        (("--method", "dfedsma"), ("did you mean 'dfedsam'",)),
        (("--graph", "rign"), ("did you mean 'ring'",)),
        (("-s", "clients=4"), ("clients", "--peers")),
        (("-s", "model=lenet"), ("lenet",)),
        (("--out", "."), ("exists already",)),
    ],
)
def test_mistakes(refused: Command, place: Path, arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    (place / "something").touch()
    refused("network", "demo", *arguments, says=says)


def test_nothing_is_left_of_one_that_cannot_start(
    gossamer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = sorted(tmp_path.iterdir())
    assert gossamer("network", "demo", "-s", "model=lenet").code == 2
    assert sorted(tmp_path.iterdir()) == before


def test_without_a_folder_it_is_a_temporary_one(
    gossamer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = gossamer("network", "demo", *SMALL, "--peers", 2, "--rounds", 1, "--graph", "full", "-m", "dfedsgpsm")
    assert answer.code == 0, answer.text
    (folder,) = tmp_path.glob("gossamer-demo-*")
    assert f"written to {folder}" in answer.out
    assert (folder / "kits").stat().st_mode & 0o077 == 0
    shutil.rmtree(folder)
