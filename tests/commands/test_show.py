"""`gossamer show`: runs side by side, and their curves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

Command = Callable[..., Any]
Settings = Callable[..., list[str]]


def test_one_run(gossamer: Command, settings: Settings, place: Path) -> None:
    gossamer("run", *settings(method='{name="dfedsam", rho=0.05}'), "--out", "r", "-q")
    answer = gossamer("show", "r")
    assert answer.code == 0
    assert "dfedsam(rho=0.05)" in answer.out
    assert "3/3" in answer.out
    assert "unfinished" not in answer.out
    assert "written to r/curves.png" in answer.out
    assert (place / "r" / "curves.png").stat().st_size > 1000


def test_several_runs(gossamer: Command, settings: Settings, place: Path) -> None:
    for name, lr in (("a/run", 0.1), ("b/run", 0.2), ("c", 0.3)):
        gossamer("run", *settings(lr=lr), "--out", name, "-q")
    answer = gossamer("show", "a/run", "b/run", "c", "--out", "pictures/all")
    assert answer.code == 0
    assert (place / "pictures" / "all" / "curves.png").exists()
    for name in ("a/run", "b/run", "c"):  # of the same name, told apart by their paths
        assert f" {name} " in answer.out
    beside = gossamer("show", "a/run", "c")
    assert beside.code == 0
    assert (place / "curves.png").exists()


def test_a_comparison_is_shown_as_its_own_table(gossamer: Command, settings: Settings, place: Path) -> None:
    sweep = ["--sweep=method=dfedavg,dfedsam", "--seeds", "2", "--target", "0.1", "--baseline", "dfedavg"]
    compared = gossamer("compare", *settings(), *sweep, "--out", "c", "-q")
    assert compared.code == 0, compared.err
    answer = gossamer("show", "c", "--out", "shown")
    assert answer.code == 0
    assert "-seed" not in answer.out
    assert "Until test accuracy ≥ 10 %" in answer.out
    assert "Difference to the baseline" in answer.out
    for name in ("table.csv", "runs.csv", "seconds.csv", "pivot.csv", "differences.csv"):
        assert (place / "shown" / name).read_bytes() == (place / "c" / name).read_bytes()


def test_a_run_without_a_round(gossamer: Command, settings: Settings, place: Path) -> None:
    gossamer("run", *settings(), "--out", "r", "-q")
    for name in ("metrics.jsonl", "timings.jsonl", "final.safetensors"):
        (place / "r" / name).unlink()
    answer = gossamer("show", "r")
    assert answer.code == 0
    assert "0/3" in answer.out
    assert "unfinished: 'gossamer resume r'" in answer.out
    assert not (place / "r" / "curves.png").exists()


def test_runs_that_differ_in_their_seed_alone_are_one_row(gossamer: Command, settings: Settings, place: Path) -> None:
    for seed in (0, 1, 2):
        assert gossamer("run", *settings(seed=seed), "--out", f"r{seed}", "-q").code == 0
    assert gossamer("run", *settings(lr=0.2), "--out", "other", "-q").code == 0
    answer = gossamer("show", "r0", "r1", "r2", "other", "--out", "shown")
    assert answer.code == 0
    table = pd.read_csv(place / "shown" / "table.csv", index_col="run")
    assert table["seeds"].to_dict() == {"r0": 3, "other": 1}
    assert table.loc["r0", "best accuracy spread"] >= 0
    assert pd.isna(table.loc["other", "best accuracy spread"])
    # One seed twice is not averaged: the runs are told apart.
    shutil.copytree(place / "r1", place / "again" / "r1")
    apart = gossamer("show", "r0", "r1", "again/r1", "--out", "apart")
    assert apart.code == 0
    assert pd.read_csv(place / "apart" / "table.csv")["run"].to_list() == ["r0", "r1", "again/r1"]


def test_seeds_of_two_comparisons_are_merged(gossamer: Command, settings: Settings, place: Path) -> None:
    for seed, name in ((0, "a"), (2, "b")):
        sweep = ["--sweep=graph=ring,full", "--seeds", "2", "--out", name, "-q"]
        assert gossamer("compare", *settings(seed=seed), *sweep).code == 0
    assert gossamer("show", "a", "b", "--out", "shown").code == 0
    table = pd.read_csv(place / "shown" / "table.csv")
    assert table[["graph", "seeds"]].to_numpy().tolist() == [["ring", 4], ["full", 4]]
    # Of another experiment, the same labels are other rows.
    assert gossamer("compare", *settings(lr=0.01), "--sweep=graph=ring", "--out", "c", "-q").code == 0
    assert gossamer("show", "a", "c", "--out", "mixed").code == 0
    assert pd.read_csv(place / "mixed" / "table.csv")["run"].to_list() == ["a: ring", "full", "c: ring"]


DATA = """
import numpy as np
from gossamer import per_client


def few(test=4):
    x, y = np.eye(4, dtype=np.float32), [0, 1, 0, 1]
    return per_client([(x, y)] * 4, test=(x[:test], y[:test]))


def fewer():
    return few(2)
"""


def test_other_test_samples_are_told_apart(
    gossamer: Command, own_module: Callable[[str], str], settings: Settings
) -> None:
    module = own_module(DATA)
    for seed, name in ((0, "few"), (1, "fewer")):
        assert gossamer("run", *settings(dataset=f"{module}:{name}", seed=seed), "--out", f"r{seed}", "-q").code == 0
    answer = gossamer("show", "r0", "r1", "--baseline", "r0")
    assert answer.code == 0
    assert "Not all were tested on the same samples" in answer.out
    assert "not comparable: other test samples" in answer.out
    assert "±" not in answer.out


def test_folders_that_hold_half_a_run(
    gossamer: Command, refused: Callable[..., str], settings: Settings, place: Path
) -> None:
    for seed in (0, 1):
        assert gossamer("run", *settings(seed=seed), "--out", f"r{seed}", "-q").code == 0
    lines = (place / "r1" / "metrics.jsonl").read_text().splitlines()
    broken = json.loads(lines[1]) | {"test_accuracy": None, "test_loss": float("nan"), "consensus": None}
    (place / "r1" / "metrics.jsonl").write_text(f"{lines[0]}\n{json.dumps(broken)}\n{lines[2][:30]}")
    (place / "r1" / "final.safetensors").unlink()
    answer = gossamer("show", "r0", "r1", "--target", "0.999", "--out", "shown")
    assert answer.code == 0
    assert "unfinished: 'gossamer resume r1'" in answer.out
    assert "2/3" in answer.out
    assert "±" not in answer.out  # a run that goes on is not averaged with one that has ended
    (place / "empty").mkdir()
    refused("show", "empty", says=("empty: is not a run folder",))
    refused("show", "nowhere", says=("nowhere: does not exist",))
    (place / "begun").mkdir()
    (place / "begun" / "comparison.toml").write_text("[sweep]\nlr = [0.1]\n")
    refused("show", "begun", says=("begun: its comparison has no run yet", "gossamer resume begun"))
