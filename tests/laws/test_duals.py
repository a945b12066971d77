"""Laws of the methods with duals: SCAFFOLD, G-ECL, K-GT, DFedADMM, edge consensus.

Clients hold unequal numbers of samples, some none, and take unequal numbers of local steps.
"""

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
from problems import (
    Federation,
    Weights,
    engine,
    federations,
    full_gradient,
    metropolis,
    play,
    samples,
    step_gradients,
)
from quadratic import minima_of, quadratic_engine

CLOSE = {"rtol": 0.0, "atol": 1e-10}
law = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 2**32)
unequal = federations()
equal_steps = federations(by="steps")


def run_of(method: Any, graph: Any, fed: Federation, lr: float = 0.05) -> Stacked:
    """A method on the samples of a federation."""
    return engine(method, graph, samples(fed.sizes, fed.seed), lr=lr, **fed.work)


def pair(fed: Federation, one: Any, two: Any) -> tuple[Stacked, Stacked]:
    """Two methods on the same samples; each given as (method, graph)."""
    return run_of(*one, fed), run_of(*two, fed)


def random_weights(fed: Federation) -> Weights:
    """A random connected graph for a federation."""
    return Weights(metropolis(fed.clients, fed.seed))


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
@given(fed=unequal, warm=st.integers(0, 3))
def test_i3_duals_sum_to_zero_and_the_mean_follows_the_mean_gradient(fed: Federation, warm: int) -> None:
    keeps_the_sum(LocalGECL(warm_start=warm), random_weights(fed), fed)
    keeps_the_sum(LocalGECL(warm_start=warm), "server", fed)
    if warm:
        weights = random_weights(fed)
        start = run_of(LocalGECL(warm_start=warm), weights, fed._replace(work={"local_steps": 0}))
        start.round(0)
        x0 = start.training.model.initial
        G = torch.stack([full_gradient(start, i, x0) for i in range(fed.clients)])
        power = torch.from_numpy(np.linalg.matrix_power(weights.matrix, warm))
        torch.testing.assert_close(start.state["dual"], G - power @ G, **CLOSE)


@law
@given(fed=equal_steps)
def test_i3_with_an_extra_pull_of_the_edges(fed: Federation) -> None:
    keeps_the_sum(LocalGECL(alpha=0.3), random_weights(fed), fed)
    keeps_the_sum(GECL(alpha=0.3), random_weights(fed), fed)


def keeps_the_sum(method: Any, graph: Any, fed: Federation) -> None:
    """Σ λ = 0, and the mean model moves by the mean of the K_i v̄_i, in every round."""
    run = run_of(method, graph, fed)
    K = torch.from_numpy(run.training.batches.local_steps)[:, None]
    for t in range(4):
        base = run.state["aggregated"]
        run.round(t)
        torch.testing.assert_close(run.state["dual"].sum(0), torch.zeros_like(base[0]), **CLOSE)
        v = (base - run.state["x"]) / (K * 0.05)
        torch.testing.assert_close(run.models().mean(0), (base - K * 0.05 * v).mean(0), **CLOSE)


@law
@given(fed=unequal, server=st.booleans(), start=st.sampled_from(["local", "aggregated"]))
def test_i3_rounds_by_hand(fed: Federation, server: bool, start: Any) -> None:
    """Mini-batch by mini-batch with ordinary modules: the recursion as the paper prints it."""
    n = fed.clients
    matrix = torch.full((n, n), 1 / n, dtype=torch.float64) if server else torch.from_numpy(metropolis(n, fed.seed))
    run = run_of(LocalGECL(start=start), "server" if server else Weights(matrix), fed)
    x = run.training.model.initial.repeat(n, 1)
    base, lam = x.clone(), torch.zeros_like(x)
    for t in range(3):
        ends, means = [], []
        for i in range(n):
            cur, at, vs = x[i] if start == "local" else base[i], base[i], []
            for gradient in step_gradients(run, i, t):
                vs.append(gradient(cur) - lam[i])
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
@given(fed=unequal, warm=st.integers(0, 1))
def test_i4_on_the_full_graph_algorithm_1_is_algorithm_2(fed: Federation, warm: int) -> None:
    same_all_the_way(
        *pair(fed, (LocalGECL(warm_start=warm), "full"), (LocalGECL(warm_start=warm), "server")), (dual, dual)
    )


@law
@given(fed=equal_steps, warm=st.integers(0, 1))
def test_i4_for_any_pull_of_the_edges(fed: Federation, warm: int) -> None:
    one = (LocalGECL(alpha=0.7, warm_start=warm), "full")
    same_all_the_way(*pair(fed, one, (LocalGECL(warm_start=warm), "server")), (dual, dual))


@law
@given(fed=unequal)
def test_i5_algorithm_2_from_the_aggregated_model_is_scaffold(fed: Federation) -> None:
    two = pair(fed, (LocalGECL(start="aggregated"), "server"), (Scaffold(), "server"))
    same_all_the_way(*two, (dual, drift))


@law
@given(fed=unequal, share=st.sampled_from([1.0, 0.5]))
def test_i5_control_variates_are_mean_gradients(fed: Federation, share: float) -> None:
    run = run_of(Scaffold(), {"name": "server", "participation": share}, fed)
    for t in range(3):
        x, c, mean = run.models()[0], run.state["control"], run.state["mean_control"]
        called = run.training.network.participants(t)
        run.round(t)
        assert called is not None
        for i in called:
            y, gradients = x, []
            for gradient in step_gradients(run, int(i), t):
                gradients.append(gradient(y))
                y = y - 0.05 * (gradients[-1] - c[i] + mean[i])
            torch.testing.assert_close(run.state["control"][i], torch.stack(gradients).mean(0), **CLOSE)
        everyone = run.state["control"].mean(0).expand_as(run.state["mean_control"])
        torch.testing.assert_close(run.state["mean_control"], everyone, **CLOSE)


@law
@given(fed=unequal, alpha=st.sampled_from([0.0, 0.3]))
def test_i6_one_local_step_is_g_ecl_and_gradient_tracking(fed: Federation, alpha: float) -> None:
    weights, fed = random_weights(fed), fed._replace(work={"local_steps": 1})
    local = run_of(LocalGECL(alpha=alpha), weights, fed)
    same_all_the_way(local, run_of(GECL(alpha=alpha), weights, fed._replace(work={})), (dual, dual))
    if alpha:
        return
    run = run_of(GECL(), weights, fed._replace(work={}))
    previous = None
    for t in range(4):
        gradients = torch.stack([step_gradients(run, i, t)[0](run.state["x"][i]) for i in range(fed.clients)])
        before = run.state["v"]
        run.round(t)
        if previous is not None:
            tracked = torch.from_numpy(weights.matrix) @ before + gradients - previous
            torch.testing.assert_close(run.state["v"], tracked, **CLOSE)
        previous = gradients


@law
@given(fed=unequal)
def test_i7_from_the_aggregated_model_it_is_k_gt(fed: Federation) -> None:
    weights = random_weights(fed)
    two = pair(fed, (LocalGECL(start="aggregated"), weights), (KGT(), weights))
    same_all_the_way(*two, (dual, lambda state: -state["correction"]))


@law
@given(fed=unequal, reading=st.sampled_from(["tracked", "neighbourhood"]))
def test_i8_decentralized_scaffold(fed: Federation, reading: Any) -> None:
    two = pair(fed, (DScaffold(reading=reading), "full"), (Scaffold(), "server"))
    same_all_the_way(*two, (drift, drift))
    weights = random_weights(fed)
    if reading == "tracked":
        two = pair(fed, (DScaffold(), weights), (LocalGECL(start="aggregated"), weights))
        same_all_the_way(*two, (drift, dual))
    run = run_of(DScaffold(reading=reading), weights, fed)
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
@given(fed=unequal, new=st.booleans(), penalty=st.floats(0.15, 20), server=st.booleans())
def test_i11_closed_forms_of_dfedadmm(fed: Federation, new: bool, penalty: float, server: bool) -> None:
    """Lemmas 2 and 3, the message, and lemma 9, with the raw gradients of every step. FedPD is the new dual."""
    eta, n, new = 0.1, fed.clients, new or server
    matrix = torch.full((n, n), 1 / n, dtype=torch.float64) if server else torch.from_numpy(metropolis(n, fed.seed))
    method = FedPD(penalty=penalty) if server else DFedADMM(penalty=penalty, dual="new" if new else "old")
    run = run_of(method, "server" if server else Weights(matrix), fed, lr=eta)
    a = eta / penalty
    K = torch.from_numpy(run.training.batches.local_steps).double()
    gamma = (1 - (1 - a) ** K)[:, None]
    w_before = x_before = run.models().mean(0)
    for t in range(3):
        x, g = run.models(), run.state["dual"]
        bars = []
        for i in range(n):
            y, gradients = x[i], []
            for gradient in step_gradients(run, i, t):
                gradients.append(gradient(y))
                y = y - eta * (gradients[-1] - g[i] + (y - x[i]) / penalty)
            weights = a * (1 - a) ** torch.arange(len(gradients) - 1, -1, -1, dtype=torch.float64) / gamma[i]
            bars.append((weights[:, None] * torch.stack(gradients)).sum(0))
            torch.testing.assert_close(y - x[i], -penalty * gamma[i] * (bars[-1] - g[i]), **CLOSE)
        bar = torch.stack(bars)
        after = (1 - gamma) * g + gamma * bar
        z = x - penalty * (2 * after - g if new else after)
        run.round(t)
        torch.testing.assert_close(run.state["dual"], after, **CLOSE)
        torch.testing.assert_close(run.models(), matrix @ z, **CLOSE)
        if not new and K.min() == K.max():
            # Lemma 9: a moving average of the mean model takes plain steps of length λ, if all have one γ.
            mean = run.models().mean(0)
            w = mean + (1 - gamma[0]) / gamma[0] * (mean - x_before)
            torch.testing.assert_close(w, w_before - penalty * bar.mean(0), rtol=0, atol=1e-8)
            w_before, x_before = w, mean


@law
@given(fed=unequal)
def test_i11_with_the_step_as_long_as_the_penalty_only_the_last_gradient_counts(fed: Federation) -> None:
    run = run_of(DFedADMM(penalty=0.1), Weights(np.eye(fed.clients)), fed, lr=0.1)
    for t in range(2):
        x, g = run.models(), run.state["dual"]
        run.round(t)
        for i in range(fed.clients):
            y = x[i]
            for gradient in step_gradients(run, i, t):
                last = gradient(y)
                y = x[i] - 0.1 * (last - g[i])
            torch.testing.assert_close(run.state["dual"][i], last, **CLOSE)


@law
@given(fed=unequal)
def test_i12_on_the_full_graph_with_the_new_dual_it_is_fedpd(fed: Federation) -> None:
    two = pair(fed, (DFedADMM(penalty=2.0, dual="new"), "full"), (FedPD(penalty=2.0), "server"))
    same_all_the_way(*two, (dual, dual))


@law
@given(fed=unequal)
def test_i9_dfedadmm_sam_without_a_radius_is_dfedadmm_bitwise(fed: Federation) -> None:
    weights = random_weights(fed)
    plain = play(run_of(DFedADMM(), weights, fed))
    assert torch.equal(play(run_of(DFedADMMSAM(rho=0.0), weights, fed)), plain)
    assert not torch.equal(play(run_of(DFedADMMSAM(rho=0.1), weights, fed)), plain)


def edge_form(
    kind: str, matrix: np.ndarray, minima: Tensor, ks: Any, held: Any, rounds: int, eta: float, c: float, theta: float
) -> Tensor:
    """Edge consensus with one dual for each end of each edge, on f_i(x) = ½‖x − m_i‖², or 0 for a client without."""
    n = len(minima)
    near = [[j for j in range(n) if j != i and matrix[i, j] > 0] for i in range(n)]
    sign = {(i, j): 1.0 if i > j else -1.0 for i in range(n) for j in near[i]}
    z = {edge: torch.zeros_like(minima[0]) for edge in sign}
    x = torch.zeros_like(minima)
    for _ in range(rounds):
        new = []
        for i in range(n):
            y, pull = x[i], sum(sign[i, j] * z[i, j] for j in near[i])
            for _ in range(ks[i]):
                g = held[i] * (y - minima[i])
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
@given(fed=unequal, kind=st.sampled_from(["ecl", "pdmm"]), theta=st.sampled_from([1.0, 0.5]))
def test_i17_the_node_form_is_the_edge_form(fed: Federation, kind: str, theta: float) -> None:
    matrix, minima = metropolis(fed.clients, fed.seed), minima_of(fed.clients, fed.seed)
    method = (ECL if kind == "ecl" else PDMM)(coupling=0.7, relaxation=theta)
    run = quadratic_engine(method, Weights(matrix), minima, lr=0.2, sizes=fed.sizes, **fed.work)
    total = run.state["S"].sum(0)
    for t in range(10):
        run.round(t)
        if theta == 1.0:  # S⁺ + S = 2 Σ E_i x_i⁺, whatever the losses are
            degree = torch.from_numpy((matrix > 0).sum(1) - 1.0)[:, None]
            torch.testing.assert_close(run.state["S"].sum(0) + total, 2 * (degree * run.models()).sum(0), **CLOSE)
            total = run.state["S"].sum(0)
    ks, held = run.training.batches.local_steps, np.sign(fed.sizes)
    torch.testing.assert_close(run.models(), edge_form(kind, matrix, minima, ks, held, 10, 0.2, 0.7, theta), **CLOSE)


@pytest.mark.parametrize("method", [ECL(), PDMM(), ECLISVR()], ids=["ecl", "pdmm", "ecl-isvr"])
def test_i17_edge_consensus_reaches_the_optimum_of_the_mean(method: Any) -> None:
    minima = minima_of(6, 0)
    run = quadratic_engine(method, "ring", minima, lr=0.2, local_steps=4)
    play(run, 150)
    torch.testing.assert_close(run.models(), minima.mean(0).repeat(6, 1), rtol=0, atol=1e-8)
