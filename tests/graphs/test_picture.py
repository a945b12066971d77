"""Pictures are written, for every kind of graph and file."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib import rc_context

from gossamer.errors import GraphError
from gossamer.graphs import GRAPHS, draw


@pytest.mark.parametrize(
    ("spec", "clients"),
    [
        ("ring", 8),
        ("torus", 9),
        ("exponential", 9),
        ("star", 6),
        ("erdos-renyi", 12),
        ({"name": "k-regular", "k": 3}, 210),
        ("base-k", 5),
        ("one-peer-exponential", 4),
        ({"name": "random-pull", "neighbours": 2}, 6),
        ({"name": "server", "participation": 0.5}, 6),
        ("isolated", 3),
        ("full", 1),
        ("full", 2),
        ("star", 2),
        ("grid", 2),
        ({"name": "matrix", "matrix": [[1.0]]}, 1),
    ],
)
def test_every_kind_is_drawn(spec: Any, clients: int, tmp_path: Path) -> None:
    written = draw(GRAPHS.build(spec).bind(clients, 0), tmp_path / "graph.png")
    assert written.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")])
def test_the_suffix_decides_the_format(suffix: str, start: bytes, tmp_path: Path) -> None:
    path = draw(GRAPHS.build("ring").bind(5, 0), str(tmp_path / f"graph{suffix}"))
    assert path.read_bytes().startswith(start)


def test_a_picture_says_which_graph_it_shows(tmp_path: Path) -> None:
    with rc_context({"svg.fonttype": "none"}):
        text = draw(GRAPHS.build("ring").bind(10, 0), tmp_path / "graph.svg").read_text()
    assert "ring · 10 clients" in text
    assert "λ = 0.872678" in text


def test_a_wrong_suffix_or_place_is_refused(tmp_path: Path) -> None:
    ring = GRAPHS.build("ring").bind(5, 0)
    with pytest.raises(GraphError, match=r"must end in .png, .svg, .pdf \(got '.gif'\)"):
        draw(ring, tmp_path / "graph.gif")
    with pytest.raises(GraphError, match="No such file or directory"):
        draw(ring, tmp_path / "nowhere" / "graph.png")
