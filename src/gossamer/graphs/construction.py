"""What all families of graphs are built with: adjacency matrices, networks of them, and checks of the client count.

An adjacency has A[i, j] = 1 where client j sends to another client i. Self loops are never listed: every client keeps a
share of its own model.
"""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array

from gossamer.errors import GraphError
from gossamer.graphs.network import Claims, Network, claims_of
from gossamer.graphs.weights import Weights
from gossamer.system.machine import free_memory
from gossamer.system.words import size

#: The most bytes for each link, of those in each direction, while a graph is made and checked.
LINK_BYTES = 120
WeightsField = Annotated[Weights, Field(description="how neighbours are weighed: metropolis, uniform (rows) or column")]


def static_network(name: str, matrix: csr_array, connected: bool = True, shape: tuple[int, ...] = ()) -> Network:
    """A network with the same matrix at every step; its claims are read from the matrix."""
    return Network(name, matrix.shape[0], 1, claims_of(matrix, connected), lambda _: matrix, shape=shape)


def drawn_network(
    name: str, clients: int, weights: Weights, build: Callable[[int], csr_array], undirected: bool = False
) -> Network:
    """A network whose matrix is drawn anew at every step; its claims follow from how links are weighted."""
    both = weights == "metropolis"
    claims = Claims(
        rows=both or weights == "uniform",
        columns=both or weights == "column",
        symmetric=both,
        self_loops=True,
        connected=True,
        undirected=undirected,
    )
    return Network(name, clients, None, claims, build)


def adjacency_of(clients: int, receiver: NDArray[np.int64], sender: NDArray[np.int64]) -> csr_array:
    """The adjacency of links given as pairs; self loops and repetitions are dropped."""
    other = receiver != sender
    counts = csr_array((np.ones(other.sum()), (receiver[other], sender[other])), shape=(clients, clients))
    counts.sum_duplicates()
    counts.data[:] = 1
    return counts


def undirected_adjacency(clients: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> csr_array:
    """The same for links that go both ways."""
    return adjacency_of(clients, np.concatenate([a, b]), np.concatenate([b, a]))


def import_networkx() -> Any:
    """networkx, imported on demand: the import takes a tenth of a second, and most graphs do not need it."""
    import networkx

    return networkx


def require_clients(least: int, clients: int, name: str) -> None:
    """Refuse fewer than `least` clients."""
    if clients < least:
        others = [f"'{other}'" for other, needs in (("ring", 3), ("full", 1)) if needs <= clients and other != name]
        instead = f"; {' or '.join(others)} would do" if others else ""
        noun = "client" if least == 1 else "clients"
        raise GraphError(f"graph '{name}' needs at least {least} {noun} (got {clients}){instead}")


def require_fewer_than_clients(name: str, parameter: str, value: int, clients: int) -> None:
    """Refuse a number of neighbours that no client can have."""
    if value >= clients:
        raise GraphError(
            f"graph '{name}': {parameter} = {value}, but each of {clients} clients has only {clients - 1} others; "
            f"set {parameter} to at most {clients - 1}, or take 'full'"
        )


def require_memory(name: str, clients: int, links: int) -> None:
    """Refuse a graph of so many links that does not fit into the memory of this machine, before it is made."""
    needed, free = LINK_BYTES * (links + clients), free_memory()
    if needed > free:
        raise GraphError(
            f"graph '{name}': {links:,} links between {clients:,} clients take about {size(needed)} of memory to "
            f"make, and {size(free)} are free; fewer neighbours or fewer clients would fit"
        )


def require_regular(name: str, k: int, clients: int) -> None:
    """Refuse a k for which no graph has k neighbours for each of the clients."""
    require_clients(2, clients, name)
    require_fewer_than_clients(name, "k", k, clients)
    if clients * k % 2:
        raise GraphError(
            f"graph '{name}': {clients} clients with {k} neighbours each would make half a link; "
            f"one of the two must be even (k = {k - 1 or k + 1} would do)"
        )
