"""Where methods end up: quadratic clients, full gradients, a constant step size.

Client i minimises ½ Σ_p a_ip (x_p − m_ip)², with minima and curvatures of its own. The mean of all is least at
Σ_i a_i m_i / Σ_i a_i, parameter by parameter.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer import per_client
from gossamer.engines import Stacked
from gossamer.graphs import GRAPHS, Network
from gossamer.methods import (
    ECL,
    ECLISVR,
    GECL,
    KGT,
    OSGP,
    PDMM,
    SGP,
    DFedADMM,
    DFedAvg,
    DScaffold,
    FedPD,
    LocalGECL,
    OverlapSGP,
    Scaffold,
)
from gossamer.mixing import Mixer
from problems import Federation, Weights, engine, federations, metropolis, play, samples, without_learning
from quadratic import Bowl, quadratic_engine

CLIENTS, STEPS = 10, 8
rng = np.random.default_rng(0)
MINIMA = rng.normal(size=(CLIENTS, 2))
CURVED = rng.uniform(0.5, 1.5, size=(CLIENTS, 2))
EQUAL = np.ones((CLIENTS, 2))
OPTIMUM = torch.from_numpy((CURVED * MINIMA).sum(0) / CURVED.sum(0))


def bowls(method: Any, curvatures: np.ndarray, lr: float) -> Stacked:
    data = per_client([([[*m, *np.sqrt(a)]], [[0.0, 0.0]]) for m, a in zip(MINIMA, curvatures, strict=True)])
    work = {} if isinstance(method, GECL) else {"local_steps": STEPS}
    return engine(method, "ring", data, model=Bowl, loss="squared-error", lr=lr, **work)


def distance(run: Stacked) -> float:
    """How far the furthest client is from the minimiser of the mean."""
    return float((run.models() - OPTIMUM).abs().max())


@pytest.mark.parametrize(
    ("method", "lr", "rounds"),
    [
        (LocalGECL(), 0.008, 275),
        (DScaffold(), 0.008, 275),
        (KGT(), 0.008, 275),
        (GECL(), 0.06, 275),
        (ECL(), 0.06, 95),
        (PDMM(), 0.06, 82),
        (ECLISVR(), 0.03, 150),
    ],
    ids=["local-g-ecl", "d-scaffold", "k-gt", "g-ecl", "ecl", "pdmm", "ecl-isvr"],
)
def test_every_client_reaches_the_minimiser_of_the_mean(method: Any, lr: float, rounds: int) -> None:
    run = bowls(method, CURVED, lr)
    assert distance(run) > 0.1
    play(run, rounds)
    assert distance(run) < 1e-8


# Clients of unequal sizes, some without samples, that take unequal numbers of steps.

law = settings(max_examples=3, deadline=None)
SAMPLED = {"name": "server", "participation": 0.5}


def ends(method: Any, graph: Any, fed: Federation, lr: float, weights: Any = None) -> tuple[Stacked, Tensor]:
    """A run on bowls of a federation, and where it must end: the minimiser of the (weighted) mean of their objectives.

    All samples of a client are alike, so every mini-batch has the gradient of them all. A client without samples has
    the objective zero.
    """
    rng = np.random.default_rng(fed.seed)
    bottoms, curved = rng.normal(size=(fed.clients, 2)), rng.uniform(0.5, 1.5, size=(fed.clients, 2))
    drawn = np.hstack([bottoms, np.sqrt(curved)])
    data = per_client([(np.tile(s, (n, 1)), np.zeros((n, 2))) for s, n in zip(drawn, fed.sizes, strict=True)])
    run = engine(method, graph, data, model=Bowl, loss="squared-error", lr=lr, batch_size=3, **fed.work)
    counts = curved * np.sign(fed.sizes)[:, None]
    if weights is not None:
        counts = counts * weights(run)[:, None]
    return run, torch.from_numpy((counts * bottoms).sum(0) / counts.sum(0))


def reaches(run: Stacked, optimum: Tensor, rounds: int = 6000) -> None:
    for t in range(rounds):
        run.round(t)
        if t % 20 == 0 and float((run.models() - optimum).abs().max()) < 1e-5:
            return
    torch.testing.assert_close(run.models(), optimum.expand_as(run.models()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "graph", "lr"),
    [
        (LocalGECL(), None, 0.05),
        (LocalGECL(start="aggregated", warm_start=1), None, 0.05),
        (LocalGECL(), "server", 0.05),
        (LocalGECL(warm_start=1), "server", 0.05),
        (DScaffold(), None, 0.05),
        (KGT(), None, 0.05),
        (GECL(), None, 0.08),
        (GECL(alpha=0.3), None, 0.08),
        (Scaffold(), "server", 0.05),
        (Scaffold(), SAMPLED, 0.05),
        (FedPD(penalty=0.5), "server", 0.05),
        (DFedADMM(penalty=0.5, dual="new"), "full", 0.05),
        (ECL(coupling=1.0), None, 0.1),
        (PDMM(coupling=1.0), None, 0.1),
        (PDMM(coupling=1.0, relaxation=0.5), None, 0.1),
    ],
    ids=lambda value: str(value) if not isinstance(value, dict) else "sampled",
)
@law
@given(fed=federations())
def test_unequal_and_empty_clients_reach_the_minimiser_of_the_mean(
    method: Any, graph: Any, lr: float, fed: Federation
) -> None:
    if isinstance(method, GECL):
        fed = fed._replace(work={})
    reaches(*ends(method, graph or Weights(metropolis(fed.clients, fed.seed)), fed, lr))


@pytest.mark.parametrize(
    ("method", "strength"),
    [
        (ECL(), lambda E, K: 1 / (E * np.maximum(K - 1, 1))),
        (PDMM(), lambda E, K: 1 / (E * np.maximum(K - 1, 1))),
        (ECLISVR(), lambda E, K: 1 / (K * E + K - E)),
    ],
    ids=["ecl", "pdmm", "ecl-isvr"],
)
@law
@given(fed=federations(least=4))
def test_couplings_of_the_papers_weigh_clients_by_their_steps_too(method: Any, strength: Any, fed: Federation) -> None:
    """With the same number of steps for all, on a regular graph, the weights are equal: the minimiser of the mean."""
    graph = Weights(metropolis(fed.clients, fed.seed))
    degrees = (graph.matrix > 0).sum(1) - 1
    reaches(*ends(method, graph, fed, 0.05, lambda run: 1 / strength(degrees, run.training.batches.local_steps)))
    if "local_steps" in fed.work:
        reaches(*ends(method, "ring", fed, 0.05))


@law
@given(fed=federations(), decay=st.sampled_from([0.0, 0.1]))
def test_a_client_without_samples_does_not_move_by_itself(fed: Federation, decay: float) -> None:
    """Where steps only follow gradients it sends what it has: there is no weight decay without a gradient."""
    alone = Weights(np.eye(fed.clients))
    for method in ("dfedavg", "dfedavgm", "dfedsam", "osgp", "dfedsgpsm", "qg-dsgdm", "dfedadmm", "oledfl"):
        run = engine(method, alone, samples(fed.sizes, fed.seed), lr=0.1, weight_decay=decay, **fed.work)
        start = run.models().clone()
        play(run, 3)
        moved = (run.models() != start).any(1)
        assert moved.tolist() == [size > 0 for size in fed.sizes]


@pytest.mark.parametrize(
    ("method", "strength"),
    [
        (ECL(coupling=1.0), lambda E, K: 1.0 + 0 * E),
        (ECL(), lambda E, K: 1 / (E * (K - 1))),
        (ECLISVR(), lambda E, K: 1 / (K * E + K - E)),
    ],
    ids=["one for all", "ecl's default", "ecl-isvr"],
)
def test_edge_consensus_weighs_clients_by_the_inverse_of_their_couplings(method: Any, strength: Any) -> None:
    """Where it rests, all agree and Σ_i g_i / η_c,i = 0: only one coupling for all gives the minimiser of the mean.

    The couplings of the papers' code depend on a client's degree, so on an irregular graph they favour the hubs.
    """
    minima, degrees = MINIMA[:5], np.array([3.0, 1.0, 1.0, 2.0, 1.0])
    irregular = {"name": "edges", "edges": [(0, 1), (0, 2), (0, 3), (3, 4)]}
    run = quadratic_engine(method, irregular, minima, steps=2, lr=0.2)
    play(run, 150)
    rests = torch.from_numpy(np.average(minima, axis=0, weights=1 / strength(degrees, 2)))
    torch.testing.assert_close(run.models(), rests.repeat(5, 1), rtol=0, atol=1e-8)


def dfedavg_ends_at(curvatures: np.ndarray, lr: float) -> np.ndarray:
    """The fixed point of X = W Φ(X): K steps leave the share D = (1 − η a)^K of the way, Φ(X) = D X + (1 − D) M.

    So (I − W D) X = W (1 − D) M, one system for each parameter.
    """
    W = GRAPHS.build("ring").bind(CLIENTS, 0).matrix(0).toarray()
    left = (1 - lr * curvatures) ** STEPS
    ends = [
        np.linalg.solve(np.eye(CLIENTS) - W * left[:, p], W @ ((1 - left[:, p]) * MINIMA[:, p]))
        for p in range(MINIMA.shape[1])
    ]
    return np.stack(ends, axis=1)


def test_dfedavg_ends_elsewhere_and_where_it_is_predicted_to() -> None:
    """With different curvatures even the mean of all clients is off."""
    run = bowls(DFedAvg(), CURVED, lr=0.1)
    predicted = torch.from_numpy(dfedavg_ends_at(CURVED, lr=0.1))
    play(run, 70)
    torch.testing.assert_close(run.models(), predicted, rtol=0, atol=1e-8)
    assert distance(run) > 0.1
    gap = (run.models().mean(0) - OPTIMUM).norm()
    assert gap > 1e-2
    torch.testing.assert_close(gap, (predicted.mean(0) - OPTIMUM).norm(), rtol=0, atol=1e-8)


def test_dfedavg_with_equal_curvatures_has_the_right_mean_and_clients_that_disagree() -> None:
    """There every client contracts alike, so the mean follows gradient descent on the mean: only consensus is lost."""
    run = bowls(DFedAvg(), EQUAL, lr=0.1)
    play(run, 30)
    torch.testing.assert_close(run.models(), torch.from_numpy(dfedavg_ends_at(EQUAL, lr=0.1)), rtol=0, atol=1e-8)
    torch.testing.assert_close(run.models().mean(0), torch.from_numpy(MINIMA.mean(0)), rtol=0, atol=1e-8)
    assert float((run.models() - run.models().mean(0)).abs().max()) > 0.1


def test_dfedavg_is_off_by_less_the_smaller_its_steps_are() -> None:
    """Its gap is a matter of the step size: small steps end closer, none ends there."""
    gaps = [np.abs(dfedavg_ends_at(CURVED, lr) - OPTIMUM.numpy()).max() for lr in (0.1, 0.01, 0.001, 0.0001)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-2] / gaps[-1] == pytest.approx(10, rel=0.1)  # in proportion, once steps are small
    assert gaps[-1] > 1e-3


# Push-sum, on a directed graph where client 0 sends to three others, client 2 to two, the rest to one.

UNEQUAL = {"name": "edges", "directed": True, "edges": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3), (2, 0)]}
START = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 2)))


def unequal() -> Network:
    return GRAPHS.build(UNEQUAL).bind(5, 0)


@pytest.mark.parametrize("method", [SGP(), OSGP(), OverlapSGP()], ids=["sgp", "osgp", "overlap-sgp"])
def test_push_sum_reaches_the_true_average_on_a_directed_graph(method: Any) -> None:
    assert sorted(unequal().sends(0)) == [1, 1, 1, 2, 3]
    steps = 1 if not isinstance(method, SGP) else None
    run = without_learning(quadratic_engine(method, UNEQUAL, START, steps=steps, lr=0.1))
    run.state["x"] = START.clone()
    play(run, 150)
    torch.testing.assert_close(run.models(), START.mean(0).repeat(5, 1), rtol=0, atol=1e-10)
    assert float((run.models() * method.weight(run.state)[:, None] - run.models()).abs().max()) > 0.01


def test_plain_averaging_with_the_same_weights_is_biased_as_predicted() -> None:
    """Columns that sum to one keep the total, not agreement: x_i tends to n v_i times the mean, v = P v, Σ v = 1."""
    network, x = unequal(), START.clone()
    values, vectors = np.linalg.eig(network.matrix(0).toarray())
    perron = np.real(vectors[:, np.argmax(np.abs(values))])
    perron = perron / perron.sum()
    assert (perron > 0).all()
    for t in range(150):
        x = Mixer(network).mix({"x": "average"}, {"x": x}, t)["x"]
    torch.testing.assert_close(x.sum(0), START.sum(0), rtol=0, atol=1e-10)
    torch.testing.assert_close(x, 5 * torch.from_numpy(perron)[:, None] * START.mean(0), rtol=0, atol=1e-8)
    off = (x - START.mean(0)).abs()
    assert float(off.max()) > 0.1 * float(START.mean(0).abs().max())
