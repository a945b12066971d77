"""The weights of a mixing matrix, from an adjacency.

An adjacency has A[i, j] = 1 where client j sends to another client i, and nothing on its diagonal; every client also
keeps a share of its own model, so every weight matrix here has a positive diagonal.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from scipy.sparse import csr_array, diags_array

from gossamer.errors import GraphError

Weights = Literal["metropolis", "uniform", "column"]


def metropolis(adjacency: csr_array) -> csr_array:
    """Symmetric and doubly stochastic on any undirected graph: 1 / (1 + the larger of the two degrees)."""
    if (adjacency != adjacency.T).nnz:
        raise GraphError("metropolis weights need an undirected graph; a directed one takes 'uniform' or 'column'")
    edges = adjacency.tocoo()
    row, column = edges.coords
    degree = np.diff(adjacency.indptr)
    between = csr_array((1 / (1 + np.maximum(degree[row], degree[column])), (row, column)), shape=adjacency.shape)
    return with_remainder(between)


def uniform(adjacency: csr_array) -> csr_array:
    """Rows sum to one: each client averages itself and those it hears from."""
    closed = _closed(adjacency)
    return csr_array(diags_array(1 / closed.sum(axis=1)) @ closed)


def column(adjacency: csr_array) -> csr_array:
    """Columns sum to one: each client splits its mass evenly over itself and those it sends to."""
    closed = _closed(adjacency)
    return csr_array(closed @ diags_array(1 / closed.sum(axis=0)))


def with_remainder(between: csr_array) -> csr_array:
    """Give every client what its neighbours' weights leave over, so that rows sum to one."""
    return csr_array(between + diags_array(1 - between.sum(axis=1)))


def _closed(adjacency: csr_array) -> csr_array:
    """The adjacency in which every client also hears itself."""
    return csr_array(adjacency.astype(np.float64) + diags_array(np.ones(adjacency.shape[0])))


WEIGHTS: Mapping[Weights, Callable[[csr_array], csr_array]] = {
    "metropolis": metropolis,
    "uniform": uniform,
    "column": column,
}
