"""`gossamer show`: runs side by side, and their curves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[..., Any]
Settings = Callable[..., list[str]]


def test_one_run(gossamer: Command, settings: Settings, place: Path) -> None:
    gossamer("run", *settings(method='{name="dfedsam", rho=0.05}'), "--out", "r", "-q")
    answer = gossamer("show", "r")
    assert answer.code == 0
    assert "dfedsam(rho=0.05)" in answer.out
    assert "3/3" in answer.out
    assert "unfinished" not in answer.out
    assert "r/curves.png, r/curves.html" in answer.out
    assert (place / "r" / "curves.html").stat().st_size > 1000


def test_several_runs(gossamer: Command, settings: Settings, place: Path) -> None:
    for name, lr in (("a/run", 0.1), ("b/run", 0.2), ("c", 0.3)):
        gossamer("run", *settings(lr=lr), "--out", name, "-q")
    answer = gossamer("show", "a/run", "b/run", "c", "--out", "pictures/all")
    assert answer.code == 0
    page = (place / "pictures" / "all" / "curves.html").read_text()
    for name in ("a/run", "b/run", "c"):  # of the same name, told apart by their paths
        assert f" {name} " in answer.out
        assert f'"name":"{name}"' in page.replace("\\u002f", "/")
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
