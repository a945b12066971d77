"""Laws of push-sum: mass is conserved, ratios agree, and on regular graphs it is plain averaging."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.methods import (
    DPSGD,
    METHODS,
    OSGP,
    SGP,
    AsyNG,
    DFedAvg,
    DFedAvgM,
    DFedSAM,
    DFedSGPM,
    DFedSGPSM,
    OverlapSGP,
)
from problems import Weights, engine, full_gradient, methods_under, metropolis, play, samples, without_learning

CLOSE = {"rtol": 0.0, "atol": 1e-10}
law = settings(max_examples=6, deadline=None)
seeds = st.integers(0, 2**32)
clients = st.integers(3, 6)
steps = st.integers(1, 4)


def mass(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
    state = run.state
    return (
        state["x"].sum(0) + state.get("arriving", state["x"] * 0).sum(0),
        state["weight"].sum() + state.get("arriving_weight", state["weight"] * 0).sum(),
    )


@pytest.mark.parametrize("name", methods_under("I2"))
@settings(max_examples=3, deadline=None)
@given(n=clients, seed=seeds)
def test_i2_mass_is_conserved_and_the_ratios_agree(name: str, n: int, seed: int) -> None:
    """Directed graphs with unequal in-degrees, no gradients: totals stay, weights stay positive, the z_i meet."""
    graph = "directed-by-loss" if name == "dfedsgpsm-s" else "directed-random"
    data = samples([4] * n, seed)
    run = without_learning(engine(METHODS.build(name), {"name": graph, "neighbours": 1}, data))
    run.state["x"] = torch.from_numpy(np.random.default_rng(seed).normal(size=run.state["x"].shape))
    x, weight = mass(run)
    for t in range(60):
        run.round(t)
        now = mass(run)
        torch.testing.assert_close(now[0], x, **CLOSE)
        torch.testing.assert_close(now[1], weight, **CLOSE)
        assert (run.state["weight"] > 0).all()
    torch.testing.assert_close(run.models(), (x / n).repeat(n, 1), rtol=0, atol=1e-2)
    torch.testing.assert_close(run.average(), x / n, **CLOSE)


@law
@given(n=clients, seed=seeds, k=steps)
def test_i2_on_doubly_stochastic_weights_it_is_plain_averaging(n: int, seed: int, k: int) -> None:
    weights, data = Weights(metropolis(n, seed)), samples([8] * n, seed)
    pairs = [
        (SGP(), DPSGD(), {}),
        (OSGP(), DFedAvg(), {"local_steps": k}),
        (DFedSGPM(momentum=0.5), DFedAvgM(momentum=0.5), {"local_steps": k}),
        (DFedSGPSM(momentum=0.0, rho=0.1), DFedSAM(rho=0.1), {"local_steps": k}),
        (DFedSGPSM(momentum=0.5, rho=0.0), DFedAvgM(momentum=0.5), {"local_steps": k}),
    ]
    for pushed, averaged, work in pairs:
        run = engine(pushed, weights, data, **work)
        torch.testing.assert_close(play(run), play(engine(averaged, weights, data, **work)), **CLOSE)
        torch.testing.assert_close(run.state["weight"], torch.ones(n, dtype=torch.float64), **CLOSE)


@law
@given(n=clients, seed=seeds, k=steps)
def test_i2_mean_dynamics_with_what_is_under_way(n: int, seed: int, k: int) -> None:
    """Whatever is sent, the total moves by the gradients alone."""
    graph = {"name": "directed-random", "neighbours": 1}
    for method in (OSGP(), OverlapSGP(), AsyNG()):
        run = engine(method, graph, samples([4, 0, *range(1, n - 1)], seed), local_steps=1)
        for t in range(3):
            x, weight = run.state["x"], run.state["weight"]
            if isinstance(method, OverlapSGP):
                own = torch.from_numpy(run.training.network.own_weights(t))
                x = own[:, None] * (x + run.state["arriving"])
                weight = own * (weight + run.state["arriving_weight"])
            before = mass(run)[0]
            gradients = torch.stack([full_gradient(run, i, x[i] / weight[i]) for i in range(n)])
            run.round(t)
            torch.testing.assert_close(mass(run)[0], before - 0.2 * gradients.sum(0), **CLOSE)


@law
@given(n=clients, seed=seeds, k=steps)
def test_i9_fewer_parts_give_the_simpler_method_bitwise(n: int, seed: int, k: int) -> None:
    graph, data = {"name": "directed-random", "neighbours": 1}, samples([8] * n, seed)
    momentum = play(engine(DFedSGPM(momentum=0.5), graph, data, local_steps=k))
    assert torch.equal(play(engine(DFedSGPSM(momentum=0.5, rho=0.0), graph, data, local_steps=k)), momentum)
    plain = play(engine(OSGP(), graph, data, local_steps=k))
    assert torch.equal(play(engine(DFedSGPSM(momentum=0.0, rho=0.0), graph, data, local_steps=k)), plain)
    assert torch.equal(play(engine(SGP(), graph, data)), play(engine(OSGP(), graph, data, local_steps=1)))
    if k > 1:
        assert not torch.equal(momentum, plain)


@law
@given(n=clients, seed=seeds, k=steps)
def test_i18_asyng_is_sgp_with_k_times_the_step_on_the_joined_batch(n: int, seed: int, k: int) -> None:
    """K batches of 4 out of 4K samples are one epoch, whose mean gradient is that of all samples."""
    graph, data = {"name": "directed-random", "neighbours": 1}, samples([4 * k] * n, seed)
    frozen = engine(AsyNG(), graph, data, local_steps=k, lr=0.1)
    joined = engine(SGP(), graph, data, batch_size=4 * k, lr=0.1 * k)
    torch.testing.assert_close(play(frozen), play(joined), **CLOSE)
