"""Random graphs that are drawn once and then stay the same."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from scipy.sparse import csr_array

from gossamer.errors import GraphError
from gossamer.graphs.construction import (
    WeightsField,
    import_networkx,
    networkx_adjacency,
    require_clients,
    require_fewer_than_clients,
    static_network,
)
from gossamer.graphs.network import Network
from gossamer.graphs.weights import WEIGHTS, uniform
from gossamer.parts import part
from gossamer.randomness import Purpose, generator

#: Draws before a random graph is declared too sparse to be connected.
TRIES = 100


@part
class ErdosRenyi:
    """Every pair talks with the same probability; drawn once, and again until connected."""

    p: Annotated[float, Field(gt=0, le=1, description="the probability that a pair talks")] = 0.3
    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "erdos-renyi")
        adjacency = _draw_connected(
            lambda key: import_networkx().fast_gnp_random_graph(clients, self.p, seed=key),
            seed,
            f"graph 'erdos-renyi' with p = {self.p:g} on {clients} clients",
            f"p above ln(n)/n = {np.log(clients) / clients:.3g} usually is",
        )
        return static_network("erdos-renyi", WEIGHTS[self.weights](adjacency))


@part
class KRegular:
    """Everyone talks to k others, drawn at random once, and again until connected."""

    k: Annotated[int, Field(ge=1, description="how many others each client talks to")] = 10

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "k-regular")
        require_fewer_than_clients("k-regular", "k", self.k, clients)
        if clients * self.k % 2:
            raise GraphError(
                f"graph 'k-regular': {clients} clients with {self.k} neighbours each would make half a link; "
                f"one of the two must be even (k = {self.k - 1 or self.k + 1} would do)"
            )
        if self.k == 1 and clients > 2:
            raise GraphError(f"graph 'k-regular': with k = 1, {clients} clients fall into pairs; k = 2 would connect")

        def draw(key: int) -> Any:
            nx = import_networkx()
            if 2 * self.k < clients:
                return nx.random_regular_graph(self.k, clients, seed=key)
            # Drawing many links at random without a clash takes long; drawing those left out is quick.
            return nx.complement(nx.random_regular_graph(clients - 1 - self.k, clients, seed=key))

        adjacency = _draw_connected(
            draw,
            seed,
            f"graph 'k-regular' with k = {self.k} on {clients} clients",
            "a larger k usually is",
        )
        return static_network("k-regular", uniform(adjacency))


def _draw_connected(draw: Callable[[int], Any], seed: int, what: str, hint: str) -> csr_array:
    for attempt in range(TRIES):
        key = int(generator(seed, Purpose.GRAPH, step=attempt).integers(2**31))
        graph = draw(key)
        if import_networkx().is_connected(graph):
            return networkx_adjacency(graph)
    raise GraphError(f"{what} was not connected in any of {TRIES} draws; {hint}")
