"""The graphs by name, and what else a user may give as a graph."""

import inspect
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from scipy.sparse import issparse
from torch import Tensor

from gossamer.errors import GraphError
from gossamer.graphs.circulant import Circulant, DoubleRing, Exponential, OnePeerExponential, Ring
from gossamer.graphs.construction import import_networkx
from gossamer.graphs.drawn_each_step import (
    DirectedByLoss,
    DirectedRandom,
    RandomGroup,
    RandomPull,
    RandomRegular,
    RandomSymmetric,
)
from gossamer.graphs.drawn_once import ErdosRenyi, KRegular
from gossamer.graphs.finite_time import BaseK
from gossamer.graphs.given import EdgeList, Edges, Matrix
from gossamer.graphs.network import Network, check
from gossamer.graphs.server import Server
from gossamer.graphs.shapes import Full, Grid, Isolated, Star, Torus
from gossamer.parts import Catalog, made_by_user


class Graph(Protocol):
    """A graph that can be bound to a number of clients: built-in or a user's."""

    def bind(self, clients: int, seed: int) -> Network: ...


GRAPHS = Catalog(
    "graph",
    {
        "ring": Ring,
        "double-ring": DoubleRing,
        "grid": Grid,
        "torus": Torus,
        "exponential": Exponential,
        "one-peer-exponential": OnePeerExponential,
        "full": Full,
        "star": Star,
        "erdos-renyi": ErdosRenyi,
        "k-regular": KRegular,
        "base-k": BaseK,
        "random-symmetric": RandomSymmetric,
        "random-regular": RandomRegular,
        "random-group": RandomGroup,
        "random-pull": RandomPull,
        "directed-random": DirectedRandom,
        "directed-by-loss": DirectedByLoss,
        "circulant": Circulant,
        "isolated": Isolated,
        "server": Server,
        "edges": Edges,
        "edge-list": EdgeList,
        "matrix": Matrix,
    },
    role="bind",
)


def make_network(thing: Any, clients: int, seed: int) -> Network:
    """The checked network of a graph, built-in or a user's; what fails in a user's code names the graph."""
    name = getattr(thing, "__name__", None) or type(thing).__name__

    def bound() -> Network:
        network = as_graph(thing).bind(clients, seed)
        if not isinstance(network, Network):
            raise GraphError(
                f"graph '{name}': `bind` should give a gossamer.graphs.Network (got {type(network).__name__})"
            )
        check(network)
        return network

    return made_by_user(f"graph '{name}'", bound)


def as_graph(thing: Any) -> Graph:
    """A `Graph` from what a user passes.

    Accepted: an object with `bind(clients, seed)`; a networkx graph; a square matrix of weights (numpy or scipy); a
    class or function without arguments that returns one of these. The nodes of a networkx graph are the clients: by
    their number when they are 0, 1, …, n-1, otherwise in the order in which the graph lists them. Its edge weights and
    self loops are ignored; an undirected graph gets metropolis weights, a directed one column weights.
    """
    if hasattr(thing, "bind") and not isinstance(thing, type):
        return thing  # type: ignore[no-any-return]  # its signature is checked by the call
    if isinstance(thing, import_networkx().Graph):
        nodes = range(len(thing)) if set(thing) == set(range(len(thing))) else list(thing)
        number = {node: i for i, node in enumerate(nodes)}
        return Edges(edges=[(number[a], number[b]) for a, b in thing.edges()], directed=thing.is_directed())
    if isinstance(thing, list | Tensor):
        with suppress(ValueError, TypeError):  # told below
            thing = np.asarray(thing, dtype=float)
    if (isinstance(thing, np.ndarray) and thing.ndim == 2) or issparse(thing):
        return Matrix(matrix=thing)
    if callable(thing):
        try:
            inspect.signature(thing).bind()
        except TypeError as error:
            raise GraphError(f"cannot make a graph with {thing!r:.80}: called without arguments, {error}") from None
        return as_graph(thing())
    raise GraphError(
        f"cannot make a graph of {thing!r:.80}: give an object with bind(clients, seed), a networkx graph, a square "
        "matrix of weights (numpy or scipy), or a function that returns one of these"
    )
