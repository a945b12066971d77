"""The methods again in numpy, all clients at once, for clients of unequal sizes on irregular graphs.

Client i minimises ½ Σ_p a_ip (x_p − m_ip)², and all its samples are alike: every mini-batch has its full gradient, and
K_i is the number of batches of three in two epochs. A client without samples has the objective zero and takes a step in
each epoch. Nothing here is taken from the package: weights are made from the edges, and edge consensus has a dual at
each end of each edge. Only which clients a server calls is asked of the engine, since that is a draw.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gossamer import per_client
from gossamer.methods import METHODS, traits_of
from problems import engine
from quadratic import Bowl

ROUNDS, EPOCHS, BATCH = 4, 2, 3
LR, DECAY = 0.2, 0.9
START = (0.7, -0.4)
Array = np.ndarray
Models = Iterator[Array]


@dataclass
class Clients:
    """What a reference knows of all clients: arrays have a row for each."""

    bottoms: Array
    curvatures: Array
    steps: Array  # K, [n, 1]
    links: Array  # links[i, j]: j sends to i
    called: Callable[[int], Any]  # round -> the numbers of the clients that the server calls

    def __post_init__(self) -> None:
        n, degrees = len(self.links), self.links.sum(1)
        self.x0 = np.tile(START, (n, 1))
        #: For each local step, who takes it: [n, 1].
        self.working = [k < self.steps for k in range(int(self.steps.max()))]
        metropolis = self.links / (1 + np.maximum(degrees[:, None], degrees))
        self.W = metropolis + np.diag(1 - metropolis.sum(1))
        shares = self.links + np.eye(n)
        self.P = shares / shares.sum(0)

    def gradient(self, x: Array, rho: float = 0.0) -> Array:
        """The clients' gradients, each at the worst point within rho of its x."""
        ascent = self.curvatures * (x - self.bottoms)
        lengths = np.linalg.norm(ascent, axis=1, keepdims=True)
        return self.curvatures * (x + rho * ascent / np.where(lengths > 0, lengths, 1) - self.bottoms)


def rates() -> Iterator[float]:
    return (LR * DECAY**t for t in range(ROUNDS))


def averaging(c: Clients, rho: float = 0, momentum: float = 0, hops: int = 1, beta: float = 0) -> Models:
    """DFedAvg, DFedAvgM, DFedSAM, DFedSAM-MGS, OledFL."""
    x = y = c.x0
    for lr in rates():
        y, v = x + beta * (x - y), 0
        for works in c.working:
            v = momentum * v + c.gradient(y, rho)
            y = y - works * lr * v
        x = np.linalg.matrix_power(c.W, hops) @ y
        yield x


def alternating(c: Clients, penalty: float, dual: str = "new", rho: float = 0, server: bool = False) -> Models:
    """DFedADMM, DFedADMM-SAM, FedPD: λ is the length of the penalty."""
    x, g = c.x0, 0 * c.x0
    for lr in rates():
        y = x
        for works in c.working:
            y = y - works * lr * (c.gradient(y, rho) - g + (y - x) / penalty)
        old, g = g, g - (y - x) / penalty
        z = y - penalty * (old if dual == "old" else g)
        x = 0 * x + z.mean(0) if server else c.W @ z
        yield x


def pushing(c: Clients, rho: float = 0, momentum: float = 0, single: bool = False, frozen: bool = False) -> Models:
    """SGP (a single step), OSGP, DFedSGPM, DFedSGPSM, AsyNG (gradients at the frozen model of the round's start)."""
    x, w = c.x0, np.ones((len(c.x0), 1))
    for lr in rates():
        v, z = 0, x / w
        for works in c.working[: 1 if single else None]:
            v = momentum * v + c.gradient(z if frozen else x / w, rho)
            x = x - works * lr * v
        x, w = c.P @ x, c.P @ w
        yield x / w


def overlapping(c: Clients) -> Models:
    """Overlap-SGP: what is sent in a round arrives in the next one."""
    x, w = c.x0, np.ones((len(c.x0), 1))
    kept = np.diag(c.P)[:, None]
    coming, coming_w = 0 * x, 0 * w
    for lr in rates():
        x, w = x + coming, w + coming_w
        coming, coming_w = c.P @ x - kept * x, c.P @ w - kept * w
        x, w = kept * x, kept * w
        for works in c.working:
            x = x - works * lr * c.gradient(x / w)
        yield (x + coming) / (w + coming_w)


def tracking(c: Clients, start: str = "local", server: bool = False, single: bool = False) -> Models:
    """Local G-ECL, Algorithm 1, also with the means of a server; with a single step G-ECL."""
    x = near = c.x0
    dual = 0 * x
    W = np.full_like(c.W, 1 / len(x)) if server else c.W
    for lr in rates():
        base, x = near, x if start == "local" else near
        for works in c.working[: 1 if single else None]:
            near = near - works * lr * (c.gradient(x) - dual)
            x = near
        v = (base - x) / (lr * (1 if single else c.steps))
        near, dual = W @ x, dual - W @ v + v
        yield near


def k_gt(c: Clients, server_lr: float) -> Models:
    x, correction = c.x0, 0 * c.x0
    for lr in rates():
        y = x
        for works in c.working:
            y = y - works * lr * (c.gradient(y) + correction)
        z = (x - y) / (c.steps * lr)
        x, correction = c.W @ (x + server_lr * (y - x)), correction - z + c.W @ z
        yield x


def d_scaffold(c: Clients, reading: str) -> Models:
    x, control, estimate = c.x0, 0 * c.x0, 0 * c.x0
    for lr in rates():
        y = x
        for works in c.working:
            y = y - works * lr * (c.gradient(y) - control + estimate)
        old, control = control, control - estimate + (x - y) / (c.steps * lr)
        estimate = c.W @ (estimate + control - old if reading == "tracked" else control)
        x = c.W @ y
        yield x


def fedavg(c: Clients, rho: float = 0, server_lr: float = 1) -> Models:
    """FedAvg and FedSAM."""
    x = c.x0
    for t, lr in enumerate(rates()):
        y = x
        for works in c.working:
            y = y - works * lr * c.gradient(y, rho)
        x = x + server_lr * (y[c.called(t)].mean(0) - x)
        yield x


def scaffold(c: Clients, server_lr: float) -> Models:
    """Option II; a client that is not called keeps its control variate."""
    x, mean_control, control = c.x0, 0 * c.x0, 0 * c.x0
    for t, lr in enumerate(rates()):
        y = x
        for works in c.working:
            y = y - works * lr * (c.gradient(y) - control + mean_control)
        called = c.called(t)
        change = ((x - y) / (c.steps * lr) - mean_control)[called]
        x = x + server_lr * (y[called].mean(0) - x)
        control[called] += change
        mean_control = mean_control + change.sum(0) / len(x)
        yield x


def edge_consensus(c: Clients, coupling: Any, theta: float = 1, plain: bool = False) -> Models:
    """ECL, ECL-ISVR, and with plain steps PDMM: z[i, j] is the dual of client i on its edge to j, A = ±1 its sign."""
    x, n = c.x0, len(c.x0)
    A = (np.sign(np.arange(n)[:, None] - np.arange(n)) * c.links)[:, :, None]
    z = np.zeros((n, n, x.shape[1]))
    degrees = c.links.sum(1, keepdims=True)
    for lr in rates():
        pull = lr * coupling(lr, degrees, c.steps)
        for works in c.working:
            towards = x - lr * c.gradient(x) + pull * (A * z).sum(1)
            y = towards - pull * degrees * x if plain else towards / (1 + pull * degrees)
            x = np.where(works, y, x)
        sent = z - 2 * A * x[:, None]
        z = (1 - theta) * z + theta * sent.transpose(1, 0, 2)
        yield x


def one(lr: float, E: Array, K: Array) -> Any:
    return 1.0


def of_ecl(lr: float, E: Array, K: Array) -> Array:
    return 1 / (lr * E * np.maximum(K - 1, 1))


def of_isvr(lr: float, E: Array, K: Array) -> Array:
    return 1 / (lr * (K * E + K - E))


SERVER: dict[str, Any] = {"name": "server"}
SAMPLED = {"name": "server", "participation": 0.6}
UNDIRECTED, DIRECTED = {"directed": False}, {"directed": True}

#: The method, the graph, the reference and its parameters.
REFERENCES: list[tuple[dict[str, Any], dict[str, Any], Any, dict[str, Any]]] = [
    ({"name": "dfedavg"}, UNDIRECTED, averaging, {}),
    ({"name": "dfedavgm", "momentum": 0.8}, UNDIRECTED, averaging, {"momentum": 0.8}),
    ({"name": "dfedsam", "rho": 0.2}, UNDIRECTED, averaging, {"rho": 0.2}),
    ({"name": "dfedsam-mgs", "rho": 0.2, "gossip_steps": 3}, UNDIRECTED, averaging, {"rho": 0.2, "hops": 3}),
    ({"name": "oledfl", "beta": 0.4, "rho": 0.1}, UNDIRECTED, averaging, {"beta": 0.4, "rho": 0.1}),
    ({"name": "dfedadmm", "penalty": 2, "dual": "old"}, UNDIRECTED, alternating, {"penalty": 2, "dual": "old"}),
    ({"name": "dfedadmm-sam", "penalty": 2, "dual": "new"}, UNDIRECTED, alternating, {"penalty": 2, "rho": 0.1}),
    ({"name": "fedpd", "penalty": 2}, SERVER, alternating, {"penalty": 2, "server": True}),
    ({"name": "sgp"}, DIRECTED, pushing, {"single": True}),
    ({"name": "osgp"}, DIRECTED, pushing, {}),
    ({"name": "dfedsgpm", "momentum": 0.8}, DIRECTED, pushing, {"momentum": 0.8}),
    ({"name": "dfedsgpsm", "momentum": 0.8, "rho": 0.2}, DIRECTED, pushing, {"momentum": 0.8, "rho": 0.2}),
    ({"name": "asyng"}, DIRECTED, pushing, {"frozen": True}),
    ({"name": "overlap-sgp"}, DIRECTED, overlapping, {}),
    ({"name": "g-ecl"}, UNDIRECTED, tracking, {"single": True}),
    ({"name": "local-g-ecl"}, UNDIRECTED, tracking, {}),
    ({"name": "local-g-ecl", "start": "aggregated"}, UNDIRECTED, tracking, {"start": "aggregated"}),
    ({"name": "local-g-ecl"}, SERVER, tracking, {"server": True}),
    ({"name": "k-gt", "server_lr": 0.7}, UNDIRECTED, k_gt, {"server_lr": 0.7}),
    ({"name": "d-scaffold", "reading": "tracked"}, UNDIRECTED, d_scaffold, {"reading": "tracked"}),
    ({"name": "d-scaffold", "reading": "neighbourhood"}, UNDIRECTED, d_scaffold, {"reading": "neighbourhood"}),
    ({"name": "fedavg", "server_lr": 0.7}, SAMPLED, fedavg, {"server_lr": 0.7}),
    ({"name": "fedsam", "rho": 0.2}, SAMPLED, fedavg, {"rho": 0.2}),
    ({"name": "scaffold", "server_lr": 0.7}, SAMPLED, scaffold, {"server_lr": 0.7}),
    ({"name": "ecl"}, UNDIRECTED, edge_consensus, {"coupling": of_ecl}),
    ({"name": "ecl", "coupling": 1, "relaxation": 0.5}, UNDIRECTED, edge_consensus, {"coupling": one, "theta": 0.5}),
    ({"name": "ecl-isvr"}, UNDIRECTED, edge_consensus, {"coupling": of_isvr}),
    ({"name": "pdmm", "coupling": 1}, UNDIRECTED, edge_consensus, {"coupling": one, "plain": True}),
]  # fmt: skip


def random_links(n: int, directed: bool, rng: np.random.Generator) -> Array:
    """The links of a random connected graph that is not regular."""
    links = rng.random((n, n)) < 0.25
    links |= np.roll(np.eye(n, dtype=bool), 1, axis=0) if directed else np.eye(n, k=1, dtype=bool)
    np.fill_diagonal(links, False)
    return (links if directed else links | links.T).astype(float)


@pytest.mark.parametrize(
    ("method", "graph", "reference", "parameters"), REFERENCES, ids=[method["name"] for method, *_ in REFERENCES]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_method_is_what_its_paper_prints(method: Any, graph: Any, reference: Any, parameters: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.permutation([0, 1, 4, 9, 5])
    counts = sizes[:, None]
    bottoms, curvatures = rng.normal(size=(len(sizes), 2)), rng.uniform(0.5, 1.5, size=(len(sizes), 2))
    links = random_links(len(sizes), graph.get("directed", False), rng)
    if "directed" in graph:
        graph = {**graph, "name": "edges", "edges": [(int(j), int(i)) for i, j in np.argwhere(links)]}
    rows = np.hstack([bottoms, np.sqrt(curvatures)])
    data = per_client([(np.tile(row, (size, 1)), np.zeros((size, 2))) for row, size in zip(rows, sizes, strict=True)])
    run = engine(
        method,
        graph,
        data,
        model=partial(Bowl, START),
        loss="squared-error",
        batch_size=BATCH,
        lr=LR,
        lr_decay=DECAY,
        rounds=ROUNDS,
        seed=seed,
        **({} if traits_of(METHODS.build(method)).local_work else {"local_epochs": EPOCHS}),
    )

    def called(t: int) -> Any:
        drawn = run.training.network.participants(t)
        return slice(None) if drawn is None else drawn

    clients = Clients(bottoms, curvatures * (counts > 0), EPOCHS * np.maximum(1, -(-counts // BATCH)), links, called)
    for t, models in enumerate(reference(clients, **parameters)):
        run.round(t)
        torch.testing.assert_close(run.models(), torch.from_numpy(models), rtol=0, atol=1e-9)
