"""Fixed undirected shapes: meshes, a star, everyone with everyone, nobody with anybody."""

from math import isqrt
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array, eye_array

from gossamer.errors import GraphError
from gossamer.graphs.construction import (
    WeightsField,
    require_clients,
    require_memory,
    static_network,
    undirected_adjacency,
)
from gossamer.graphs.network import Network
from gossamer.graphs.weights import WEIGHTS, uniform
from gossamer.parts import part

Side = Annotated[int | None, Field(ge=1, description="rows of the layout; as square as it gets when not given")]


@part
class Grid:
    """A mesh of rows and columns; each client talks to those above, below, left and right, the border to fewer."""

    rows: Side = None
    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "grid")
        rows, columns = self._sides(clients)
        mesh = np.arange(clients).reshape(rows, columns)
        adjacency = _linked(clients, (mesh[1:], mesh[:-1]), (mesh[:, 1:], mesh[:, :-1]))
        return static_network("grid", WEIGHTS[self.weights](adjacency), shape=(rows, columns))

    def _sides(self, clients: int) -> tuple[int, int]:
        rows = self.rows or max(_divisors(clients, most=isqrt(clients)))
        if clients % rows:
            fitting = ", ".join(map(str, _divisors(clients)))
            raise GraphError(f"graph 'grid': {clients} clients do not fill {rows} rows; {fitting} rows would do")
        return rows, clients // rows


@part
class Torus:
    """A mesh without a border: the last row meets the first, the last column the first."""

    rows: Side = None

    def bind(self, clients: int, seed: int) -> Network:
        rows, columns = self._sides(clients)
        mesh = np.arange(clients).reshape(rows, columns)
        adjacency = _linked(clients, *((mesh, np.roll(mesh, 1, axis)) for axis in (0, 1)))
        return static_network("torus", uniform(adjacency), shape=(rows, columns))

    def _sides(self, clients: int) -> tuple[int, int]:
        fitting = [r for r in _divisors(clients) if r >= 3 and clients // r >= 3]
        if not fitting:
            below = next((n for n in range(clients - 1, 8, -1) if _is_torus(n)), None)
            above = next(n for n in range(clients + 1, 2 * clients + 10) if _is_torus(n))
            near = " and ".join(str(n) for n in (below, above) if n)
            raise GraphError(
                f"graph 'torus' needs two sides of at least 3 clients, and {clients} clients do not make such "
                f"a rectangle; the nearest that do: {near}"
            )
        if self.rows is not None and self.rows not in fitting:
            raise GraphError(
                f"graph 'torus': {clients} clients do not fill {self.rows} rows with both sides at least 3; "
                f"{', '.join(map(str, fitting))} rows would do"
            )
        rows = self.rows or max(r for r in fitting if r * r <= clients)
        return rows, clients // rows


@part
class Full:
    """Everyone talks to everyone: one step is the exact mean."""

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(1, clients, "full")
        require_memory("full", clients, clients * clients)
        return static_network("full", csr_array(np.full((clients, clients), 1 / clients)), shape=(clients,))


@part
class Star:
    """Everyone talks to client 0 alone."""

    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "star")
        adjacency = _linked(clients, (np.zeros(clients - 1, dtype=np.int64), np.arange(1, clients)))
        return static_network("star", WEIGHTS[self.weights](adjacency))


@part
class Isolated:
    """Nobody talks to anybody: the baseline without communication."""

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(1, clients, "isolated")
        return static_network("isolated", csr_array(eye_array(clients)), connected=False, shape=(clients,))


def _linked(clients: int, *pairs: tuple[NDArray[np.int64], NDArray[np.int64]]) -> csr_array:
    """The adjacency of clients that talk with those in the same places of another array."""
    one, other = (np.concatenate([side.ravel() for side in sides]) for sides in zip(*pairs, strict=True))
    return undirected_adjacency(clients, one, other)


def _divisors(n: int, most: int | None = None) -> list[int]:
    return [d for d in range(1, (most or n) + 1) if n % d == 0]


def _is_torus(n: int) -> bool:
    return any(n % r == 0 for r in range(3, n // 3 + 1))
