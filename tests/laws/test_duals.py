"""Laws of the methods with duals: SCAFFOLD, G-ECL, K-GT, DFedADMM, edge consensus."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.engines import Stacked
from gossamer.methods import (
    ECL,
    ECLISVR,
    GECL,
    KGT,
    PDMM,
    DFedADMM,
    DFedADMMSAM,
    DScaffold,
    FedPD,
    LocalGECL,
    Scaffold,
)
from problems import Weights, engine, full_gradient, metropolis, play, samples

CLOSE = {"rtol": 0.0, "atol": 1e-10}
law = settings(max_examples=6, deadline=None)
seeds = st.integers(0, 2**32)
clients = st.integers(3, 6)
steps = st.integers(1, 5)


def pair(n: int, seed: int, one: Any, two: Any, k: int, **more: Any) -> tuple[Stacked, Stacked]:
    """Two methods on the same samples; each given as (method, graph)."""
    data = samples([8] * n, seed)
    return tuple(engine(m, g, data, local_steps=k, lr=0.05, **more) for m, g in (one, two))  # type: ignore[return-value]


def same_all_the_way(one: Stacked, two: Stacked, *states: tuple[Any, Any], rounds: int = 4) -> None:
    """The same models after every round, and the same of whatever else is compared."""
    for t in range(rounds):
        one.round(t)
        two.round(t)
        torch.testing.assert_close(one.models(), two.models(), **CLOSE)
        for left, right in states:
            torch.testing.assert_close(left(one.state), right(two.state), **CLOSE)


def dual(state: dict[str, Tensor]) -> Tensor:
    return state["dual"]


def drift(state: dict[str, Tensor]) -> Tensor:
    return state["control"] - state["mean_control"]


@law
@given(n=clients, seed=seeds, k=steps, alpha=st.sampled_from([0.0, 0.3]), warm=st.integers(0, 3))
def test_i3_duals_sum_to_zero_and_the_mean_follows_the_mean_gradient(
    n: int, seed: int, k: int, alpha: float, warm: int
) -> None:
    method = LocalGECL(alpha=alpha, warm_start=warm)
    run = engine(method, Weights(metropolis(n, seed)), samples([4] * n, seed), local_steps=k, lr=0.05)
    for t in range(4):
        base, x = run.state["aggregated"], run.state["x"]
        run.round(t)
        torch.testing.assert_close(run.state["dual"].sum(0), torch.zeros_like(x[0]), **CLOSE)
        # v̄ is the mean of the K vectors v, and the neighbours' x̃ can be read off what they sent.
        v = (base - run.state["x"]) / (k * 0.05)
        torch.testing.assert_close(run.state["x"] + k * 0.05 * v, base, **CLOSE)
        torch.testing.assert_close(run.models().mean(0), base.mean(0) - k * 0.05 * v.mean(0), **CLOSE)
    if warm:
        start = engine(method, Weights(metropolis(n, seed)), samples([4] * n, seed), local_steps=0, lr=0.05)
        start.round(0)
        x0 = start.training.model.initial
        G = torch.stack([full_gradient(start, i, x0) for i in range(n)])
        power = torch.from_numpy(np.linalg.matrix_power(metropolis(n, seed), warm))
        torch.testing.assert_close(start.state["dual"], G - power @ G, **CLOSE)


@law
@given(n=clients, seed=seeds, k=steps)
def test_i3_one_round_by_hand(n: int, seed: int, k: int) -> None:
    """Whole batches and ordinary modules: the recursion as the paper prints it."""
    matrix = torch.from_numpy(metropolis(n, seed))
    run = engine(LocalGECL(), Weights(matrix), samples([4] * n, seed), local_steps=k, lr=0.05)
    x = run.training.model.initial.repeat(n, 1)
    base, lam = x.clone(), torch.zeros_like(x)
    for t in range(3):
        ends, means = [], []
        for i in range(n):
            cur, at, vs = x[i], base[i], []
            for _ in range(k):
                vs.append(full_gradient(run, i, cur) - lam[i])
                cur = at = at - 0.05 * vs[-1]
            ends.append(cur)
            means.append(torch.stack(vs).mean(0))
        x, v = torch.stack(ends), torch.stack(means)
        base, lam = matrix @ x, lam - matrix @ v + v
        run.round(t)
        torch.testing.assert_close(run.state["x"], x, **CLOSE)
        torch.testing.assert_close(run.state["aggregated"], base, **CLOSE)
        torch.testing.assert_close(run.state["dual"], lam, **CLOSE)


@law
@given(n=clients, seed=seeds, k=steps, alpha=st.sampled_from([0.0, 0.7]), warm=st.integers(0, 1))
def test_i4_on_the_full_graph_algorithm_1_is_algorithm_2(n: int, seed: int, k: int, alpha: float, warm: int) -> None:
    one = (LocalGECL(alpha=alpha, warm_start=warm), "full")
    same_all_the_way(*pair(n, seed, one, (LocalGECL(warm_start=warm), "server"), k), (dual, dual))


@law
@given(n=clients, seed=seeds, k=steps)
def test_i5_algorithm_2_from_the_aggregated_model_is_scaffold(n: int, seed: int, k: int) -> None:
    two = pair(n, seed, (LocalGECL(start="aggregated"), "server"), (Scaffold(), "server"), k)
    same_all_the_way(*two, (dual, drift))


@law
@given(n=clients, seed=seeds, k=steps, share=st.sampled_from([1.0, 0.5]))
def test_i5_control_variates_are_mean_gradients(n: int, seed: int, k: int, share: float) -> None:
    run = engine(Scaffold(), {"name": "server", "participation": share}, samples([4] * n, seed), local_steps=k, lr=0.05)
    for t in range(3):
        x, c, mean = run.models()[0], run.state["control"], run.state["mean_control"]
        called = run.training.network.participants(t)
        run.round(t)
        assert called is not None
        for i in called:
            y, gradients = x, []
            for _ in range(k):
                gradients.append(full_gradient(run, int(i), y))
                y = y - 0.05 * (gradients[-1] - c[i] + mean[i])
            torch.testing.assert_close(run.state["control"][i], torch.stack(gradients).mean(0), **CLOSE)
        everyone = run.state["control"].mean(0).expand_as(run.state["mean_control"])
        torch.testing.assert_close(run.state["mean_control"], everyone, **CLOSE)


@law
@given(n=clients, seed=seeds, alpha=st.sampled_from([0.0, 0.3]))
def test_i6_one_local_step_is_g_ecl_and_gradient_tracking(n: int, seed: int, alpha: float) -> None:
    matrix = metropolis(n, seed)
    same_all_the_way(
        *pair(n, seed, (LocalGECL(alpha=alpha), Weights(matrix)), (GECL(alpha=alpha), Weights(matrix)), 1), (dual, dual)
    )
    if alpha:
        return
    run = engine(GECL(), Weights(matrix), samples([4] * n, seed), lr=0.05)  # whole batches
    previous = None
    for t in range(4):
        gradients = torch.stack([full_gradient(run, i, run.state["x"][i]) for i in range(n)])
        before = run.state["v"]
        run.round(t)
        if previous is not None:
            torch.testing.assert_close(
                run.state["v"], torch.from_numpy(matrix) @ before + gradients - previous, **CLOSE
            )
        previous = gradients


@law
@given(n=clients, seed=seeds, k=steps)
def test_i7_from_the_aggregated_model_it_is_k_gt(n: int, seed: int, k: int) -> None:
    weights = Weights(metropolis(n, seed))
    two = pair(n, seed, (LocalGECL(start="aggregated"), weights), (KGT(), weights), k)
    same_all_the_way(*two, (dual, lambda state: -state["correction"]))


@law
@given(n=clients, seed=seeds, k=steps, reading=st.sampled_from(["tracked", "neighbourhood"]))
def test_i8_decentralized_scaffold(n: int, seed: int, k: int, reading: Any) -> None:
    two = pair(n, seed, (DScaffold(reading=reading), "full"), (Scaffold(), "server"), k)
    same_all_the_way(*two, (drift, drift))
    weights = Weights(metropolis(n, seed))
    if reading == "tracked":
        two = pair(n, seed, (DScaffold(), weights), (LocalGECL(start="aggregated"), weights), k)
        same_all_the_way(*two, (drift, dual))
    run = engine(DScaffold(reading=reading), weights, samples([8] * n, seed), local_steps=k, lr=0.05)
    for t in range(3):
        run.round(t)
        torch.testing.assert_close(run.state["control"].sum(0), run.state["mean_control"].sum(0), **CLOSE)


def test_i8_the_neighbourhood_reading_is_another_method_on_a_ring() -> None:
    data = samples([8] * 6, 0)
    tracked, other = (
        play(engine(DScaffold(reading=r), "ring", data, local_steps=3, lr=0.05))  # type: ignore[arg-type]
        for r in ("tracked", "neighbourhood")
    )
    assert float((tracked - other).abs().max()) > 1e-4


@law
@given(n=clients, seed=seeds, k=steps, new=st.booleans(), penalty=st.floats(0.15, 20))
def test_i11_closed_forms_of_dfedadmm(n: int, seed: int, k: int, new: bool, penalty: float) -> None:
    """Lemmas 2 and 3, the message, and lemma 9, with the raw gradients of every step."""
    eta, matrix = 0.1, torch.from_numpy(metropolis(n, seed))
    method = DFedADMM(penalty=penalty, dual="new" if new else "old")
    run = engine(method, Weights(matrix), samples([4] * n, seed), local_steps=k, lr=eta)
    a = eta / penalty
    gamma = 1 - (1 - a) ** k
    weights = torch.tensor([a * (1 - a) ** (k - 1 - j) / gamma for j in range(k)], dtype=torch.float64)
    w_before = run.models().mean(0)
    x_before = run.models().mean(0)
    for t in range(3):
        x, g = run.models(), run.state["dual"]
        bars = []
        for i in range(n):
            y, gradients = x[i], []
            for _ in range(k):
                gradients.append(full_gradient(run, i, y))
                y = y - eta * (gradients[-1] - g[i] + (y - x[i]) / penalty)
            bars.append((weights[:, None] * torch.stack(gradients)).sum(0))
            torch.testing.assert_close(y - x[i], -penalty * gamma * (bars[-1] - g[i]), **CLOSE)
        bar = torch.stack(bars)
        after = (1 - gamma) * g + gamma * bar
        z = x - penalty * (2 * after - g if new else after)
        run.round(t)
        torch.testing.assert_close(run.state["dual"], after, **CLOSE)
        torch.testing.assert_close(run.models(), matrix @ z, **CLOSE)
        if not new:  # lemma 9: a moving average of the mean model takes plain steps of length λ
            mean = run.models().mean(0)
            w = mean + (1 - gamma) / gamma * (mean - x_before)
            torch.testing.assert_close(w, w_before - penalty * bar.mean(0), rtol=0, atol=1e-8)
            w_before, x_before = w, mean


@law
@given(n=clients, seed=seeds, k=steps)
def test_i11_with_the_step_as_long_as_the_penalty_only_the_last_gradient_counts(n: int, seed: int, k: int) -> None:
    run = engine(DFedADMM(penalty=0.1), Weights(np.eye(n)), samples([4] * n, seed), local_steps=k, lr=0.1)
    for t in range(2):
        x, g = run.models(), run.state["dual"]
        run.round(t)
        for i in range(n):
            y = x[i]
            for _ in range(k):
                last = full_gradient(run, i, y)
                y = x[i] - 0.1 * (last - g[i])
            torch.testing.assert_close(run.state["dual"][i], last, **CLOSE)


@law
@given(n=clients, seed=seeds, k=steps)
def test_i12_on_the_full_graph_with_the_new_dual_it_is_fedpd(n: int, seed: int, k: int) -> None:
    two = pair(n, seed, (DFedADMM(penalty=2.0, dual="new"), "full"), (FedPD(penalty=2.0), "server"), k)
    same_all_the_way(*two, (dual, dual))


@law
@given(n=clients, seed=seeds, k=steps)
def test_i9_dfedadmm_sam_without_a_radius_is_dfedadmm_bitwise(n: int, seed: int, k: int) -> None:
    weights, data = Weights(metropolis(n, seed)), samples([8] * n, seed)
    plain = play(engine(DFedADMM(), weights, data, local_steps=k))
    assert torch.equal(play(engine(DFedADMMSAM(rho=0.0), weights, data, local_steps=k)), plain)
    assert not torch.equal(play(engine(DFedADMMSAM(rho=0.1), weights, data, local_steps=k)), plain)


def edge_form(
    kind: str, matrix: np.ndarray, minima: Tensor, k: int, rounds: int, eta: float, c: float, theta: float
) -> Tensor:
    """Edge consensus with one dual for each end of each edge, on f_i(x) = ½‖x − m_i‖²."""
    n = len(minima)
    near = [[j for j in range(n) if j != i and matrix[i, j] > 0] for i in range(n)]
    sign = {(i, j): 1.0 if i > j else -1.0 for i in range(n) for j in near[i]}
    z = {edge: torch.zeros_like(minima[0]) for edge in sign}
    x = torch.zeros_like(minima)
    for _ in range(rounds):
        new = []
        for i in range(n):
            y, pull = x[i], sum(sign[i, j] * z[i, j] for j in near[i])
            for _ in range(k):
                g = y - minima[i]
                if kind == "pdmm":
                    y = y - eta * (g + c * (len(near[i]) * y - pull))
                else:
                    y = (y / eta - g + c * pull) / (1 / eta + c * len(near[i]))
            new.append(y)
        x = torch.stack(new)
        sent = {(i, j): z[i, j] - 2 * sign[i, j] * x[i] for i, j in sign}
        z = {(i, j): (1 - theta) * z[i, j] + theta * sent[j, i] for i, j in sign}
    return x


@law
@given(
    n=clients, seed=seeds, k=st.integers(1, 4), kind=st.sampled_from(["ecl", "pdmm"]), theta=st.sampled_from([1.0, 0.5])
)
def test_i17_the_node_form_is_the_edge_form(n: int, seed: int, k: int, kind: str, theta: float) -> None:
    from quadratic import minima_of, quadratic_engine

    matrix, minima = metropolis(n, seed), minima_of(n, seed)
    method = (ECL if kind == "ecl" else PDMM)(coupling=0.7, relaxation=theta)
    run = quadratic_engine(method, Weights(matrix), minima, steps=k, lr=0.2)
    total = run.state["S"].sum(0)
    for t in range(10):
        run.round(t)
        if theta == 1.0:  # S⁺ + S = 2 Σ E_i x_i⁺, whatever the losses are
            degree = torch.from_numpy((matrix > 0).sum(1) - 1.0)[:, None]
            torch.testing.assert_close(run.state["S"].sum(0) + total, 2 * (degree * run.models()).sum(0), **CLOSE)
            total = run.state["S"].sum(0)
    torch.testing.assert_close(run.models(), edge_form(kind, matrix, minima, k, 10, 0.2, 0.7, theta), **CLOSE)


@pytest.mark.parametrize("method", [ECL(), PDMM(), ECLISVR()], ids=["ecl", "pdmm", "ecl-isvr"])
def test_i17_edge_consensus_reaches_the_optimum_of_the_mean(method: Any) -> None:
    from quadratic import minima_of, quadratic_engine

    minima = minima_of(6, 0)
    run = quadratic_engine(method, "ring", minima, steps=4, lr=0.2)
    play(run, 150)
    torch.testing.assert_close(run.models(), minima.mean(0).repeat(6, 1), rtol=0, atol=1e-8)
