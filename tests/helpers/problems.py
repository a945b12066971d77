"""Small learning problems that tests run methods on: real gradients, float64, a few parameters."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer import Experiment, per_client
from gossamer.data import Dataset
from gossamer.engines import PlanOverrides, Stacked, choose_plan
from gossamer.experiment import prepare
from gossamer.graphs import Claims, Network
from gossamer.methods import METHODS
from method_laws import LAWS

FEATURES, CLASSES = 3, 3


def methods_under(law: str) -> list[str]:
    """The built-in methods that a law holds for."""
    return [name for name, laws in LAWS.items() if law in laws]


def tiny_net() -> nn.Module:
    """A network with a curved loss and 31 parameters."""
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def samples(sizes: list[int], seed: int, same: bool = False) -> Dataset:
    """Every client's own samples; with `same`, every client holds those of the first."""
    rng = np.random.default_rng(seed)
    clients = [(rng.normal(size=(n, FEATURES)), rng.integers(CLASSES, size=n)) for n in sizes]
    if same:
        clients = [clients[0]] * len(sizes)
    test = (rng.normal(size=(8, FEATURES)), rng.integers(CLASSES, size=8))
    return per_client(clients, test, classes=CLASSES)


class Weights:
    """A graph with exactly these weights, connected or not."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = np.asarray(matrix, dtype=float)

    def bind(self, clients: int, seed: int) -> Network:
        from scipy.sparse import csr_array

        symmetric = bool(np.allclose(self.matrix, self.matrix.T))
        claims = Claims(True, bool(np.allclose(self.matrix.sum(0), 1)), symmetric, True, connected=False)
        return Network("given", clients, 1, claims, lambda step: csr_array(self.matrix))


def metropolis(clients: int, seed: int) -> np.ndarray:
    """A random connected graph with Metropolis-Hastings weights, as a dense matrix."""
    from gossamer.graphs import GRAPHS

    return GRAPHS.build({"name": "erdos-renyi", "p": 0.5}).bind(clients, seed).matrix(0).toarray()


def engine(method: Any, graph: Any, dataset: Dataset, chunk: int | None = None, **settings: Any) -> Stacked:
    """An engine on a small problem, in float64 and without weight decay unless `settings` say otherwise."""
    defaults = {"model": tiny_net, "weight_decay": 0.0, "dtype": "float64", "batch_size": 4, "lr": 0.2, "lr_decay": 1.0}
    experiment = Experiment(
        method=method, graph=graph, dataset=dataset, clients=len(dataset.clients or ()), **{**defaults, **settings}
    )
    training = prepare(experiment).training
    return Stacked(training, choose_plan(training, PlanOverrides(chunk)))


def without_learning(engine: Stacked) -> Stacked:
    """The same engine with a learning rate of zero: a round is mixing alone."""
    return Stacked(replace(engine.training, lr=0.0), engine.plan)


def play(engine: Stacked, rounds: int = 3) -> Tensor:
    """The clients' vectors after some rounds."""
    for t in range(rounds):
        engine.round(t)
    return engine.models()


def objective(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss that the engine minimises, written the ordinary way."""
    return nn.functional.cross_entropy(model(inputs), targets)


def full_gradient(engine: Stacked, client: int, x: Tensor) -> Tensor:
    """The gradient of one client's whole data at x, by an ordinary module: independent of the engine's own path."""
    training = engine.training
    module = training.model.module(x)
    part = training.batches.client_rows[client]
    inputs = training.dataset.train.inputs[part].to(x.dtype)
    loss = objective(module, inputs, training.dataset.train.targets[part])
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])


def graph_for(name: str, clients: int) -> Any:
    """A graph that a built-in method runs on: the server, a directed one for push-sum, else a ring."""
    operators = set(METHODS.build(name).sends.values())
    if "server" in operators:
        return "server"
    if operators & {"push", "deliver"}:
        return {"name": "directed-random", "neighbours": min(3, clients - 1)}
    return "ring"
