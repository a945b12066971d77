"""Graphs given by the user: a list of edges, a file of edges, or the matrix of weights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from scipy.sparse import csr_array, issparse

from gossamer.errors import GraphError
from gossamer.graphs.construction import adjacency_of, static_network, undirected_adjacency
from gossamer.graphs.network import Claims, Network, claims_of, name_clients
from gossamer.graphs.weights import WEIGHTS, Weights
from gossamer.parts import part

DirectedField = Annotated[bool, Field(description="whether an edge (source, target) goes one way only")]


ChosenWeights = Annotated[
    Weights | None, Field(description="how neighbours are weighed; metropolis when undirected, column when directed")
]


@part
class Edges:
    """The links, one by one."""

    edges: Annotated[list[tuple[int, int]], Field(description="pairs (source, target) of clients, counted from 0")]
    directed: DirectedField = False
    weights: ChosenWeights = None

    def bind(self, clients: int, seed: int) -> Network:
        for number, edge in enumerate(self.edges):
            for node in edge:
                require_client(node, clients, f"graph 'edges': edge {number}, {edge}")
        return _network_of_edges("edges", clients, self.edges, self.directed, self.weights)


@part
class EdgeList:
    """The links, read from a text file with `source target` on each line and `#` before comments."""

    path: Annotated[str, Field(description="the file")]
    directed: DirectedField = False
    weights: ChosenWeights = None

    def bind(self, clients: int, seed: int) -> Network:
        try:
            lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise GraphError(f"graph 'edge-list': cannot read {self.path}: {reason}") from None
        edges = []
        for number, line in enumerate(lines, start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            where = f"{self.path}, line {number}"
            if len(words) != 2:
                raise GraphError(f"{where}: expected 'source target', two clients per line (got {line.strip()!r})")
            for word in words:
                if not word.isdecimal():
                    raise GraphError(f"{where}: {word!r} is not a client; clients are counted from 0")
                require_client(int(word), clients, where)
            edges.append((int(words[0]), int(words[1])))
        return _network_of_edges("edge-list", clients, edges, self.directed, self.weights, source=f"{self.path}: ")


def _nested(matrix: Any) -> Any:
    """Arrays as nested lists: a matrix given in Python can then be written to TOML."""
    matrix = matrix.toarray() if issparse(matrix) else matrix
    return matrix.tolist() if isinstance(matrix, np.ndarray) else matrix


Entry = Annotated[float, Field(allow_inf_nan=True)]  # refused later, with its row and column


@part
class Matrix:
    """The weights themselves: row i holds what client i applies to what it gets from each client."""

    matrix: Annotated[list[list[Entry]], BeforeValidator(_nested), Field(description="W, row by row")]
    stochastic: Annotated[
        Literal["rows", "columns", "both"] | None,
        Field(description="which sums must be one; when not given, whichever are, and at least one kind"),
    ] = None

    def bind(self, clients: int, seed: int) -> Network:
        lengths = [len(row) for row in self.matrix]
        for i, length in enumerate(lengths):
            if length != len(lengths):
                raise GraphError(f"graph 'matrix' has {len(lengths)} rows, so row {i} needs as many (got {length})")
        if len(lengths) != clients:
            raise GraphError(f"graph 'matrix' is for {len(lengths)} clients, but there are {clients}")
        matrix = csr_array(np.array(self.matrix))
        found = claims_of(matrix)
        claims = Claims(
            # Rows are claimed also when no sum is right, so that the refusal names a row that is off.
            rows=self.stochastic in ("rows", "both") or found.rows or not (self.stochastic or found.columns),
            columns=self.stochastic in ("columns", "both") or found.columns,
            symmetric=found.symmetric,
            self_loops=found.self_loops,
            connected=True,
            undirected=found.undirected,
        )
        return Network("matrix", clients, 1, claims, lambda _: matrix)


def _network_of_edges(
    name: str,
    clients: int,
    edges: Iterable[tuple[int, int]],
    directed: bool,
    weights: Weights | None,
    source: str = "",
) -> Network:
    source_of, target_of = np.array(list(edges), dtype=int).reshape(-1, 2).T
    unlinked = np.setdiff1d(np.arange(clients), np.concatenate([source_of, target_of]))
    if unlinked.size and clients > 1:
        raise GraphError(
            f"{source}graph '{name}' must link all {clients} clients: no edge for {name_clients(unlinked)}"
        )
    if directed:
        adjacency = adjacency_of(clients, target_of, source_of)
    else:
        adjacency = undirected_adjacency(clients, source_of, target_of)
    return static_network(name, WEIGHTS[weights or ("column" if directed else "metropolis")](adjacency))


def require_client(node: int, clients: int, where: str) -> None:
    if not 0 <= node < clients:
        raise GraphError(f"{where}: there is no client {node}; {clients} clients are numbered 0 to {clients - 1}")
