"""Random graphs that are drawn anew at every gossip step."""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array

from gossamer.graphs.construction import (
    WeightsField,
    adjacency_of,
    drawn_network,
    require_clients,
    require_fewer_than_clients,
    require_memory,
    undirected_adjacency,
)
from gossamer.graphs.network import Network
from gossamer.graphs.weights import WEIGHTS
from gossamer.parts import part
from gossamer.randomness import Purpose, generator


@part
class RandomSymmetric:
    """Drawn anew at every step, undirected: about `neighbours` for each client, some with more, some with fewer."""

    neighbours: Annotated[int, Field(ge=1, description="how many clients each draws; a draw of itself is lost")] = 9
    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "random-symmetric")
        require_fewer_than_clients("random-symmetric", "neighbours", self.neighbours, clients)
        require_memory("random-symmetric", clients, clients * self.neighbours)

        def build(step: int) -> csr_array:
            rng = generator(seed, Purpose.GRAPH, round=step)
            drawn = _draw_distinct(rng, clients, of=clients, size=self.neighbours)
            drawer = np.repeat(np.arange(clients), self.neighbours)
            # A pair talks when its lower client drew its higher one, so that it has one chance of being drawn, not two.
            kept = drawer < drawn.ravel()
            return WEIGHTS[self.weights](undirected_adjacency(clients, drawer[kept], drawn.ravel()[kept]))

        return drawn_network("random-symmetric", clients, self.weights, build, undirected=True)


@part
class RandomPull:
    """Drawn anew at every step, directed: each client pulls from `neighbours` others and averages them with itself."""

    neighbours: Annotated[int, Field(ge=1, description="how many others a client hears from")] = 10
    weights: Annotated[Literal["uniform", "column"], Field(description="uniform (rows) or column")] = "uniform"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "random-pull")
        require_fewer_than_clients("random-pull", "neighbours", self.neighbours, clients)
        require_memory("random-pull", clients, clients * self.neighbours)

        def build(step: int) -> csr_array:
            return WEIGHTS[self.weights](_drawn_neighbours(seed, step, clients, self.neighbours))

        return drawn_network("random-pull", clients, self.weights, build)


@part
class DirectedRandom:
    """Drawn anew at every step, directed: each client sends equal shares to `neighbours` others."""

    neighbours: Annotated[int, Field(ge=1, description="how many others a client sends to")] = 10
    weights: Annotated[Literal["column", "uniform"], Field(description="column or uniform (rows)")] = "column"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "directed-random")
        require_fewer_than_clients("directed-random", "neighbours", self.neighbours, clients)
        require_memory("directed-random", clients, clients * self.neighbours)

        def build(step: int) -> csr_array:
            return WEIGHTS[self.weights](_drawn_neighbours(seed, step, clients, self.neighbours).T.tocsr())

        return drawn_network("directed-random", clients, self.weights, build)


@part
class DirectedByLoss:
    """Drawn anew at every step, directed: clients send to those whose training loss differs most from theirs."""

    neighbours: Annotated[int, Field(ge=1, description="how many others a client sends to")] = 10

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "directed-by-loss")
        require_fewer_than_clients("directed-by-loss", "neighbours", self.neighbours, clients)
        require_memory("directed-by-loss", clients, clients * clients)  # everyone is compared with everyone

        def choose(step: int, losses: NDArray[np.float64]) -> csr_array:
            """Client j picks i with probability proportional to exp |f_i − f_j|: the top of that plus Gumbel noise."""
            rng = generator(seed, Purpose.GRAPH, round=step)
            scores = np.abs(losses[:, None] - losses[None, :]) + rng.gumbel(size=(clients, clients))
            np.fill_diagonal(scores, -np.inf)  # the client itself always keeps its share
            receivers = np.argpartition(-scores, self.neighbours - 1, axis=0)[: self.neighbours]
            senders = np.broadcast_to(np.arange(clients), receivers.shape)
            return WEIGHTS["column"](adjacency_of(clients, receivers.ravel(), senders.ravel()))

        network = drawn_network("directed-by-loss", clients, "column", lambda step: choose(step, np.zeros(clients)))
        return replace(network, by_loss=choose)


def _drawn_neighbours(seed: int, step: int, clients: int, size: int) -> csr_array:
    """An adjacency whose row i marks the `size` others that client i drew at this step."""
    rng = generator(seed, Purpose.GRAPH, round=step)
    drawer = np.arange(clients)[:, None]
    picks = _draw_distinct(rng, clients, of=clients - 1, size=size)
    picks = picks + (picks >= drawer)  # skip the drawer itself
    return adjacency_of(clients, np.repeat(drawer.ravel(), size), picks.ravel())


def _draw_distinct(rng: np.random.Generator, clients: int, of: int, size: int) -> NDArray[np.int64]:
    """For each client, `size` distinct numbers below `of`."""
    return np.array([rng.choice(of, size, replace=False, shuffle=False) for _ in range(clients)])
