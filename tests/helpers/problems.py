"""Small learning problems that tests run methods on: real gradients, float64, a few parameters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import Experiment, per_client
from gossamer.data import Dataset
from gossamer.engines import PlanOverrides, Stacked, choose_plan
from gossamer.engines.stacked import default_plan
from gossamer.experiment import prepare
from gossamer.graphs import Claims, Network
from gossamer.methods import METHODS
from gossamer.training import check_first_step
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
    """An engine on a small problem, in float64 and without weight decay unless `settings` say otherwise.

    Its plan is not measured: two engines that are compared to the bit must run alike, on a busy machine, too.
    """
    defaults = {"model": tiny_net, "weight_decay": 0.0, "dtype": "float64", "batch_size": 4, "lr": 0.2, "lr_decay": 1.0}
    experiment = Experiment(
        method=method, graph=graph, dataset=dataset, clients=len(dataset.clients or ()), **{**defaults, **settings}
    )
    training = prepare(experiment).training
    check_first_step(training)
    return Stacked(training, choose_plan(training, PlanOverrides(chunk or default_plan(training).chunk, "eager")))


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


def gradient_of(engine: Stacked, rows: Any, x: Tensor) -> Tensor:
    """The gradient of these samples at x, by an ordinary module, independent of the engine's own path; 0 for none."""
    if not len(rows):
        return torch.zeros_like(x)
    training = engine.training
    module = training.model.module(x)
    inputs = training.dataset.train.inputs[rows].to(x.dtype)
    loss = objective(module, inputs, training.dataset.train.targets[rows])
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])


def full_gradient(engine: Stacked, client: int, x: Tensor) -> Tensor:
    """The gradient of one client's whole data at x."""
    return gradient_of(engine, engine.training.batches.client_rows[client], x)


def step_gradients(engine: Stacked, client: int, round: int) -> list[Callable[[Tensor], Tensor]]:
    """The gradient of each local step of a client in a round; without samples each of its steps has a zero gradient."""
    batches = engine.training.batches
    cuts = batches.indices(client, round) or [[]] * int(batches.local_steps[client])
    return [lambda x, rows=rows: gradient_of(engine, rows, x) for rows in cuts]


class Federation(NamedTuple):
    """How many samples each client holds, and the local work of all."""

    sizes: list[int]
    work: dict[str, int]
    seed: int

    @property
    def clients(self) -> int:
        return len(self.sizes)


@st.composite
def federations(draw: st.DrawFn, by: str = "either", least: int = 1) -> Federation:
    """Clients of unequal sizes, some without samples, that take unequal numbers of steps (epochs) or equal ones.

    At least half of them hold samples, `least` or more each.
    """
    size = st.integers(least, 9) | st.just(0)
    sizes = draw(st.lists(size, min_size=3, max_size=6).filter(lambda all: 2 * all.count(0) <= len(all)))
    epochs = draw(st.booleans()) if by == "either" else by == "epochs"
    work = {"local_epochs": draw(st.integers(1, 2))} if epochs else {"local_steps": draw(st.integers(min(least, 2), 5))}
    return Federation(sizes, work, draw(st.integers(0, 2**32)))


def graph_for(name: str, clients: int) -> Any:
    """A graph that a built-in method runs on: the server, a directed one for push-sum, else a ring."""
    operators = set(METHODS.build(name).sends.values())
    if "server" in operators:
        return "server"
    if operators & {"push", "deliver"}:
        return {"name": "directed-random", "neighbours": min(3, clients - 1)}
    return "ring"
