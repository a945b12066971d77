"""Comparisons: variants differ in what is swept and in nothing else."""

import json
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gossamer import Experiment
from gossamer.commands.compare import parse_sweep
from gossamer.errors import RunFolderError
from gossamer.studies import StudyRun, execution, side_by_side

Command = Callable[..., Any]
Settings = Callable[..., list[str]]


def metrics(folder: Path) -> bytes:
    return (folder / "metrics.jsonl").read_bytes()


def test_variants_share_data_weights_and_batches(gossamer: Command, settings: Settings, place: Path) -> None:
    sweep = '--sweep=method=dfedavg,{name="dfedsam", rho=0.0},{name="dfedavgm", momentum=0.0},dfedavgm'
    answer = gossamer("compare", *settings(), sweep, "--seeds", "2", "--out", "c", "-q")
    assert answer.code == 0, answer.err
    assert answer.err == ""
    for seed in (0, 1):
        same = [metrics(place / "c" / f"{run}-seed{seed}") for run in ("dfedavg", "dfedsam-rho=0.0", "dfedavgm-momentum=0.0")]  # noqa: E501  # fmt: skip
        assert len(set(same)) == 1
        assert metrics(place / "c" / f"dfedavgm-seed{seed}") not in same
    assert metrics(place / "c" / "dfedavg-seed0") != metrics(place / "c" / "dfedavg-seed1")
    table = pd.read_csv(place / "c" / "table.csv", index_col="method")
    assert list(table.index) == ["dfedavg", "dfedsam(rho=0.0)", "dfedavgm(momentum=0.0)", "dfedavgm"]
    last = [json.loads(metrics(place / "c" / f"dfedavg-seed{s}").splitlines()[-1])["test_accuracy"] for s in (0, 1)]
    assert table.loc["dfedavg", "last accuracy"] == pytest.approx(sum(last) / 2)
    assert table.loc["dfedavg", "last accuracy spread"] == pytest.approx(abs(last[0] - last[1]) / 2**0.5)
    assert (place / "c" / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (place / "c" / "report.html").read_text()
    assert "dfedavgm" in page
    assert "<script src=" not in page  # it needs no network
    assert "2 seeds: mean ± standard deviation" in " ".join(answer.out.split())
    assert "±" in answer.out.split("dfedavg ")[1]
    assert "gossamer show c" in answer.out


def test_a_single_run_is_the_same_as_in_a_comparison(gossamer: Command, settings: Settings, place: Path) -> None:
    assert gossamer("compare", *settings(), "--sweep=graph=ring,full", "--out", "c", "-q").code == 0
    assert gossamer("run", *settings(graph="full"), "--out", "r", "-q").code == 0
    assert metrics(place / "c" / "full-seed0") == metrics(place / "r")


def test_without_anything_five_methods_with_three_seeds(gossamer: Command, settings: Settings, place: Path) -> None:
    answer = gossamer("compare", *settings(rounds=1))
    assert answer.code == 0
    (folder,) = (place / "runs").iterdir()
    assert folder.name.endswith("-compare-method")
    for method in ("d-psgd", "dfedavg", "dfedavgm", "dfedsam-mgs-rho=0.1", "local-g-ecl"):
        for seed in range(3):
            assert (folder / f"{method}-seed{seed}" / "final.safetensors").exists()
        label = method.replace("-rho=0.1", "(rho=0.1)")
        assert f"{label} (seed 0): round 1/1" in answer.err
    assert "4 clients · 1 round ·" in answer.out
    assert "· ring ·" in answer.out  # what all of them share is told
    assert f"gossamer compare runs/{folder.name}/comparison.toml --set graph=full" in answer.out
    following = gossamer("compare", folder / "comparison.toml", "--set", "graph=full", "--out", "next", "-q")
    assert following.code == 0
    assert "· full ·" in following.out


def test_a_plan_from_a_file(gossamer: Command, place: Path) -> None:
    (place / "plan.toml").write_text(
        'clients = 4\nrounds = 2\nseed = 5\nseeds = 2\nlocal_steps = 1\nmodel = "softmax"\n'
        'dataset = {name = "digits", train_samples = 200}\n[sweep]\n"partition.alpha" = [0.1, 10.0]\nclients = [3, 4]\n'
    )
    answer = gossamer("compare", "plan.toml", "--out", "c", "-q")
    assert answer.code == 0, answer.err
    folders = sorted(p.name for p in (place / "c").iterdir() if p.is_dir())
    assert len(folders) == 8
    assert folders[0] == "partition.alpha=0.1-clients=3-seed5"
    resolved = tomllib.loads((place / "c" / "partition.alpha=10.0-clients=4-seed6" / "experiment.toml").read_text())
    assert (resolved["partition"]["alpha"], resolved["clients"], resolved["seed"]) == (10.0, 4, 6)
    title = answer.out.split("partition.")[0]
    assert "2 rounds" in title
    assert "clients" not in title  # swept
    assert "dirichlet" not in title  # swept
    again = gossamer("resume", "c", "-q")
    assert again.code == 0
    assert again.out == answer.out
    fewer = gossamer("compare", "plan.toml", "--sweep=lr=0.1,0.2", "--seeds", "1", "-s", "rounds=1", "--out", "d", "-q")
    assert fewer.code == 0
    assert sorted(p.name for p in (place / "d").iterdir() if p.is_dir()) == ["0.1-seed5", "0.2-seed5"]


def test_sweeping_the_seed(gossamer: Command, settings: Settings, place: Path) -> None:
    assert gossamer("compare", *settings(rounds=1), "--sweep=seed=3,7", "--out", "c", "-q").code == 0
    assert metrics(place / "c" / "3-seed3") != metrics(place / "c" / "7-seed7")
    assert gossamer("run", *settings(rounds=1, seed=7), "--out", "r", "-q").code == 0
    assert metrics(place / "c" / "7-seed7") == metrics(place / "r")


def test_sweeping_the_seed_and_asking_for_seeds_is_refused(refused: Callable[..., str], settings: Settings) -> None:
    refused("compare", *settings(), "--sweep=seed=0,1", "--seeds", "2", says=("seeds", "would overlap"))


def test_one_that_diverges_does_not_stop_the_others(gossamer: Command, settings: Settings, place: Path) -> None:
    command = ["compare", *settings(local_steps=30), "--sweep=lr=1e6,0.1", "--out", "c"]
    answer = gossamer(*command)
    assert answer.code == 0
    assert "diverged in round 1" in answer.err
    assert "1000000.0: diverged in round 1" in answer.out
    assert (place / "c" / "0.1-seed0" / "final.safetensors").exists()
    assert not (place / "c" / "1000000.0-seed0" / "final.safetensors").exists()
    table = pd.read_csv(place / "c" / "table.csv", index_col="lr")
    assert table["best accuracy"].isna().tolist() == [True, False]
    again = gossamer(*command, "-q")
    assert again.code == 0
    assert "1000000.0: diverged in round 1" in again.out
    shown = gossamer("show", "c")
    assert shown.code == 0
    assert "diverged in round 1" in shown.out


def test_all_of_them_diverge(gossamer: Command, settings: Settings, place: Path) -> None:
    answer = gossamer("compare", *settings(local_steps=30), "--sweep=lr=1e6,1e7", "--out", "c", "-q")
    assert answer.code == 0
    assert answer.out.count("diverged in round 1") == 2
    assert (place / "c" / "table.csv").exists()
    assert not (place / "c" / "curves.png").exists()


def test_a_folder_swapped_under_a_comparison(
    gossamer: Command, refused: Callable[..., str], settings: Settings, place: Path
) -> None:
    command = ["compare", *settings(rounds=1), "--sweep=lr=0.1,0.2", "--out", "c", "-q"]
    assert gossamer(*command).code == 0
    (place / "c" / "0.1-seed0").rename(place / "aside")
    (place / "c" / "0.2-seed0").rename(place / "c" / "0.1-seed0")
    refused(*command, says=("0.1-seed0: is a run of another experiment (other lr)",))


def test_values_with_commas() -> None:
    assert parse_sweep("lr=0.1, 0.2") == ("lr", [0.1, 0.2])
    assert parse_sweep("lr=[0.1, 0.2]") == ("lr", [0.1, 0.2])
    assert parse_sweep("method=dfedavg,dfedsam") == ("method", ["dfedavg", "dfedsam"])
    assert parse_sweep('method={name="dfedsam", rho=1}') == ("method", [{"name": "dfedsam", "rho": 1}])
    assert parse_sweep('graph={name="circulant", offsets=[1, 2]},ring') == (
        "graph", [{"name": "circulant", "offsets": [1, 2]}, "ring"],
    )  # fmt: skip
    assert Experiment(graph=parse_sweep("graph=ring")[1][0]).graph == Experiment(graph="ring").graph


def test_tensorboard_events_of_every_run(gossamer: Command, settings: Settings, place: Path) -> None:
    command = ["compare", *settings(rounds=2), "--sweep=lr=0.1,0.2", "--out", "c", "--tensorboard", "-q"]
    assert gossamer(*command).code == 0
    for run in ("0.1-seed0", "0.2-seed0"):
        (events,) = (place / "c" / run / "tensorboard").glob("events.out.tfevents.*")
        assert b"test_accuracy" in events.read_bytes()


STUDY = """
clients = 4
rounds = 3
local_steps = 2
model = "softmax"
seeds = 2
targets = [0.1, 0.9]
baseline = "DFedAvg"
dataset = {name = "digits", train_samples = 120}
evaluate = {clients = 0, training = 0}

[[variant]]
label = "DFedAvg"

[[variant]]
label = "DFedAvgM"
method = {name = "dfedavgm", momentum = 0.5}

[[variant]]
label = "DFedSAM"
method = "dfedsam"
lr = 0.05

[sweep]
graph = ["ring", "full", "star"]
"""
#: Files that hold times, or identifiers drawn anew.
TIMED = ("timings.jsonl", "environment.json", "seconds.csv", "report.html")


def files(folder: Path) -> dict[Path, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in TIMED)
    return {path.relative_to(folder): path.read_bytes() for path in found}


def test_killed_half_way_and_resumed_it_gives_the_same_files(
    gossamer: Command, spawn: Callable[..., Any], place: Path
) -> None:
    (place / "study.toml").write_text(STUDY)
    assert gossamer("compare", "study.toml", "--out", "straight", "-q").code == 0
    half = place / "killed" / "DFedAvgM-graph=full-seed0"
    child = spawn("compare", "study.toml", "--out", "killed", "-q", hold=(half, 2))
    assert child.signal_after(half, 2, signal.SIGKILL).code == -signal.SIGKILL
    done = [path.parent.name for path in (place / "killed").glob("*/final.safetensors")]
    assert len(done) == 8
    before = {name: (place / "killed" / name / "metrics.jsonl").stat().st_mtime_ns for name in done}
    assert gossamer("resume", "killed", "-q").code == 0
    assert before == {name: (place / "killed" / name / "metrics.jsonl").stat().st_mtime_ns for name in done}
    straight = files(place / "straight")
    assert files(place / "killed") == straight
    assert {"table.csv", "table.md", "table.tex", "pivot.csv", "runs.csv", "differences.csv"} <= set(map(str, straight))


def test_a_budget_stops_between_runs_and_says_what_is_left(gossamer: Command, place: Path) -> None:
    (place / "study.toml").write_text(STUDY)
    answer = gossamer("compare", "study.toml", "--seeds", "1", "--budget", "1e-9", "--out", "c", "-q")
    assert answer.code == 0
    assert "9 of 9 runs are left" in answer.out
    assert "  DFedSAM, star (seed 0)" in answer.out
    assert "gossamer resume c --budget 1e-09" in answer.out
    assert sorted(path.name for path in (place / "c").iterdir()) == ["comparison.toml"]
    assert gossamer("resume", "c", "--budget", "60", "-q").code == 0
    assert (place / "c" / "table.csv").exists()
    # What is done counts as done, however little time there is.
    assert gossamer("resume", "c", "--budget", "1e-9", "-q").out.startswith("4 clients")


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_a_budget_that_is_no_time(refused: Callable[..., str], settings: Settings, minutes: str) -> None:
    refused("compare", *settings(), "--sweep=lr=0.1", "--budget", minutes, says=("budget", "more than 0"))


def test_targets_from_the_command_line(gossamer: Command, refused: Callable[..., str], settings: Settings) -> None:
    answer = gossamer("compare", *settings(), "--sweep=lr=0.1,0.2", "--target=0.01", "--target=1", "--out=c", "-q")
    assert answer.code == 0, answer.err
    assert "Until test accuracy ≥ 1 %" in answer.out
    assert "> 3" in answer.out.split("Until test accuracy ≥ 100 %")[1]
    refused("compare", *settings(), "--sweep=lr=0.1", "--target=90", says=("90 is no accuracy",))
    refused("compare", *settings(), "--sweep=lr=0.1", "--target=hits=1", says=("unknown metric 'hits'",))
    refused("compare", *settings(), "--sweep=lr=0.1", "--target=1", "--target=test_loss=1", says=("--target",))
    refused("compare", *settings(), "--sweep=lr=0.1", "--baseline=0.2", says=("baseline: '0.2'",))
    refused("show", "c", "--target=loss=1", says=("unknown metric 'loss'",))
    refused("show", "c", "--baseline=0.3", says=("baseline: '0.3'",))


def test_a_file_with_variants_is_a_comparison(refused: Callable[..., str], place: Path) -> None:
    (place / "study.toml").write_text(STUDY)
    refused("run", "study.toml", says=("[sweep]", "gossamer compare study.toml"))
    (place / "study.toml").write_text('[[variant]]\nmethod = "dfedavg"\n')
    refused("compare", "study.toml", says=("study.toml: variant 1", "needs a label"))
    (place / "study.toml").write_text("targets = [0.9]\n")
    refused("run", "study.toml", says=("the key 'targets'", "gossamer compare"))


@pytest.fixture
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs side by side, however short they are."""
    monkeypatch.setattr(execution, "runs_at_once", lambda *_: 2)


def test_runs_side_by_side_give_the_same_files(gossamer: Command, place: Path, request: pytest.FixtureRequest) -> None:
    (place / "study.toml").write_text(STUDY)
    assert gossamer("compare", "study.toml", "--out", "straight", "-q").code == 0
    request.getfixturevalue("two_at_once")
    answer = gossamer("compare", "study.toml", "--out", "beside")
    assert answer.code == 0, answer.err
    assert answer.err.count("round 3/3") == 18  # every run is observed here, in the first process
    assert files(place / "beside") == files(place / "straight")
    assert gossamer("compare", "study.toml", "--out", "none", "--budget", "1e-9", "-q").out.count("(seed ") == 18


def test_an_error_in_one_of_the_runs_side_by_side_ends_the_comparison(
    gossamer: Command, settings: Settings, place: Path, monkeypatch: pytest.MonkeyPatch, two_at_once: None
) -> None:
    def fails(run: StudyRun, *_: Any) -> None:
        raise RunFolderError(f"{run}: no space left")

    monkeypatch.setattr(execution, "run_once", fails)
    answer = gossamer("compare", *settings(), "--sweep=lr=0.1,0.2", "--out", "c", "-q")
    assert answer.code == 2
    assert "no space left" in answer.err
    assert "Traceback" not in answer.err


def test_runs_go_side_by_side_only_where_cores_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_WORKERS", raising=False)
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 8)
    monkeypatch.setattr(side_by_side.os, "getloadavg", lambda: (1.8, 0.0, 0.0))
    assert side_by_side.runs_at_once(2, 1e9, {}) == 3
    assert side_by_side.runs_at_once(8, 1e9, {}) == 1
    assert side_by_side.runs_at_once(1, 1e6, {}) == 1
    assert side_by_side.runs_at_once(1, 1e9, {"workers": 1}) == 1
