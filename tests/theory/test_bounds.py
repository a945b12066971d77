"""Φ and the four bounds against numbers worked out by hand, and what must hold for any constants."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.theory import (
    DFEDADMM,
    DFEDSAM,
    DFEDSGPSM,
    LOCAL_G_ECL,
    RATES,
    THEOREMS,
    Constants,
    Theorem,
    evaluate,
    phi,
)
from gossamer.theory.rates import dfedadmm, dfedsam, dfedsgpsm, rounds_until

#: Everything that can be one is one; the graph is complete.
ONES = Constants(
    clients=1, steps=1, rounds=1, lr=0.1, gap=1, smoothness=1, sigma_l=1, sigma_g=1, gradient=1, x0=1,
    rho=1, penalty=1,
)  # fmt: skip


def causes(theorem: Theorem, constants: Constants) -> dict[str, float]:
    """What each cause adds to a bound."""
    found: dict[str, float] = {}
    for term in theorem.terms(constants):
        found[term.kind] = found.get(term.kind, 0.0) + term.value
    return found


def test_phi() -> None:
    assert phi(0, 8, 1) == 2
    assert phi(0.5, 8, 1) == 12  # 2 (1 + λ)/(1 − λ)²
    assert phi(0.5, 8, 2) == pytest.approx(1.25 / (0.25 * 64) + 1.25 / 0.75**2)
    assert phi(1, 8, 1) == math.inf
    assert phi(0.9, 1000, 200) == pytest.approx(1)  # m^398 is beyond a float


def test_dfedsam() -> None:
    # D = 0.1 − 0.032 − 0.06 = 0.008;  ηKL/2D = 6.25
    # α = 6.25 (2 (0.04 + 0.08·3 + 1) + 0.1·2) = 17.25, of which σ_l: 0.16 + 0.1, σ_g: 0.16, ρ: 2·1.12 + 0.1
    # β = 0.0001·4.6/0.008 · (2 (4 + 8·3) + 2/0.01) = 0.0575·256 = 14.72;  Φ = 2
    assert causes(DFEDSAM, ONES) == pytest.approx(
        {"start": 250, "noise": 1.625, "heterogeneity": 1, "perturbation": 14.625, "graph": 29.44}
    )


def test_local_g_ecl() -> None:
    half = replace(ONES, lambda_=math.sqrt(0.5))  # p = 1/2
    assert causes(LOCAL_G_ECL, ONES) == pytest.approx({"start": 10, "noise": 0.1, "heterogeneity": 0.01, "graph": 0.01})
    assert causes(LOCAL_G_ECL, half) == pytest.approx({"start": 10, "noise": 0.1, "heterogeneity": 0.08, "graph": 0.16})
    warm = replace(half, warm_start=2)  # E⁰ shrinks by λ⁴ = 1/4
    assert causes(LOCAL_G_ECL, warm)["heterogeneity"] == pytest.approx(0.02)


def test_dfedsgpsm() -> None:
    # 3η²L²/δ = 0.06;  noise 0.1/0.5 + 0.06·8;  momentum 0.06·32·1·2;  ρ 3 + 0.06·64;  graph 6/0.75 + 0.12/(0.25·0.25)
    c = replace(ONES, momentum=0.5, push_rate=0.5, least_weight=0.5)
    assert causes(DFEDSGPSM, c) == pytest.approx(
        {
            "start": 10,
            "noise": 0.68,
            "heterogeneity": 3.84,
            "gradient size": 3.84,
            "momentum": 3.84,
            "perturbation": 6.84,
            "graph": 9.92,
        }
    )


def test_dfedadmm() -> None:
    # L²η²K² = 1/4608, so κ = 1/2 − 1/4;  of σ_l² + B²: 3 (13/12)/κ + 1/(2κ) = 15
    # graph: (9·25/(48·24) + 6·2·25/24)/κ
    assert causes(DFEDADMM, replace(ONES, lr=1 / math.sqrt(4608))) == pytest.approx(
        {
            "start": 4,
            "noise": 15 + 1 / 6,
            "heterogeneity": 0.25,
            "gradient size": 15 + 1 / 12,
            "perturbation": 48,
            "graph": 50.78125,
        }
    )


def test_a_step_size_that_a_theorem_refuses() -> None:
    large = replace(ONES, lr=1.0)
    limits = {DFEDSAM: 1 / 10, LOCAL_G_ECL: 1 / 48, DFEDSGPSM: 1 / 8, DFEDADMM: 1 / 96}
    for theorem in THEOREMS:
        bound = evaluate(theorem, large)
        assert not bound.valid
        assert bound.allowed is not None
        assert bound.allowed.lr == pytest.approx(limits[theorem])
        again = evaluate(theorem, replace(large, lr=bound.allowed.lr, penalty=bound.allowed.penalty))
        assert again.valid
        assert again.allowed is None
        assert again.here.total == bound.allowed.total
        assert bound.allowed.total is not None
    for theorem in (DFEDSAM, DFEDADMM):
        refused = evaluate(theorem, large).here
        assert refused.undefined is not None
        assert "not positive" in refused.undefined
        assert refused.total is None
    assert evaluate(LOCAL_G_ECL, large).here.total is not None  # it has no denominator that could vanish


def test_a_penalty_that_is_too_long_for_the_local_steps() -> None:
    bound = evaluate(DFEDADMM, replace(ONES, lr=0.01, penalty=10))
    assert [c.text for c in bound.conditions if not c.holds] == ["penalty λ ≤ ηK = 0.01"]
    assert bound.allowed is not None
    assert bound.allowed.penalty == 0.01


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.name)
@settings(max_examples=15, deadline=None)
@given(
    lambdas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
    scale=st.floats(0.01, 10),
    steps=st.integers(1, 20),
    rho=st.floats(0, 1),
)
def test_laws_of_the_causes(
    theorem: Theorem, lambdas: tuple[float, float], scale: float, steps: int, rho: float
) -> None:
    few, many = sorted(lambdas)
    base = replace(ONES, steps=steps, smoothness=scale, rho=rho, rounds=10, clients=8)
    # One step size that every graph here allows.
    lr = theorem.allowed(replace(base, lambda_=many)).lr
    well, badly = (replace(base, lr=lr, lambda_=each, push_rate=each) for each in (few, many))
    assert causes(theorem, well)["graph"] <= causes(theorem, badly)["graph"]
    assert all(value >= 0 for value in causes(theorem, badly).values())
    assert causes(theorem, replace(badly, sigma_g=0))["heterogeneity"] == 0
    quiet = causes(theorem, replace(badly, sigma_l=0))
    assert quiet["noise"] == 0
    assert causes(theorem, replace(badly, rounds=20))["start"] == pytest.approx(causes(theorem, badly)["start"] / 2)
    if theorem is not LOCAL_G_ECL:  # the others have a perturbation
        assert causes(theorem, replace(badly, rho=0))["perturbation"] == 0
    values = evaluate(theorem, badly).best_values
    assert math.fsum(values.share(term) or 0 for term in values.terms) == pytest.approx(1)
    assert values.complete is not None
    assert values.total is not None
    assert values.complete <= values.total * (1 + 1e-12)


def test_more_gossip_steps_shrink_the_graph_term() -> None:
    c = replace(ONES, clients=16, lambda_=0.95)
    values = [causes(DFEDSAM, replace(c, gossip_steps=q))["graph"] for q in (1, 2, 4)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"lambda_": 0.99}, "the graph term dominates: > 99 % — a better connected graph or more gossip steps would"),
        ({"rho": 0.0}, "the start term dominates: 98 % — more rounds would help most"),
        ({"sigma_g": 100.0, "rounds": 10**9, "rho": 0.0, "lr": 0.01}, "the heterogeneity term dominates"),
        ({"sigma_l": 100.0, "rounds": 10**9, "rho": 0.0, "lr": 0.01}, "the noise term dominates"),
        ({"sigma_g": 100.0, "rounds": 10**9, "rho": 0.0}, "the complete graph would be little better"),
        ({"lambda_": 1.0}, "infinite: clients on this graph never agree"),
        ({"gap": 0.0, "sigma_l": 0.0, "sigma_g": 0.0, "rho": 0.0}, "the bound is 0"),
    ],
)
def test_the_verdict(changed: dict[str, Any], says: str) -> None:
    assert says in evaluate(DFEDSAM, replace(ONES, **changed)).verdict


def test_isolated_clients_have_no_step_size_in_local_g_ecl() -> None:
    bound = evaluate(LOCAL_G_ECL, replace(ONES, lambda_=1.0))
    assert not bound.valid
    assert "clients never agree" in bound.verdict


def test_an_extra_pull_of_the_edges_asks_for_smaller_steps() -> None:
    c = replace(ONES, lambda_=0.9, pull=1000.0)
    assert LOCAL_G_ECL.allowed(c).lr < LOCAL_G_ECL.allowed(replace(c, pull=0.0)).lr


def test_the_consensus_lemmas_by_hand() -> None:
    c = Constants(
        clients=4, steps=2, rounds=1, lr=0.5, gap=1, smoothness=1, sigma_l=1, sigma_g=2, gradient=3, x0=1,
        lambda_=0.5, push_rate=0.5, rho=0, momentum=0.5, penalty=0.1,
    )  # fmt: skip
    # C₂ = 2·2·(8·2·(4 + 1 + 9)) = 896; η² = 1/4; (1−λ)² = 1/4
    assert DFEDSAM.consensus(c) == pytest.approx(896)
    assert DFEDSAM.consensus(replace(c, gossip_steps=2)) == pytest.approx(896 / 4 * phi(0.5, 4, 2))
    # α̃ = 1 + (1 + α) = 2.5: 2·q²·‖x⁰‖² + 2·η²·α̃²·(9 + 1)/(1−q)²
    assert DFEDSGPSM.consensus(c) == pytest.approx(2 / 4 + 2 * 0.25 * 6.25 * 10 / 0.25)
    # C₂ = 16·(1/4)·4·(12 + 2 + 36) + 0.01·10
    assert DFEDADMM.consensus(c) == pytest.approx(2 * (800 + 0.1) / 0.25)


def test_rounds_to_epsilon_meet_the_rate_and_no_fewer_do() -> None:
    c = Constants(
        clients=4, steps=2, rounds=1, lr=0.5, gap=1, smoothness=1, sigma_l=1, sigma_g=2, gradient=3, beta=2, lambda_=0.5
    )
    for function in (dfedsam, dfedsgpsm, dfedadmm):
        rounds = rounds_until(lambda T, rate=function: rate(c, T), 0.01)
        assert function(c, rounds) <= 0.01 < function(c, rounds - 1)
    table = {rate.method: rate.rounds(c, 0.01) for rate in RATES}
    assert table["SCAFFOLD"] == pytest.approx(1 / 0.01 + 1 / (2 * 4 * 0.01**2))
    assert table["FedAvg"] == pytest.approx(2 / 0.01 + 2 / 0.01**1.5 + 1 / (2 * 4 * 0.01**2))
    p = 0.75
    assert table["Local G-ECL"] == pytest.approx(
        1 / (p**2 * 0.01) + 2 ** (2 / 3) / (p * 0.01) + 1 / (p**2 * 2**0.5 * 0.01**1.5) + 1250
    )
    assert RATES[-1].rounds(replace(c, lambda_=1.0), 0.01) == float("inf")  # clients that never agree
    assert rounds_until(lambda T: 1.0, 0.5) == float("inf")
