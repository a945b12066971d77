"""The laws of the methods, as properties over random graphs, sizes, seeds and amounts of local work.

`method_laws.py` has the laws of every method; a law runs over all methods that it holds for. Float64, no clipping, no
weight decay; "bitwise" where the two sides must be the same computation.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.methods import (
    DPSGD,
    METHODS,
    DFedAvg,
    DFedAvgM,
    DFedSAM,
    DFedSAMMGS,
    FedAvg,
    FedSAM,
    Gossip,
    OledFL,
    QGDSGDm,
)
from method_laws import LAWS
from problems import Weights, engine, full_gradient, methods_under, metropolis, play, samples, without_learning

CLOSE = {"rtol": 0.0, "atol": 1e-10}
law = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 2**32)
clients = st.integers(3, 6)
local_steps = st.integers(0, 5)


def build(name: str) -> object:
    return METHODS.build({"name": name, **({"rho": 0.1} if "sam" in name else {})})


def graph_for(name: str, n: int, seed: int) -> object:
    return "server" if "server" in METHODS.build(name).sends.values() else Weights(metropolis(n, seed))


def sizes(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 10, size=n).tolist()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_laws_and_every_law_is_tested(name: str) -> None:
    pages = [page.read_text() for page in Path(__file__).parent.glob("test_*.py")]
    tested = {number.upper() for page in pages for number in re.findall(r"^def test_(i\d+)_", page, re.MULTILINE)}
    assert LAWS[name], f"{name} has no law"
    assert set(LAWS[name]) <= tested


@pytest.mark.parametrize("name", methods_under("I1"))
@law
@given(n=clients, seed=seeds)
def test_i1_mixing_preserves_the_mean_and_leaves_agreement_alone(name: str, n: int, seed: int) -> None:
    """Without local steps a round is mixing alone: the mean stays, and clients that agree stay where they are."""
    run = engine(build(name), Weights(metropolis(n, seed)), samples([4] * n, seed), local_steps=0)
    if run.training.traits.local_work:  # insists on a step: give it one of length zero
        run = without_learning(run)
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=run.state["x"].shape))
    run.state["x"] = x
    run.round(0)
    torch.testing.assert_close(run.models().mean(0), x.mean(0), **CLOSE)
    assert float((run.models() - x.mean(0)).norm()) < float((x - x.mean(0)).norm())
    run.state["x"] = x[:1].repeat(n, 1)
    run.round(1)
    torch.testing.assert_close(run.models(), x[:1].repeat(n, 1), **CLOSE)


@law
@given(n=clients, seed=seeds, steps=local_steps)
def test_i9_sam_without_a_radius_is_plain_descent_bitwise(n: int, seed: int, steps: int) -> None:
    data, weights = samples(sizes(n, seed), seed), Weights(metropolis(n, seed))
    plain = play(engine(DFedAvg(), weights, data, local_steps=steps))
    assert torch.equal(play(engine(DFedSAM(rho=0.0), weights, data, local_steps=steps)), plain)
    assert torch.equal(play(engine(DFedSAMMGS(rho=0.0, gossip_steps=1), weights, data, local_steps=steps)), plain)
    if steps:
        assert not torch.equal(play(engine(DFedSAM(rho=0.1), weights, data, local_steps=steps)), plain)


@law
@given(n=clients, seed=seeds, steps=local_steps, q=st.integers(1, 5))
def test_i10_several_gossip_steps_are_a_power_of_the_matrix(n: int, seed: int, steps: int, q: int) -> None:
    data, matrix = samples(sizes(n, seed), seed), metropolis(n, seed)
    once = play(engine(DFedSAM(rho=0.1), Weights(matrix), data, local_steps=steps), rounds=1)
    many = play(engine(DFedSAMMGS(rho=0.1, gossip_steps=q), Weights(matrix), data, local_steps=steps), rounds=1)
    power = torch.from_numpy(np.linalg.matrix_power(matrix, q - 1))
    torch.testing.assert_close(many, power @ once, **CLOSE)
    everyone = Weights(np.full((n, n), 1 / n))
    one = play(engine(DFedSAMMGS(rho=0.1, gossip_steps=1), everyone, data, local_steps=steps))
    torch.testing.assert_close(
        play(engine(DFedSAMMGS(rho=0.1, gossip_steps=q), everyone, data, local_steps=steps)), one, **CLOSE
    )


@law
@given(n=clients, seed=seeds, steps=local_steps)
def test_i13_dfedavg_on_the_full_graph_is_fedavg_of_all_clients(n: int, seed: int, steps: int) -> None:
    data = samples(sizes(n, seed), seed)
    averaged = play(engine(DFedAvg(), "full", data, local_steps=steps))
    torch.testing.assert_close(play(engine(FedAvg(), "server", data, local_steps=steps)), averaged, **CLOSE)
    torch.testing.assert_close(averaged, averaged[:1].repeat(n, 1), **CLOSE)


@law
@given(n=clients, seed=seeds, steps=local_steps, theta=st.floats(0, 0.95))
def test_i13_alone_it_is_sgd_and_with_momentum_the_heavy_ball(n: int, seed: int, steps: int, theta: float) -> None:
    """W = I, whole batches: compared with loops over ordinary modules."""
    data, alone = samples([4] * n, seed), Weights(np.eye(n))
    sgd = engine(DFedAvg(), alone, data, local_steps=steps)
    ball = engine(DFedAvgM(momentum=theta), alone, data, local_steps=steps)
    x0 = sgd.training.model.initial
    for client, (plain, heavy) in enumerate(zip(play(sgd, 1), play(ball, 1), strict=True)):
        y, z, before = x0, x0, x0
        for _ in range(steps):
            y = y - 0.2 * full_gradient(sgd, client, y)
            z, before = z - 0.2 * full_gradient(ball, client, z) + theta * (z - before), z
        torch.testing.assert_close(plain, y, **CLOSE)
        torch.testing.assert_close(heavy, z, **CLOSE)


@law
@given(n=clients, seed=seeds, steps=local_steps)
def test_i13_no_momentum_is_dfedavg_bitwise(n: int, seed: int, steps: int) -> None:
    data, weights = samples(sizes(n, seed), seed), Weights(metropolis(n, seed))
    plain = play(engine(DFedAvg(), weights, data, local_steps=steps))
    assert torch.equal(play(engine(DFedAvgM(momentum=0.0), weights, data, local_steps=steps)), plain)


@law
@given(n=clients, seed=seeds)
def test_i14_dpsgd_is_dfedavg_with_one_step(n: int, seed: int) -> None:
    data, weights = samples(sizes(n, seed), seed), Weights(metropolis(n, seed))
    one = play(engine(DFedAvg(), weights, data, local_steps=1))
    assert torch.equal(play(engine(DPSGD(), weights, data)), one)
    epoch = play(engine(DFedAvg(), weights, data, local_epochs=1))
    assert torch.equal(play(engine(DPSGD(work="epoch"), weights, data)), epoch)


@pytest.mark.parametrize("order", ["adapt-then-combine", "combine-then-adapt"])
@law
@given(n=clients, seed=seeds)
def test_i14_mean_dynamics_and_the_full_graph(order: str, n: int, seed: int) -> None:
    """mean(x⁺) = mean(x) − η mean(g) for either order; on the full graph equal clients follow the mean gradient."""
    run = engine(DPSGD(order=order), Weights(metropolis(n, seed)), samples([4] * n, seed))  # type: ignore[arg-type]
    for t in range(3):
        x = run.models()
        run.round(t)
        mean_gradient = torch.stack([full_gradient(run, i, x[i]) for i in range(n)]).mean(0)
        torch.testing.assert_close(run.models().mean(0), x.mean(0) - 0.2 * mean_gradient, **CLOSE)
    run = engine(DPSGD(), "full", samples([4] * n, seed))
    x = run.training.model.initial
    for t in range(3):
        x = x - 0.2 * torch.stack([full_gradient(run, i, x) for i in range(n)]).mean(0)
        run.round(t)
        torch.testing.assert_close(run.models(), x.repeat(n, 1), **CLOSE)


@pytest.mark.parametrize("name", methods_under("I21"))
@law
@given(n=clients, seed=seeds, steps=local_steps)
def test_i21_relabelling_clients_relabels_the_result(name: str, n: int, seed: int, steps: int) -> None:
    """Whole batches of unequal sizes, one client without any, so that its draws do not depend on a client's number."""
    rng = np.random.default_rng(seed)
    order, sizes = rng.permutation(n), rng.permuted([0, *rng.integers(1, 5, n - 1)])
    data, matrix = samples(sizes.tolist(), seed), metropolis(n, seed)
    assert data.clients is not None
    relabelled = replace(data, clients=tuple(data.clients[i] for i in order))
    server = graph_for(name, n, seed) == "server"
    one = play(engine(build(name), "server" if server else Weights(matrix), data, local_steps=steps))
    conjugate = "server" if server else Weights(matrix[np.ix_(order, order)])
    two = play(engine(build(name), conjugate, relabelled, local_steps=steps))
    torch.testing.assert_close(two, one[torch.from_numpy(order)], **CLOSE)


@pytest.mark.parametrize("name", methods_under("I22"))
@law
@given(n=clients, seed=seeds, steps=local_steps)
def test_i22_equal_data_never_breaks_consensus_and_is_the_single_machine(
    name: str, n: int, seed: int, steps: int
) -> None:
    """All clients hold the same whole batch: they stay together, and move as one machine with that batch would."""
    many = engine(build(name), graph_for(name, n, seed), samples([4] * n, seed, same=True), local_steps=steps)
    alone = engine(
        build(name), "server" if graph_for(name, n, seed) == "server" else "full", samples([4], seed), local_steps=steps
    )
    for t in range(3):
        many.round(t)
        alone.round(t)
        torch.testing.assert_close(many.models(), alone.models().repeat(n, 1), **CLOSE)


@law
@given(n=clients, seed=seeds, q=st.integers(1, 4))
def test_gossip_steps_are_counted_in_the_bytes(n: int, seed: int, q: int) -> None:
    run = engine(DFedSAMMGS(gossip_steps=q), "ring", samples([4] * n, seed), local_steps=0)
    report = run.round(0)
    size = 8 * run.training.model.size
    assert run.training.traits.gossip_steps == q
    assert report.client_bytes.tolist() == [2 * q * size] * n


@law
@given(n=clients, seed=seeds, steps=local_steps)
def test_i13_relatives_without_their_own_part_are_dfedavg(n: int, seed: int, steps: int) -> None:
    data, weights = samples(sizes(n, seed), seed), Weights(metropolis(n, seed))
    plain = play(engine(DFedAvg(), weights, data, local_steps=steps))
    for method in (QGDSGDm(momentum=0.0), OledFL(beta=0.0), Gossip()):
        assert torch.equal(play(engine(method, weights, data, local_steps=steps)), plain)


@law
@given(n=clients, seed=seeds, steps=local_steps)
def test_i9_fedsam_without_a_radius_is_fedavg_bitwise(n: int, seed: int, steps: int) -> None:
    data = samples(sizes(n, seed), seed)
    plain = play(engine(FedAvg(), "server", data, local_steps=steps))
    assert torch.equal(play(engine(FedSAM(rho=0.0), "server", data, local_steps=steps)), plain)
