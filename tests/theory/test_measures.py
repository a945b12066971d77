"""Measured constants where they are known: quadratic clients, equal clients, and graphs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import Experiment, per_client
from gossamer.errors import ExperimentError
from gossamer.graphs import GRAPHS, as_graph, summarise
from gossamer.theory import Theory, analyse, measure
from gossamer.theory.measures import mixing_of, pull_of
from problems import engine, samples
from quadratic import Point, minima_of, quadratic_engine


def test_quadratic_clients_in_closed_form() -> None:
    minima = minima_of(6, seed=1)
    found = measure(quadratic_engine("dfedavg", "ring", minima.tolist(), steps=3, lr=0.1).training)
    away = (minima - minima.mean(0)).norm(dim=1)
    assert found.sigma_g == pytest.approx(float(away.square().mean().sqrt()))
    assert found.beta == pytest.approx(float(away.max()))
    assert found.gradient == pytest.approx(float(minima.norm(dim=1).max()))
    assert found.loss == pytest.approx(0.5 * float(minima.square().sum(1).mean()))
    assert found.smoothness == pytest.approx(1)
    assert found.sigma_l == 0  # one sample each, so every mini-batch is the whole
    assert found.x0 == 0


def test_the_noise_of_single_samples() -> None:
    # Two samples a and b, one at a time: every gradient is (a − b)/2 away from their mean.
    pairs = np.random.default_rng(2).normal(size=(3, 2, 2))
    data = per_client([(pair.tolist(), [[0.0, 0.0]] * 2) for pair in pairs])
    kind: dict[str, Any] = {"model": Point, "loss": "squared-error", "local_steps": 4}
    squares = [float(np.sum(((pair[0] - pair[1]) / 2) ** 2)) for pair in pairs]
    alone = measure(engine("dfedavg", "ring", data, batch_size=1, **kind).training)
    assert alone.sigma_l**2 == pytest.approx(np.mean(squares))
    assert alone.sigma_l_largest**2 == pytest.approx(max(squares))
    assert measure(engine("dfedavg", "ring", data, batch_size=2, **kind).training).sigma_l == pytest.approx(
        0, abs=1e-12
    )


def test_weight_decay_is_part_of_the_objective() -> None:
    work = quadratic_engine("dfedavg", "ring", [[1.0, 2.0]] * 3, steps=1, lr=0.1, weight_decay=0.5).training
    assert measure(work).smoothness == pytest.approx(1.5)


def test_clients_with_the_same_data_do_not_differ() -> None:
    found = measure(engine("dfedavg", "ring", samples([9] * 4, seed=3, same=True)).training)
    assert found.sigma_g == 0
    assert found.beta == 0
    assert found.sigma_l > 0


def test_curvature_is_the_largest_eigenvalue_of_the_hessian() -> None:
    work = engine("dfedavg", "ring", samples([5, 9, 7], seed=4)).training

    def loss(x: Tensor) -> Tensor:
        parts = []
        for part in work.batches.client_rows:
            inputs = work.dataset.train.inputs[part].double()
            parts.append(nn.functional.cross_entropy(work.model(x, inputs), work.dataset.train.targets[part]))
        return torch.stack(parts).mean()

    hessian = torch.func.hessian(loss)(work.model.initial)
    assert measure(work).smoothness == pytest.approx(float(torch.linalg.eigvalsh(hessian).abs().max()), rel=0.02)


def test_a_given_smoothness_is_taken() -> None:
    work = quadratic_engine("dfedavg", "ring", [[1.0, 2.0]] * 3, steps=1, lr=0.1).training
    assert measure(work, smoothness=7.0).smoothness == 7


class OnceOnly(torch.autograd.Function):
    """A function that forgets how to be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


def once(outputs: Tensor, targets: Tensor) -> Tensor:
    return OnceOnly.apply(outputs).square().sum(1)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (once, "cannot be differentiated twice"),
        (lambda outputs, targets: outputs.sum(1) + 10, "no curvature"),
        (lambda outputs, targets: outputs.sum(1) / 0, "not finite"),
        (lambda outputs, targets: outputs.sum(1) - 10, "never negative"),
    ],
)
def test_a_loss_that_the_theory_cannot_use(loss: Callable[..., Tensor], says: str) -> None:
    data = per_client([([[1.0, 2.0]], [[0.0, 0.0]])] * 3)
    work = engine("dfedavg", "ring", data, model=Point, loss=loss).training
    with pytest.raises(ExperimentError, match=says):
        measure(work)


def mixing(graph: Any, clients: int) -> Any:
    network = as_graph(GRAPHS.build(graph)).bind(clients, 0)
    return mixing_of(network, summarise(network))


def test_graphs() -> None:
    assert mixing("full", 8) == (0.0, 1.0, 1.0)
    assert mixing("server", 8) == (0.0, 1.0, 1.0)
    assert mixing("ring", 10).rate == pytest.approx(0.872678, abs=1e-6)
    assert mixing("one-peer-exponential", 8).rate == pytest.approx(1 - 1 / 3)  # exact after 3 steps
    assert 0 < mixing("random-symmetric", 16).rate < 1
    directed = mixing({"name": "directed-random", "neighbours": 3}, 16)
    assert 0 < directed.rate < 1
    assert directed.factor >= 1
    assert 0 < directed.least_weight < 1


def test_the_pull_of_a_ring() -> None:
    network = as_graph(GRAPHS.build("ring")).bind(8, 0)
    assert pull_of(network, 0.5) == pytest.approx(0.5 * 4)  # the Laplacian of an even ring reaches 4
    assert pull_of(network, 0.0) == 0


def small(**settings: Any) -> Theory:
    data = samples([8] * 8, seed=5)
    defaults: dict[str, Any] = {"dataset": data, "clients": 8, "local_steps": 2, "batch_size": 4, "lr": 0.001}
    return analyse(Experiment(**{"model": "softmax", **defaults, **settings}))


def test_a_ring_against_the_complete_graph() -> None:
    ring, full = small(graph="ring"), small(graph="full")
    assert ring.measured == full.measured  # the data is the same
    assert ring.phi > full.phi == 2
    for one, other in zip(ring.bounds, full.bounds, strict=True):
        assert one.theorem is other.theorem
        graph = [sum(t.value for t in b.here.terms if t.kind == "graph") for b in (one, other)]
        assert graph[0] > graph[1]
        assert one.here.complete == pytest.approx(other.here.total)


@pytest.mark.parametrize(
    ("method", "covered"),
    [
        ("dfedavg", "DFedSAM"),
        ("dfedsam-mgs", "DFedSAM"),
        ("fedsam", "DFedSAM"),
        ("local-g-ecl", "Local G-ECL"),
        ({"name": "local-g-ecl", "alpha": 0.5, "warm_start": 3}, "Local G-ECL"),
        ("g-ecl", "Local G-ECL"),
        ("dfedsgpsm", "DFedSGPSM"),
        ("sgp", "DFedSGPSM"),
        ("dfedadmm", "DFedADMM"),
        ({"name": "dfedadmm", "dual": "new"}, None),  # the proof has the old one
        ("dfedavgm", None),
        ("asyng", None),  # its gradients are all taken at the round's start
    ],
)
def test_which_theorem_applies_to_a_method(method: Any, covered: str | None) -> None:
    said = small(method=method)
    assert [b.theorem.name for b in said.bounds if b.covers] == ([covered] if covered else [])
    assert any("no theorem" in note for note in said.notes) == (covered is None)


def test_parameters_come_from_the_method() -> None:
    said = small(method={"name": "dfedsgpsm", "rho": 0.2, "momentum": 0.3}, rounds=7)
    c = said.constants
    assert (c.rho, c.momentum, c.rounds, c.lr, c.steps, c.clients) == (0.2, 0.3, 7, 0.001, 2, 8)
    assert small(method={"name": "dfedsam-mgs", "gossip_steps": 3}).constants.gossip_steps == 3
    assert small(method={"name": "dfedadmm", "penalty": 0.5}).constants.penalty == 0.5
    warm = small(method={"name": "local-g-ecl", "alpha": 0.5, "warm_start": 3}).constants
    assert warm.warm_start == 3
    assert warm.pull == pytest.approx(2)


def test_clients_with_different_amounts_of_work() -> None:
    data = samples([4, 12, 8], seed=6)
    said = small(dataset=data, clients=3, local_steps=None, local_epochs=1, batch_size=4)
    assert said.constants.steps == 2
    assert any("1 to 3 local steps" in note for note in said.notes)


@pytest.mark.parametrize(
    ("graph", "method", "noted"),
    [({"name": "directed-random", "neighbours": 3}, "sgp", True), ("ring", "sgp", False), ("server", "fedavg", False)],
)
def test_push_sum_constants_that_are_not_measured_are_named(
    monkeypatch: pytest.MonkeyPatch, graph: Any, method: str, noted: bool
) -> None:
    def notes() -> bool:
        return any("C = δ = 1" in note for note in small(method=method, graph=graph, local_steps=None).notes)

    assert not notes()
    monkeypatch.setattr("gossamer.theory.measures.PUSH_CLIENTS", 7)
    assert notes() == noted


def test_a_server_that_calls_half_of_the_clients() -> None:
    said = small(method="fedavg", graph={"name": "server", "participation": 0.5})
    assert said.constants.lambda_ == 0
    assert not any(bound.valid for bound in said.bounds)
    assert said.to_dict()["bounds"][0]["valid"] is False


def test_the_same_experiment_says_the_same() -> None:
    assert small().to_dict() == small().to_dict()
