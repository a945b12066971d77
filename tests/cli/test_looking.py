"""Commands that show: runs, graphs, partitions, and what there is to choose from."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gossamer.data import DATASETS, PARTITIONS
from gossamer.graphs import GRAPHS
from gossamer.methods import METHODS
from gossamer.models import LOSSES, MODELS
from gossamer.parts import Catalog

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


def test_a_comparison(gossamer: Command, settings: Settings) -> None:
    gossamer("compare", *settings(), "--sweep=method=dfedavg,dfedsam", "--out", "c", "-q")
    answer = gossamer("show", "c")
    assert answer.code == 0
    assert "dfedavg-seed0" in answer.out
    assert "dfedsam-seed0" in answer.out


def test_a_run_without_a_round(gossamer: Command, settings: Settings, place: Path) -> None:
    gossamer("run", *settings(), "--out", "r", "-q")
    for name in ("metrics.jsonl", "timings.jsonl", "final.safetensors"):
        (place / "r" / name).unlink()
    answer = gossamer("show", "r")
    assert answer.code == 0
    assert "0/3" in answer.out
    assert "unfinished: 'gossamer resume r'" in answer.out
    assert not (place / "r" / "curves.png").exists()


@pytest.mark.parametrize(
    ("command", "catalogs"),
    [
        ("methods", [METHODS]),
        ("graphs", [GRAPHS]),
        ("datasets", [DATASETS, PARTITIONS]),
        ("models", [MODELS, LOSSES]),
    ],
)
def test_listings(gossamer: Command, command: str, catalogs: list[Catalog]) -> None:
    answer = gossamer(command)
    assert answer.code == 0
    words = answer.out.split()
    blocks = answer.out
    for catalog in catalogs:
        for name, maker in catalog.items():
            assert name in words
            for field in fields(maker):  # type: ignore[arg-type]
                assert not field.repr or f"{field.name}=" in blocks, f"{name}: {field.name}"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("ring", "--clients", "100"), 0.998684),
        (("grid", "--clients", "100"), 0.979470),
        (("torus", "--clients", "100"), 0.923607),
        (("exponential", "--clients", "100"), 0.75),
        (("ring", "--clients", "10"), 0.872678),
        (("double-ring", "--clients", "10"), 0.647214),
    ],
)
def test_graphs_for_programs(gossamer: Command, arguments: tuple[str, ...], value: float) -> None:
    answer = gossamer("graph", *arguments, "--json")
    assert answer.code == 0
    about = json.loads(answer.out)
    assert about["lambda"] == pytest.approx(value, abs=5e-7)
    assert about["spectral_gap"] == pytest.approx(1 - value, abs=5e-7)
    assert about["bytes_per_round"] == about["links_per_step"] * 4 * 199_210


def test_every_graph_is_valid_json(gossamer: Command, place: Path) -> None:
    (place / "edges.txt").write_text("".join(f"{i} {i + 1}\n" for i in range(11)))
    needs = {
        "edge-list": ["--set=path=edges.txt"],
        "edges": [f"--set=edges={[[i, i + 1] for i in range(11)]}"],
        "circulant": ["--set=offsets=[1]"],
        "matrix": ["--set=matrix=[[0.5, 0.5], [0.5, 0.5]]", "--clients=2"],
    }

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for name in GRAPHS:
        answer = gossamer("graph", name, "--clients", "12", *needs.get(name, []), "--json")
        assert answer.code == 0, answer.err
        about = json.loads(answer.out, parse_constant=refuse)
        assert about["clients"] in (2, 12)
        table = gossamer("graph", name, "--clients", "12", *needs.get(name, []))
        assert table.code == 0
        assert "spectral gap" in table.out


def test_pictures(gossamer: Command, settings: Settings, place: Path) -> None:
    answer = gossamer("graph", "ring", "--clients", "5", "--out", "pictures/ring.svg")
    assert answer.code == 0
    assert "written to pictures/ring.svg" in answer.out
    assert "<svg" in (place / "pictures" / "ring.svg").read_text()
    answer = gossamer("partition", *settings(), "--out", "pictures/split.png")
    assert answer.code == 0
    assert (place / "pictures" / "split.png").read_bytes().startswith(b"\x89PNG")


def test_partitions(gossamer: Command, settings: Settings) -> None:
    answer = gossamer("partition", *settings(partition='{name="shards", classes_per_client=2}'), "--json")
    assert answer.code == 0
    about = json.loads(answer.out)
    assert about["sizes"] == [50, 50, 50, 50]
    assert [sum(row) for row in about["labels"]] == about["sizes"]
    table = gossamer("partition", *settings())
    assert table.code == 0
    assert "200 samples, 4 clients" in table.out


def test_help_and_nothing(gossamer: Command) -> None:
    answer = gossamer("--help")
    assert answer.code == 0
    for command in (
        "run",
        "resume",
        "compare",
        "show",
        "graph",
        "partition",
        "methods",
        "graphs",
        "datasets",
        "models",
    ):
        assert command in answer.out
        assert gossamer(command, "-h").code == 0
