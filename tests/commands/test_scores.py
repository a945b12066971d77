"""Labels say what stands below them; where accuracy has no meaning, the loss takes its place."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from gossamer.pages.figures import overview
from gossamer.studies import read_comparison
from gossamer.terminal import console

Command = Callable[..., Any]
Settings = Callable[..., list[str]]

DATA = """
import numpy as np
from gossamer import per_client


def slopes():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 12, 2))
    y = x @ np.array([1.0, -2.0])
    return per_client([(x[i], y[i]) for i in range(4)], test=(x[4], y[4]))


def untested():
    rng = np.random.default_rng(0)
    return per_client([(rng.normal(size=(6, 2)), rng.integers(2, size=6)) for i in range(4)])


def new_label():
    x = np.eye(4, dtype=np.float32)
    return per_client([(x, [0, 1, 0, 1])] * 4, test=(x, [0, 1, 7, 7]), classes=8)
"""


@pytest.fixture
def regression(own_module: Callable[[str], str], settings: Settings) -> list[str]:
    return settings(dataset=f"{own_module(DATA)}:slopes", loss="squared-error")


def test_a_regression_is_judged_by_its_loss_everywhere(gossamer: Command, regression: list[str], place: Path) -> None:
    run = gossamer("run", *regression, "--out", "r")
    assert run.code == 0, run.err
    lines = [json.loads(line) for line in (place / "r" / "metrics.jsonl").read_text().splitlines()]
    best = min(line["test_loss"] for line in lines)
    assert f"best test loss {best:.3g} in round" in run.out
    assert f"worst client {lines[-1]['client_loss_worst']:.3g}" in run.out
    assert f"test loss {lines[-1]['test_loss']:.4g}" in run.err

    compared = gossamer("compare", *regression, "--sweep=lr=0.05,0.1", "--seeds", "2", "--out", "c", "-q")
    assert compared.code == 0, compared.err
    table = pd.read_csv(place / "c" / "table.csv", index_col="lr")
    assert {"best test loss", "last test loss", "worst client test loss"} <= set(table.columns)
    assert table[["best test loss", "last test loss", "worst client test loss"]].notna().all().all()
    shown = gossamer("show", "c")
    for text in (compared.out, shown.out, (place / "c" / "table.md").read_text()):
        assert "loss" in text
        assert "–" not in text
        assert "%" not in text
    drawn = [axes.get_ylabel() for axes in overview(read_comparison([place / "r"]), "r").axes]
    assert drawn[:3] == ["test loss", "test loss", "test loss of the worst client"]
    assert drawn[3:5] == ["consensus distance", "training loss in local steps"]


def test_targets_of_a_regression_are_losses(
    gossamer: Command, refused: Callable[..., str], regression: list[str]
) -> None:
    answer = gossamer("compare", *regression, "--sweep=lr=0.05,0.1", "--target", "100", "-q")
    assert "Until test loss ≤ 100" in answer.out, answer.err
    wrong = "--target=test_accuracy=0.9"
    refused("compare", *regression, "--sweep=lr=0.1", wrong, says=("no test_accuracy", "judged by test_loss"))


def test_a_metric_of_ones_own_has_its_own_columns(gossamer: Command, settings: Settings, place: Path) -> None:
    own = settings(metric='{name="top-k", k=2}')
    answer = gossamer("compare", *own, "--sweep=lr=0.1,0.2", "--target", "0.1", "--out", "c", "-q")
    assert answer.code == 0, answer.err
    assert "Until test score ≥ 0.1" in answer.out
    table = pd.read_csv(place / "c" / "table.csv", index_col="lr")
    assert {"best top-k(k=2)", "last top-k(k=2)", "last accuracy", "last test loss"} <= set(table.columns)
    head = (place / "c" / "table.md").read_text().splitlines()[2]
    assert head.startswith("| lr | best top-k(k=2) | last top-k(k=2) | last accuracy | last test loss |")


def test_the_losses_of_a_regression_fit_a_narrow_terminal(
    gossamer: Command, regression: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.out, "width", 80)
    answer = gossamer("compare", *regression, "--sweep=lr=0.02,0.1", "--seeds", "2", "-q")
    assert re.search(r"^ 0\.02 ", answer.out, re.MULTILINE), answer.out
    assert "…" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80 or "written to" in answer.out


def test_the_variant_with_the_lowest_loss_stands_out(
    gossamer: Command, regression: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (place / "screen").open("w") as screen:
        monkeypatch.setattr(console, "out", Console(file=screen, force_terminal=True, color_system="standard"))
        assert gossamer("compare", *regression, "--sweep=lr=0.0001,0.1", "-q").code == 0
    assert re.findall(r"\x1b\[1;32m *([\d.]+) ", (place / "screen").read_text())[0] == "0.1"


def test_without_test_samples_the_training_loss_is_shown(
    gossamer: Command, own_module: Callable[[str], str], settings: Settings
) -> None:
    answer = gossamer("compare", *settings(dataset=f"{own_module(DATA)}:untested"), "--sweep=lr=0.1,0.2", "-q")
    assert answer.code == 0, answer.err
    assert "loss" in answer.out
    assert "–" not in answer.out


def test_one_seed_has_no_spread(gossamer: Command, settings: Settings, place: Path) -> None:
    answer = gossamer("compare", *settings(), "--sweep=lr=0.1,0.2", "--out", "c", "-q")
    assert answer.code == 0
    assert "±" not in answer.out
    assert "±" not in (place / "c" / "table.md").read_text()
    assert "spread" not in (place / "c" / "table.csv").read_text()
    assert "standard deviation" not in (place / "c" / "report.html").read_text().split("</main>")[0]


def test_a_curve_that_is_zero_gives_no_warning(gossamer: Command, settings: Settings) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gossamer("compare", *settings(graph="full"), "--sweep=lr=0.1,0.2", "-q").code == 0


def test_the_title_names_a_partition_only_where_it_splits_the_data(
    gossamer: Command, regression: list[str], settings: Settings
) -> None:
    assert "dirichlet(alpha=0.3)" in gossamer("compare", *settings(), "--sweep=lr=0.1", "-q").out
    own = gossamer("compare", *regression, "--sweep=lr=0.1", "-q")
    assert own.code == 0
    assert "dirichlet" not in own.out
    told = gossamer("run", *regression, "--set=partition=iid", "-q")
    assert "comes with its own clients: the partition of the experiment is not used" in told.err


def test_bytes_are_named_by_round_and_way(gossamer: Command, settings: Settings, place: Path) -> None:
    both = "--sweep=method=fedavg,dfedavg"
    answer = gossamer("compare", *settings(), both, "--out", "c", "-q")
    assert answer.code == 0, answer.err
    assert "Sent by a client through a server: the way up alone." in answer.out
    table = pd.read_csv(place / "c" / "table.csv", index_col="method")
    for method, ways in (("fedavg", 2), ("dfedavg", 1)):
        lines = [
            json.loads(line) for line in (place / "c" / f"{method}-seed0" / "metrics.jsonl").read_text().splitlines()
        ]
        one = sum(line["client_bytes_round"] for line in lines)
        assert table.loc[method, "bytes uploaded by a client in all rounds"] == one
        assert table.loc[method, "bytes sent both ways in all rounds"] == ways * 4 * one
    assert "way up" not in gossamer("compare", *settings(), "--sweep=lr=0.1", "-q").out


@pytest.mark.parametrize(("width", "left_out"), [(80, "time, last"), (120, None)])
def test_a_table_says_what_it_leaves_out(
    gossamer: Command, settings: Settings, monkeypatch: pytest.MonkeyPatch, width: int, left_out: str | None
) -> None:
    monkeypatch.setattr(console.out, "width", width)
    sweep = ["--sweep=method=dfedavg,dfedavgm", "--sweep=partition.alpha=0.1,1.0", "--target", "0.2"]
    answer = gossamer("compare", *settings(), *sweep, "--seeds", "2", "--baseline", "dfedavg", "--out", "c", "-q")
    heads = answer.out.split("──")[0]
    for word in ("last", "time"):
        assert (word in heads) == (left_out is None)
    said = " ".join(answer.out.split())  # a caption is as wide as its table
    assert (f"Left out on a narrow terminal: {left_out}; they are in its files." in said) == bool(left_out)
    shown = gossamer("show", "c")
    assert ("Left out on a narrow terminal: graph," in shown.out) == (width < 120)
    for line in (answer.out + shown.out).splitlines():
        assert len(line) <= width or line.startswith(("written to", "Try next"))
        assert "…" not in line


def test_more_clients_than_samples_are_noted_once(gossamer: Command, settings: Settings) -> None:
    answer = gossamer("compare", *settings(clients=300, rounds=1), "--sweep=lr=0.1,0.2", "-q")
    assert answer.code == 0, answer.err
    assert answer.err.count("note: 200 training samples are shared among 300 clients: ") == 1
    assert re.search(r": \d+ clients of them have no sample", answer.err)
    assert "200 training samples are shared among 300 clients" in gossamer("partition", *settings(clients=300)).err


def test_a_test_label_that_training_has_not_is_noted(
    gossamer: Command, own_module: Callable[[str], str], settings: Settings
) -> None:
    answer = gossamer("run", *settings(dataset=f"{own_module(DATA)}:new_label", rounds=1), "-q")
    assert answer.code == 0, answer.err
    assert "the test samples have 1 label that no training sample has: 7" in answer.err
