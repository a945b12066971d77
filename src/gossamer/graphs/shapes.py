"""Fixed undirected shapes: meshes, a star, everyone with everyone, nobody with anybody."""

from math import isqrt
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.sparse import csr_array, eye_array

from gossamer.errors import GraphError
from gossamer.graphs.construction import (
    WeightsField,
    import_networkx,
    networkx_adjacency,
    require_clients,
    static_network,
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
        graph = import_networkx().grid_2d_graph(rows, columns)
        return static_network("grid", WEIGHTS[self.weights](networkx_adjacency(graph)), shape=(rows, columns))

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
        graph = import_networkx().grid_2d_graph(rows, columns, periodic=True)
        return static_network("torus", uniform(networkx_adjacency(graph)), shape=(rows, columns))

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
        return static_network("full", csr_array(np.full((clients, clients), 1 / clients)), shape=(clients,))


@part
class Star:
    """Everyone talks to client 0 alone."""

    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "star")
        return static_network(
            "star", WEIGHTS[self.weights](networkx_adjacency(import_networkx().star_graph(clients - 1)))
        )


@part
class Isolated:
    """Nobody talks to anybody: the baseline without communication."""

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(1, clients, "isolated")
        return static_network("isolated", csr_array(eye_array(clients)), connected=False, shape=(clients,))


def _divisors(n: int, most: int | None = None) -> list[int]:
    return [d for d in range(1, (most or n) + 1) if n % d == 0]


def _is_torus(n: int) -> bool:
    return any(n % r == 0 for r in range(3, n // 3 + 1))
