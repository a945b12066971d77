"""Runs that go well, runs that diverge, and what they leave behind."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors import safe_open

from gossamer import Experiment, simulate
from gossamer.runs import RunFolder
from gossamer.terminal import progress

Command = Callable[..., Any]
Settings = Callable[..., list[str]]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_without_a_file_the_default_experiment_runs(gossamer: Command, place: Path) -> None:
    answer = gossamer("run", "--set=rounds=1", "--set=local_epochs=1")
    assert answer.code == 0, answer.err
    (folder,) = (place / "runs").iterdir()
    assert folder.name.endswith("-dfedavg-digits")
    assert f"gossamer show runs/{folder.name}" in answer.out
    resolved = tomllib.loads((folder / "experiment.toml").read_text())
    default = Experiment(rounds=1, local_epochs=1)
    assert Experiment(**resolved).digest == default.digest
    assert (resolved["clients"], resolved["graph"], resolved["local_epochs"]) == (16, "ring", 1)


def test_what_a_run_leaves(gossamer: Command, settings: Settings, place: Path) -> None:
    answer = gossamer("run", *settings(), "--out", "r")
    assert answer.code == 0, answer.err
    assert {p.name for p in (place / "r").iterdir()} == {
        "experiment.toml", "environment.json", "partition.json", "metrics.jsonl", "timings.jsonl", "checkpoints",
        "clients.jsonl", "best.safetensors", "final.safetensors",
    }  # fmt: skip
    rounds = metrics(place / "r")
    assert [m["round"] for m in rounds] == [1, 2, 3]
    assert rounds[-1]["bytes_total"] == 3 * 4 * 2 * 650 * 4  # rounds, clients, neighbours, parameters, bytes
    assert {"test_accuracy", "client_accuracy_worst", "train_loss", "generalisation_gap"} <= rounds[-1].keys()
    assert "client_accuracy_worst" not in rounds[0]  # its cadence is 5, but the last round is measured in full
    assert sum(json.loads((place / "r" / "partition.json").read_text())["sizes"]) == 200
    assert "torch" in json.loads((place / "r" / "environment.json").read_text())["packages"]
    with safe_open(place / "r" / "final.safetensors", framework="pt") as file:
        assert {name: tuple(file.get_tensor(name).shape) for name in file.keys()} == {  # noqa: SIM118
            "1.weight": (10, 64), "1.bias": (10,),
        }  # fmt: skip
    best = max(rounds, key=lambda m: m["test_accuracy"])
    assert f"best accuracy {100 * best['test_accuracy']:.1f} % in round {best['round']}" in answer.out


def test_a_file_with_settings_on_top(gossamer: Command, settings: Settings, place: Path) -> None:
    (place / "e.toml").write_text(
        'method = "dfedavg"\nclients = 4\nrounds = 9\nlocal_epochs = 3\nmodel = "softmax"\n'
        '[dataset]\nname = "digits"\ntrain_samples = 200\n[partition]\nname = "dirichlet"\nalpha = 0.1\n'
    )
    answer = gossamer(
        "run", "e.toml", "-s", "rounds=1", "-s", "method=dfedsam", "-s", "method.rho=0.2", "-s", "local_steps=2",
        "-s", 'partition={name="shards", classes_per_client=3}', "-s", "evaluate={every=0}", "-s", "clip=off",
        "--out", "r",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    resolved = tomllib.loads((place / "r" / "experiment.toml").read_text())
    assert resolved["method"] == {"name": "dfedsam", "rho": 0.2}
    assert resolved["partition"] == {"name": "shards", "classes_per_client": 3}
    assert resolved["evaluate"]["every"] == 0
    assert resolved["local_steps"] == 2
    assert "local_epochs" not in resolved
    assert resolved["rounds"] == 1


def test_toml_and_python_are_one_experiment(gossamer: Command, place: Path) -> None:
    text = (
        'clients = 4\nrounds = 2\nlr = 0.2\nmodel = "softmax"\nlocal_steps = 2\n[method]\nname = "dfedavgm"\n'
        'momentum = 0.5\n[dataset]\nname = "digits"\ntrain_samples = 200\n[evaluate]\nclients = 1\n'
    )
    experiment = Experiment(
        method={"name": "dfedavgm", "momentum": 0.5}, clients=4, rounds=2, lr=0.2, model="softmax", local_steps=2,
        dataset={"name": "digits", "train_samples": 200}, evaluate={"clients": 1},
    )  # fmt: skip
    (place / "e.toml").write_text(text)
    assert gossamer("run", "e.toml", "--out", "cli", "--quiet").code == 0
    run = simulate(experiment, out=place / "python")
    assert Experiment(**tomllib.loads(text)) == experiment
    assert Experiment(**tomllib.loads(text)).digest == experiment.digest
    table = [{k: v for k, v in row.items() if v == v} for row in run.metrics.to_dict("records")]
    assert metrics(place / "cli") == table
    for name in ("experiment.toml", "metrics.jsonl", "partition.json"):
        assert (place / "cli" / name).read_bytes() == (place / "python" / name).read_bytes()


@pytest.mark.parametrize("method", ["dfedavg", "d-psgd", "fedavg", '{name="dfedsam-mgs", rho=0.05}'])
def test_a_resolved_experiment_runs_again_to_the_same_bytes(
    gossamer: Command, settings: Settings, place: Path, method: str
) -> None:
    assert gossamer("run", *settings(method=method, local_steps=None, local_epochs=1), "--out", "a", "-q").code == 0
    assert gossamer("run", "a/experiment.toml", "--out", "b", "-q").code == 0
    for name in ("experiment.toml", "metrics.jsonl", "partition.json"):
        assert (place / "a" / name).read_bytes() == (place / "b" / name).read_bytes()


def test_progress_is_plain_lines_without_a_terminal(gossamer: Command, settings: Settings) -> None:
    answer = gossamer("run", *settings(), "--out", "r", "--verbose")
    lines = answer.err.splitlines()
    assert "650 parameters" in lines[0]
    assert [line.split("  ")[0] for line in lines[1:]] == [f"dfedavg: round {i}/3" for i in (1, 2, 3)]
    assert "\x1b" not in answer.text
    assert "accuracy" in lines[-1]
    assert "consensus" in lines[-1]


def test_progress_is_a_live_bar_on_a_terminal(
    gossamer: Command, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    answer = gossamer("run", *settings(), "--out", "r", "--verbose")
    assert answer.code == 0
    assert "round 3/3" in answer.err
    assert "consensus" in answer.err
    assert "\x1b[" in answer.err


def test_ctrl_c_says_how_to_go_on(gossamer: Command, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunFolder.record

    def press(self: RunFolder, metrics: dict[str, Any], *others: Any) -> None:
        if metrics["round"] == 2:
            raise KeyboardInterrupt
        record(self, metrics, *others)

    monkeypatch.setattr(RunFolder, "record", press)
    answer = gossamer("run", *settings(), "--out", "r", "-q")
    assert answer.code == 130
    assert answer.err == "\nstopped after round 1, checkpoint written. Go on with:  gossamer resume r\n"

    def press_early(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gossamer.commands.run.load_experiment", press_early)
    answer = gossamer("run", "-q")
    assert answer.code == 130
    assert answer.err == "\nstopped; nothing that was written is lost.\n"


@pytest.mark.parametrize("where", ["gossamer.simulation.launch.choose_plan", "gossamer.pages.figures.overview"])
def test_ctrl_c_anywhere_in_a_comparison_says_how_to_go_on(
    gossamer: Command, settings: Settings, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, press)
    answer = gossamer("compare", *settings(rounds=1), "--sweep=lr=0.1,0.2", "--out", "c", "-q")
    assert answer.code == 130
    assert "Go on with:  gossamer resume c\n" in answer.err


@pytest.mark.parametrize("width", [72, 80, 120])
def test_progress_stays_in_one_line(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gossamer: Command, width: int
) -> None:
    with (tmp_path / "screen").open("w") as screen:
        monkeypatch.setattr(progress, "err", Console(file=screen, force_terminal=True, width=width, height=30))
        sweep = '--sweep=method={name="dfedsam-mgs", rho=0.1, gossip_steps=2},dfedavg'
        assert gossamer("compare", *settings(rounds=3), sweep, "--out", "c").code == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", (tmp_path / "screen").read_text())
    last = [line for line in re.split(r"[\r\n]+", shown) if "took" in line]
    assert len(last) >= 2
    for line in last:
        assert len(line.rstrip()) <= width
        assert line.startswith(("[1/2] dfed", "[2/2] dfed"))
        assert re.search(r"round 3/3 accuracy \d+\.\d %  consensus \S+ took 00:\d\d", line), line


def test_quiet_shows_the_result_and_no_progress(gossamer: Command, settings: Settings) -> None:
    answer = gossamer("run", *settings(), "--out", "r", "--quiet")
    assert answer.err == ""
    assert "best accuracy" in answer.out


def test_tensorboard_events(gossamer: Command, settings: Settings, place: Path) -> None:
    assert gossamer("run", *settings(), "--out", "r", "--tensorboard", "-q").code == 0
    (events,) = (place / "r" / "tensorboard").glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert b"test_accuracy" in content
    assert b"consensus" in content


def test_a_run_stops_at_a_value_on_purpose_and_says_so(gossamer: Command, settings: Settings, place: Path) -> None:
    target = {"stop_at": '{metric="messages_total", value=16}'}
    answer = gossamer("run", *settings(rounds=9, **target), "--out", "r")
    assert answer.code == 0
    assert len(metrics(place / "r")) == 2  # a ring of four sends eight messages in a round
    ended = "ended on purpose after round 2: stop_at: messages_total"
    assert ended in answer.out
    shown = gossamer("show", "r")
    assert ended in shown.out
    assert "2/9" in shown.out
    again = gossamer("resume", "r")
    assert again.code == 0
    assert ended in again.err
    assert len(metrics(place / "r")) == 2
    compared = gossamer("compare", *settings(rounds=9, **target), "--sweep=lr=0.1,0.2", "--out", "c", "-q")
    assert compared.code == 0
    assert compared.out.count(ended) == 2


def test_python_dash_m(place: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "gossamer", "run", "nowhere.toml"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: nowhere.toml: cannot be read: No such file or directory\n"
    assert done.stdout == ""


# Divergence.


def test_divergence_stops_and_keeps_what_was_before(gossamer: Command, settings: Settings, place: Path) -> None:
    wild = settings(rounds=30, lr="1e6", local_steps=1)
    answer = gossamer("run", *wild, "--out", "r")
    assert answer.code == 1
    assert answer.err.count("error:") == 1
    kept = metrics(place / "r")
    assert kept
    assert all(m["local_loss"] is not None for m in kept)
    assert f"diverged in round {len(kept) + 1} at " in answer.err
    for words in ("client ", "not finite", "smaller lr", "clip", "gossamer show r", "--on-divergence continue"):
        assert words in answer.err
    shown = gossamer("show", "r")
    assert shown.code == 0
    assert f"diverged in round {len(kept) + 1}" in shown.out
    assert f"{len(kept)}/30" in shown.out
    assert (place / "r" / "curves.png").exists()

    again = gossamer("resume", "r")  # the same numbers end the same way
    assert again.code == 1
    assert metrics(place / "r") == kept
    onward = gossamer("resume", "r", "--on-divergence", "continue")
    assert onward.code == 0
    assert len(metrics(place / "r")) == 30
    assert metrics(place / "r")[: len(kept)] == kept
    shown = gossamer("show", "r").out
    assert "diverged, and went on without finite numbers" in shown
    assert "diverged in round" not in shown

    straight = gossamer("run", *wild, "--out", "s", "--on-divergence", "continue")
    assert straight.code == 0
    assert (place / "r" / "metrics.jsonl").read_bytes() == (place / "s" / "metrics.jsonl").read_bytes()


def test_divergence_in_the_very_first_round(gossamer: Command, settings: Settings, place: Path) -> None:
    answer = gossamer("run", *settings(lr="1e30", local_steps=9, clip=1e30), "--out", "r")
    assert answer.code == 1
    assert "diverged in round 1 " in answer.err
    assert "clip" not in answer.err.splitlines()[0].split("Try")[1]  # it has one
    shown = gossamer("show", "r")
    assert shown.code == 0
    assert "diverged in round 1 " in shown.out
    everything = gossamer("run", *settings(lr="1e30", local_steps=9), "--out", "c", "--on-divergence", "continue")
    assert everything.code == 0
    assert gossamer("show", "c").code == 0
