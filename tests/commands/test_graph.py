"""`gossamer graph`: numbers for people and programs, and a picture."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gossamer.graphs import GRAPHS

Command = Callable[..., Any]


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


def test_a_picture(gossamer: Command, place: Path) -> None:
    answer = gossamer("graph", "ring", "--clients", "5", "--out", "pictures/ring.svg")
    assert answer.code == 0
    assert "written to pictures/ring.svg" in answer.out
    assert "<svg" in (place / "pictures" / "ring.svg").read_text()
