"""Spectral values that can be checked on paper, and what follows from them."""

import json
from typing import Any

import numpy as np
import pytest
from scipy.linalg import eigvals, eigvalsh

from gossamer.graphs import GRAPHS, Claims, GraphSummary, Network, spectrum, summarise


def summary(spec: Any, clients: int, seed: int = 0) -> GraphSummary:
    return summarise(GRAPHS.build(spec).bind(clients, seed))


@pytest.mark.parametrize(
    ("spec", "clients", "expected"),
    [
        ("ring", 100, 0.998684),
        ("ring", 10, 0.872678),
        ("double-ring", 10, 0.647214),
        ("grid", 100, 0.979470),
        ("torus", 100, 0.923607),
        ("exponential", 100, 0.75),
        ({"name": "circulant", "offsets": [1, 9]}, 100, 0.936942),
        ("full", 100, 0.0),
        ("isolated", 10, 1.0),
        ("star", 10, 0.9),
    ],
)
def test_lambda(spec: Any, clients: int, expected: float) -> None:
    found = summary(spec, clients)
    assert found.lambda_ == pytest.approx(expected, abs=5e-7)
    assert found.spectral_gap == pytest.approx(1 - expected, abs=5e-7)
    assert found.contraction == found.lambda_


def test_ring_of_ten() -> None:
    found = summary("ring", 10)
    assert found.p == pytest.approx(0.238433, abs=5e-7)
    assert (found.degree_min, found.degree_mean, found.degree_max) == (2, 2.0, 2)
    assert found.diameter == 5
    assert found.links_per_step == 20
    assert found.rounds_to_tenth == 17  # 0.872678^17 = 0.0988, ^16 = 0.1133
    assert found.exact_after is None
    assert not found.directed
    assert json.loads(json.dumps(found.to_dict()))["lambda_"] == found.lambda_


def test_shapes() -> None:
    assert summary("grid", 100).diameter == 18
    assert summary("torus", 100).diameter == 10
    assert summary("exponential", 100).directed
    assert summary("exponential", 100).p is None
    assert summary("star", 10).degree_max == 9
    assert summary("isolated", 4).diameter is None
    assert summary("isolated", 4).rounds_to_tenth is None


def test_exact_averaging() -> None:
    full, peers, base = summary("full", 7), summary("one-peer-exponential", 16), summary("base-k", 12)
    assert (full.exact_after, full.rounds_to_tenth, full.diameter) == (1, 1, 1)
    assert (peers.exact_after, peers.rounds_to_tenth, peers.contraction) == (4, 4, 0.0)
    assert base.exact_after == base.period == base.rounds_to_tenth
    assert base.lambda_ == 1  # no single step connects everyone
    alone = summary("full", 1)
    assert (alone.lambda_, alone.diameter, alone.exact_after) == (0.0, 0, 1)


def test_a_period_that_does_not_average_exactly() -> None:
    found = summary("one-peer-exponential", 100)
    assert found.exact_after is None
    assert 0.5 < found.contraction < found.lambda_ < 1


def test_random_graphs_are_judged_over_their_draws() -> None:
    found = summary("random-symmetric", 100)
    assert found.lambda_ == pytest.approx(0.79, abs=0.03)
    assert found.contraction < found.lambda_
    assert found.rounds_to_tenth in (2, 3)
    assert found.diameter == 2
    pull, push = summary("random-pull", 24), summary("directed-random", 24)
    assert 0.1 < pull.contraction < 0.5
    assert 0.1 < push.contraction < 0.5
    assert push.links_per_step == 240


def test_server() -> None:
    found = summary({"name": "server", "participation": 0.1}, 100)
    assert found.links_per_step == 20  # ten up, ten down
    assert found.diameter == 2
    assert not found.directed
    assert (found.lambda_, found.contraction, found.rounds_to_tenth, found.exact_after) == (0.0, 0.0, 1, None)
    assert summary("server", 5).exact_after == 1


@pytest.mark.parametrize("spec", ["ring", {"name": "k-regular", "k": 30}, "exponential", "random-pull"])
def test_iteration_agrees_with_all_eigenvalues(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network = GRAPHS.build(spec).bind(150, 0)
    matrix = network.matrix(0)
    values = (eigvalsh if network.claims.symmetric else eigvals)(matrix.toarray())
    monkeypatch.setattr(spectrum, "DENSE", 10)
    monkeypatch.setattr(spectrum, "DENSE_DIRECTED", 10)
    found = spectrum.second_eigenvalue(matrix, network.claims.symmetric)
    assert found == pytest.approx(np.sort(np.abs(values))[-2], abs=1e-8)


def test_what_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("DENSE", "DENSE_DIRECTED", "DIAMETER"):
        monkeypatch.setattr(spectrum, limit, 10)
    monkeypatch.setattr(spectrum, "_leading_eigenvalues", lambda *_: None)
    found = summary("random-symmetric", 30)
    assert (found.lambda_, found.spectral_gap, found.contraction, found.rounds_to_tenth, found.diameter) == (None,) * 5


def test_iteration_that_does_not_settle() -> None:
    one_way_ring = GRAPHS.build({"name": "circulant", "offsets": [1], "symmetric": False}).bind(310, 0).matrix(0)
    assert spectrum._leading_eigenvalues(one_way_ring, symmetric=False) is None
    assert spectrum.second_eigenvalue(one_way_ring) == pytest.approx(np.cos(np.pi / 310), abs=1e-7)


def test_rows_decide_what_disagreement_is() -> None:
    claims = Claims(rows=False, columns=True, symmetric=False, self_loops=True, connected=True)
    push = GRAPHS.build({"name": "directed-random", "neighbours": 3}).bind(12, 0)
    same = Network("own", 12, None, claims, push.build)
    assert summarise(same).contraction == summarise(push).contraction < 1
