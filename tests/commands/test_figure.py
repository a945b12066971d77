"""`gossamer figure`: figures of runs and comparisons from the command line, also of damaged and unfinished ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
Settings = Callable[..., list[str]]


def test_figures_of_a_comparison(gossamer: Command, settings: Settings, place: Path) -> None:
    sweep = ["--sweep=lr=0.1,0.2", "--sweep=graph=ring,full", "--seeds", "2"]
    compared = gossamer("compare", *settings(rounds=1), *sweep, "--out", "c", "-q")
    assert "c/curves.png, c/sweep.png" in compared.out
    for against in ("bytes", "lr", "graph", "lr,graph"):
        answer = gossamer("figure", "c", "--against", against, "--out", "f/f.pdf", "--out", "f/f.svg")
        assert answer.code == 0, answer.err
        assert answer.out == "written to f/f.pdf, f/f.svg\n"
    assert (place / "f" / "f.pdf").read_bytes().startswith(b"%PDF")
    both = gossamer("figure", "c", "c/lr=0.1-graph=ring-seed0", "-m", "consensus", "--band", "range", "--log")
    assert both.code == 0, both.err
    assert (place / "figure.pdf").exists()


def test_what_cannot_be_drawn_is_refused(
    gossamer: Command, refused: Callable[..., str], settings: Settings, place: Path
) -> None:
    gossamer("run", *settings(rounds=1), "--out", "r", "-q")
    (place / "empty").mkdir()
    refused("figure", "r", "--metric", "acuracy", says=("metric: no run has 'acuracy'",))
    refused("figure", "r", "--against", "lr", says=("against: unknown 'lr'", "round"))
    refused("figure", "r", "--out", "f.gif", says=("f.gif: a figure is written as .png, .svg, .pdf",))
    refused("figure", "r", "--width", "wide", says=("width: should be column, page",))
    refused("figure", "nowhere", says=("nowhere: does not exist",))
    refused("figure", "empty", says=("empty: is not a run folder",))
    (place / "r" / "metrics.jsonl").write_text('{"round": 1, "test_acc')
    refused("figure", "r", says=("no round has been measured yet",))


@pytest.mark.slow
def test_a_disk_that_fills_keeps_the_tables_and_says_what_failed(
    gossamer: Command, spawn: Callable[..., Any], settings: Settings, place: Path
) -> None:
    assert gossamer("compare", *settings(rounds=1), "--sweep=lr=0.1", "--out", "c", "-q").code == 0
    (place / "c" / "curves.png").unlink()
    answer = spawn("figure", "c", "--out", "c/curves.png", limit=5_000).wait()
    assert answer.code == 2
    assert "curves.png: cannot be written: File too large" in answer.err
    assert "Traceback" not in answer.err
    assert (place / "c" / "table.csv").exists()
    assert not [path for path in (place / "c").iterdir() if "curves" in path.name]
