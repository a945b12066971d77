"""Where clients are placed in a picture of their graph."""

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from gossamer.graphs.network import Network, links

Array = NDArray[np.float64]


def layout(network: Network) -> Array:
    """The position of each client."""
    n = network.clients
    if len(network.shape) == 2:
        row, column = np.divmod(np.arange(n), network.shape[1])
        return np.stack([column, -row], axis=1).astype(np.float64)
    if is_on_circle(network):
        return circle(n)
    messages = links(network.matrix(0))
    degree = np.diff(messages.indptr)
    if n > 2 and messages.nnz == 2 * degree.max() == 2 * (n - 1):  # a star: its hub in the middle
        places = np.zeros((n, 2))
        places[degree < n - 1] = circle(int((degree < n - 1).sum()))
        return places
    graph = nx.from_scipy_sparse_array(messages.astype(float))
    if n <= 100:
        found = nx.kamada_kawai_layout(graph)
    else:
        found = nx.spring_layout(graph, seed=0, iterations=100, k=2 / np.sqrt(n))
    return np.array([found[i] for i in range(n)])


def is_on_circle(network: Network) -> bool:
    """Whether clients are placed on a circle, which shows regular patterns and suits links that change."""
    return network.shape == (network.clients,) or network.period != 1 or network.has_server


def circle(n: int) -> Array:
    """So many places on a circle."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n  # the first on top, then clockwise
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)
