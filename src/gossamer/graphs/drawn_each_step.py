"""Random graphs that are drawn anew at every gossip step."""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array

from gossamer.errors import GraphError
from gossamer.graphs.construction import (
    WeightsField,
    adjacency_of,
    drawn_network,
    require_clients,
    require_fewer_than_clients,
    require_memory,
    require_regular,
    undirected_adjacency,
)
from gossamer.graphs.drawn_once import draw_regular
from gossamer.graphs.network import Network
from gossamer.graphs.weights import WEIGHTS, uniform
from gossamer.parts import part
from gossamer.randomness import Purpose, generator


@part
class RandomSymmetric:
    """Drawn anew at every step, undirected: about `neighbours` for each client, some with more, some with fewer."""

    neighbours: Annotated[int, Field(ge=1, description="how many clients each draws; a draw of itself is lost")] = 9
    weights: WeightsField = "metropolis"
    at_most: Annotated[
        int | None, Field(ge=1, description="the most neighbours of a client; links beyond are dropped")
    ] = None

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "random-symmetric")
        require_fewer_than_clients("random-symmetric", "neighbours", self.neighbours, clients)
        require_memory("random-symmetric", clients, clients * self.neighbours)

        def build(step: int) -> csr_array:
            rng = generator(seed, Purpose.GRAPH, round=step)
            drawn = _draw_distinct(rng, clients, of=clients, size=self.neighbours)
            drawer = np.repeat(np.arange(clients), self.neighbours)
            # A pair talks when its lower client drew its higher one, so that it has one chance of being drawn, not two.
            kept = np.flatnonzero(drawer < drawn.ravel())
            if self.at_most is not None:
                kept = _at_most(self.at_most, clients, drawer, drawn.ravel(), rng.permutation(kept))
            return WEIGHTS[self.weights](undirected_adjacency(clients, drawer[kept], drawn.ravel()[kept]))

        return drawn_network("random-symmetric", clients, self.weights, build, undirected=True)


@part
class RandomRegular:
    """Drawn anew at every step, undirected: each client talks to exactly k others."""

    k: Annotated[int, Field(ge=1, description="how many others each client talks to")] = 10

    def bind(self, clients: int, seed: int) -> Network:
        require_regular("random-regular", self.k, clients)
        require_memory("random-regular", clients, clients * self.k)

        def build(step: int) -> csr_array:
            key = int(generator(seed, Purpose.GRAPH, round=step).integers(2**31))
            return uniform(draw_regular(self.k, clients, key))

        # Weights of 1/(k+1) on a regular graph are the Metropolis ones.
        return drawn_network("random-regular", clients, "metropolis", build, undirected=True)


@part
class RandomGroup:
    """Drawn anew at every step, undirected: a group of clients averages among itself, the others keep their models.

    In the gossip steps of a round, as many as `groups`, the groups have no client in common.
    """

    members: Annotated[int, Field(ge=2, description="clients in a group")] = 10
    groups: Annotated[int, Field(ge=1, description="steps in a row whose groups have no client in common")] = 1

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "random-group")
        if self.members * self.groups > clients:
            raise GraphError(
                f"graph 'random-group': groups = {self.groups} of members = {self.members} need "
                f"{self.groups * self.members} clients (got {clients}); take smaller or fewer groups"
            )

        def build(step: int) -> csr_array:
            draw, place = divmod(step, self.groups)
            drawn = generator(seed, Purpose.GRAPH, round=draw).permutation(clients)
            group = drawn[place * self.members : (place + 1) * self.members]
            return uniform(adjacency_of(clients, np.repeat(group, self.members), np.tile(group, self.members)))

        # A client is missing from all of so many draws with probability n⁻⁴.
        draws = int(np.ceil(4 * clients * np.log(clients) / self.members)) + self.groups
        network = drawn_network("random-group", clients, "metropolis", build, undirected=True)
        return replace(network, draws=max(network.draws, draws))


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


def _at_most(
    most: int, clients: int, one: NDArray[np.int64], other: NDArray[np.int64], links: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of the links in this order, those that leave both of their clients with at most `most`."""
    degree = np.zeros(clients, dtype=np.int64)
    kept = []
    for link in links.tolist():
        ends = [one[link], other[link]]
        if degree[ends].max() < most:
            degree[ends] += 1
            kept.append(link)
    return np.array(kept, dtype=np.int64)


def _draw_distinct(rng: np.random.Generator, clients: int, of: int, size: int) -> NDArray[np.int64]:
    """For each client, `size` distinct numbers below `of`."""
    return np.array([rng.choice(of, size, replace=False, shuffle=False) for _ in range(clients)])
