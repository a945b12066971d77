"""The graphs: who can talk to whom. Each is a part that `bind`s to a number of clients and a seed.

Self loops are never listed: every client always keeps a share of its own model.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from scipy.sparse import csr_array, eye_array, issparse

from gossamer.errors import GraphError
from gossamer.graphs.finite_time import base_graph
from gossamer.graphs.network import Claims, Network, claims_of, name_clients
from gossamer.graphs.weights import WEIGHTS, Weights, uniform, with_remainder
from gossamer.parts import Catalog, part
from gossamer.randomness import Purpose, generator

TRIES = 100  # draws of a random static graph before it is declared too sparse to be connected


class Graph(Protocol):
    """Anything that can be bound to clients: our parts, and a user's own."""

    def bind(self, clients: int, seed: int) -> Network: ...


WeightsField = Annotated[Weights, Field(description="how neighbours are weighed: metropolis, uniform (rows) or column")]
DirectedField = Annotated[bool, Field(description="whether an edge (source, target) goes one way only")]
ChosenWeights = Annotated[
    Weights | None, Field(description="how neighbours are weighed; metropolis when undirected, column when directed")
]
Side = Annotated[int | None, Field(ge=1, description="rows of the layout; as square as it gets when not given")]


# Circulants: client i hears from i - offset. All are regular, so uniform weights are doubly stochastic.


@part
class Ring:
    """Each client talks to the one before and the one after it."""

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(3, clients, "ring")
        return _circulant("ring", clients, (1, -1))


@part
class DoubleRing:
    """Each client talks to the two before and the two after it."""

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(5, clients, "double-ring")
        return _circulant("double-ring", clients, (1, -1, 2, -2))


@part
class Exponential:
    """Each client sends to those 1, 2, 4, 8, … places further on."""

    symmetric: Annotated[bool, Field(description="send as many places back, too")] = False

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "exponential")
        offsets = [2**j for j in range(_doublings(clients))]
        return _circulant("exponential", clients, offsets + [-o for o in offsets] if self.symmetric else offsets)


@part
class OnePeerExponential:
    """One message per client and step: to the one 1, 2, 4, 8, … places further on, in turn."""

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "one-peer-exponential")
        period = _doublings(clients)
        claims = Claims(rows=True, columns=True, symmetric=clients == 2, self_loops=True, connected=True)
        return Network(
            name="one-peer-exponential",
            clients=clients,
            period=period,
            claims=claims,
            build=lambda step: uniform(_circulant_links(clients, [2**step])),
            shape=(clients,),
        )


@part
class Circulant:
    """Each client talks to those at the given distances."""

    offsets: Annotated[list[int], Field(min_length=1, description="how many places further on the neighbours are")]
    symmetric: Annotated[bool, Field(description="as many places back, too")] = True

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "circulant")
        for offset in self.offsets:
            if offset % clients == 0:
                raise GraphError(
                    f"graph 'circulant': offset {offset} leads a client of {clients} back to itself; "
                    f"offsets from 1 to {clients - 1} lead to others"
                )
        offsets = self.offsets + [-o for o in self.offsets] if self.symmetric else self.offsets
        return _circulant("circulant", clients, offsets)


# Fixed undirected shapes.


@part
class Grid:
    """A mesh of rows and columns; each client talks to those above, below, left and right, the border to fewer."""

    rows: Side = None
    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "grid")
        rows, columns = self._sides(clients)
        graph = _networkx().grid_2d_graph(rows, columns)
        return _static("grid", _weigh(_adjacency(graph), self.weights), shape=(rows, columns))

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
        graph = _networkx().grid_2d_graph(rows, columns, periodic=True)
        return _static("torus", uniform(_adjacency(graph)), shape=(rows, columns))

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
        _at_least(1, clients, "full")
        return _static("full", csr_array(np.full((clients, clients), 1 / clients)), shape=(clients,))


@part
class Star:
    """Everyone talks to client 0 alone."""

    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "star")
        return _static("star", _weigh(_adjacency(_networkx().star_graph(clients - 1)), self.weights))


@part
class Isolated:
    """Nobody talks to anybody: the baseline without communication."""

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(1, clients, "isolated")
        return _static("isolated", csr_array(eye_array(clients)), connected=False, shape=(clients,))


# Drawn once, then fixed.


@part
class ErdosRenyi:
    """Every pair talks with the same probability; drawn once, and again until connected."""

    p: Annotated[float, Field(gt=0, le=1, description="the probability that a pair talks")] = 0.3
    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "erdos-renyi")
        adjacency = _draw_connected(
            lambda key: _networkx().fast_gnp_random_graph(clients, self.p, seed=key),
            seed,
            f"graph 'erdos-renyi' with p = {self.p:g} on {clients} clients",
            f"p above ln(n)/n = {np.log(clients) / clients:.3g} usually is",
        )
        return _static("erdos-renyi", _weigh(adjacency, self.weights))


@part
class KRegular:
    """Everyone talks to k others, drawn at random once, and again until connected."""

    k: Annotated[int, Field(ge=1, description="how many others each client talks to")] = 10

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "k-regular")
        _fewer_than_clients("k-regular", "k", self.k, clients)
        if clients * self.k % 2:
            raise GraphError(
                f"graph 'k-regular': {clients} clients with {self.k} neighbours each would make half a link; "
                f"one of the two must be even (k = {self.k - 1 or self.k + 1} would do)"
            )
        if self.k == 1 and clients > 2:
            raise GraphError(f"graph 'k-regular': with k = 1, {clients} clients fall into pairs; k = 2 would connect")

        def draw(key: int) -> Any:
            nx = _networkx()
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
        return _static("k-regular", uniform(adjacency))


# Sequences of sparse steps, repeated or drawn anew.


@part
class BaseK:
    """A short sequence of sparse steps, at most k neighbours each, whose product is the exact mean for any n."""

    k: Annotated[int, Field(ge=1, description="how many neighbours a client may have at a step")] = 1

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(1, clients, "base-k")
        steps = base_graph(clients, self.k)

        def build(step: int) -> csr_array:
            edges = np.array(steps[step]).reshape(-1, 3)
            i, j = edges[:, :2].astype(int).T
            weights = (np.tile(edges[:, 2], 2), (np.concatenate([i, j]), np.concatenate([j, i])))
            return with_remainder(csr_array(weights, shape=(clients, clients)))

        claims = Claims(rows=True, columns=True, symmetric=True, self_loops=True, connected=True)
        return Network("base-k", clients, len(steps), claims, build, shape=(clients,))


@part
class RandomSymmetric:
    """Drawn anew at every step, undirected: about `neighbours` for each client, some with more, some with fewer."""

    neighbours: Annotated[int, Field(ge=1, description="how many clients each draws; a draw of itself is lost")] = 9
    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "random-symmetric")
        _fewer_than_clients("random-symmetric", "neighbours", self.neighbours, clients)

        def build(step: int) -> csr_array:
            rng = generator(seed, Purpose.GRAPH, round=step)
            drawn = _picks(rng, clients, of=clients, size=self.neighbours)
            drawer = np.repeat(np.arange(clients), self.neighbours)
            # A pair talks when its lower client drew its higher one, so that it has one chance of being drawn, not two.
            kept = drawer < drawn.ravel()
            return _weigh(_undirected(clients, drawer[kept], drawn.ravel()[kept]), self.weights)

        return _drawn("random-symmetric", clients, self.weights, build, undirected=True)


@part
class RandomPull:
    """Drawn anew at every step, directed: each client pulls from `neighbours` others and averages them with itself."""

    neighbours: Annotated[int, Field(ge=1, description="how many others a client hears from")] = 10
    weights: Annotated[Literal["uniform", "column"], Field(description="uniform (rows) or column")] = "uniform"

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "random-pull")
        _fewer_than_clients("random-pull", "neighbours", self.neighbours, clients)

        def build(step: int) -> csr_array:
            return _weigh(_picked_others(seed, step, clients, self.neighbours), self.weights)

        return _drawn("random-pull", clients, self.weights, build)


@part
class DirectedRandom:
    """Drawn anew at every step, directed: each client sends equal shares to `neighbours` others."""

    neighbours: Annotated[int, Field(ge=1, description="how many others a client sends to")] = 10
    weights: Annotated[Literal["column", "uniform"], Field(description="column or uniform (rows)")] = "column"

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "directed-random")
        _fewer_than_clients("directed-random", "neighbours", self.neighbours, clients)

        def build(step: int) -> csr_array:
            return _weigh(_picked_others(seed, step, clients, self.neighbours).T.tocsr(), self.weights)

        return _drawn("directed-random", clients, self.weights, build)


@part
class DirectedByLoss:
    """Drawn anew at every step, directed: clients send to those whose training loss differs most from theirs."""

    neighbours: Annotated[int, Field(ge=1, description="how many others a client sends to")] = 10

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(2, clients, "directed-by-loss")
        _fewer_than_clients("directed-by-loss", "neighbours", self.neighbours, clients)

        def choose(step: int, losses: NDArray[np.float64]) -> csr_array:
            """Client j picks i with probability proportional to exp |f_i − f_j|: the top of that plus Gumbel noise."""
            rng = generator(seed, Purpose.GRAPH, round=step)
            scores = np.abs(losses[:, None] - losses[None, :]) + rng.gumbel(size=(clients, clients))
            np.fill_diagonal(scores, -np.inf)  # the client itself always keeps its share
            receivers = np.argpartition(-scores, self.neighbours - 1, axis=0)[: self.neighbours]
            senders = np.broadcast_to(np.arange(clients), receivers.shape)
            return _weigh(_ones(clients, receivers.ravel(), senders.ravel()), "column")

        network = _drawn("directed-by-loss", clients, "column", lambda step: choose(step, np.zeros(clients)))
        return replace(network, by_loss=choose)


@part
class Server:
    """A server averages the clients it calls and sends the result to all: the centralized baseline."""

    participation: Annotated[float, Field(gt=0, le=1, description="the share of clients called per round")] = 1.0
    sampling: Annotated[
        Literal["fixed", "coin"],
        Field(description="fixed: always the same number of clients; coin: each client is called independently"),
    ] = "fixed"

    def bind(self, clients: int, seed: int) -> Network:
        _at_least(1, clients, "server")
        size = max(1, round(self.participation * clients))
        everyone = self.participation == 1 or clients == 1 or (self.sampling == "fixed" and size == clients)

        def sample(step: int) -> NDArray[np.int64]:
            if everyone:
                return np.arange(clients)
            rng = generator(seed, Purpose.PARTICIPATION, round=step)
            if self.sampling == "fixed":
                return np.sort(rng.choice(clients, size, replace=False))
            called = np.flatnonzero(rng.random(clients) < self.participation)
            return called if called.size else rng.integers(clients, size=1)  # a round with nobody has no mean

        def build(step: int) -> csr_array:
            called = sample(step)
            row = np.zeros(clients)
            row[called] = 1 / len(called)
            return csr_array(np.broadcast_to(row, (clients, clients)))

        claims = Claims(rows=True, columns=everyone, symmetric=everyone, self_loops=False, connected=True)
        return Network("server", clients, 1 if everyone else None, claims, build, sample)


# Given by the user.


@part
class Edges:
    """The links, one by one."""

    edges: Annotated[list[tuple[int, int]], Field(description="pairs (source, target) of clients, counted from 0")]
    directed: DirectedField = False
    weights: ChosenWeights = None

    def bind(self, clients: int, seed: int) -> Network:
        for number, edge in enumerate(self.edges):
            for node in edge:
                _is_client(node, clients, f"graph 'edges': edge {number}, {edge}")
        return _from_edges("edges", clients, self.edges, self.directed, self.weights)


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
                _is_client(int(word), clients, where)
            edges.append((int(words[0]), int(words[1])))
        return _from_edges("edge-list", clients, edges, self.directed, self.weights, source=f"{self.path}: ")


def _nested(matrix: Any) -> Any:
    """Arrays as nested lists, so that a matrix given in Python can be written to TOML as well."""
    matrix = matrix.toarray() if issparse(matrix) else matrix
    return matrix.tolist() if isinstance(matrix, np.ndarray) else matrix


Entry = Annotated[float, Field(allow_inf_nan=True)]  # a wrong one is named by its place, later


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


def as_graph(thing: Any) -> Graph:
    """What a user passes, as something that can be bound to clients.

    Accepted: an object with `bind(clients, seed)`; a networkx graph; a square matrix of weights (numpy or scipy); a
    class or function without arguments that returns one of these. The nodes of a networkx graph are the clients: by
    their number when they are 0, 1, …, n-1, otherwise in the order in which the graph lists them. Its edge weights and
    self loops are ignored; an undirected graph gets metropolis weights, a directed one column weights.
    """
    if hasattr(thing, "bind") and not isinstance(thing, type):
        return thing  # type: ignore[no-any-return]  # whether `bind` takes what it should shows when it is called
    if isinstance(thing, _networkx().Graph):
        nodes = range(len(thing)) if set(thing) == set(range(len(thing))) else list(thing)
        number = {node: i for i, node in enumerate(nodes)}
        return Edges(edges=[(number[a], number[b]) for a, b in thing.edges()], directed=thing.is_directed())
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


# How the parts above become networks.


def _static(name: str, matrix: csr_array, connected: bool = True, shape: tuple[int, ...] = ()) -> Network:
    return Network(name, matrix.shape[0], 1, claims_of(matrix, connected), lambda _: matrix, shape=shape)


def _drawn(
    name: str, clients: int, weights: Weights, build: Callable[[int], csr_array], undirected: bool = False
) -> Network:
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


def _circulant(name: str, clients: int, offsets: Iterable[int]) -> Network:
    return _static(name, uniform(_circulant_links(clients, offsets)), shape=(clients,))


def _circulant_links(clients: int, offsets: Iterable[int]) -> csr_array:
    distinct = np.unique([offset % clients for offset in offsets])
    receiver = np.repeat(np.arange(clients), len(distinct))
    sender = (receiver - np.tile(distinct, clients)) % clients
    return csr_array((np.ones(len(sender)), (receiver, sender)), shape=(clients, clients))


def _from_edges(
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
        adjacency = _ones(clients, target_of, source_of)
    else:
        adjacency = _undirected(clients, source_of, target_of)
    return _static(name, _weigh(adjacency, weights or ("column" if directed else "metropolis")))


def _networkx() -> Any:
    """networkx, imported when a graph is made with it: that takes a tenth of a second, and most need nothing of it."""
    import networkx

    return networkx


def _draw_connected(draw: Callable[[int], Any], seed: int, what: str, hint: str) -> csr_array:
    for attempt in range(TRIES):
        key = int(generator(seed, Purpose.GRAPH, step=attempt).integers(2**31))
        graph = draw(key)
        if _networkx().is_connected(graph):
            return _adjacency(graph)
    raise GraphError(f"{what} was not connected in any of {TRIES} draws; {hint}")


def _adjacency(graph: Any) -> csr_array:
    """Of an undirected networkx graph, clients in sorted order of its nodes (a grid: row by row)."""
    return csr_array(_networkx().to_scipy_sparse_array(graph, nodelist=sorted(graph), dtype=np.float64, weight=None))


def _undirected(clients: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> csr_array:
    return _ones(clients, np.concatenate([a, b]), np.concatenate([b, a]))


def _ones(clients: int, receiver: NDArray[np.int64], sender: NDArray[np.int64]) -> csr_array:
    other = receiver != sender
    counts = csr_array((np.ones(other.sum()), (receiver[other], sender[other])), shape=(clients, clients))
    counts.sum_duplicates()
    counts.data[:] = 1  # a link given twice is one link
    return counts


def _weigh(adjacency: csr_array, weights: Weights) -> csr_array:
    return WEIGHTS[weights](adjacency)


def _picked_others(seed: int, step: int, clients: int, size: int) -> csr_array:
    """Row i marks the `size` others that client i drew at this step."""
    rng = generator(seed, Purpose.GRAPH, round=step)
    drawer = np.arange(clients)[:, None]
    picks = _picks(rng, clients, of=clients - 1, size=size)
    picks = picks + (picks >= drawer)  # skip the drawer itself
    return _ones(clients, np.repeat(drawer.ravel(), size), picks.ravel())


def _picks(rng: np.random.Generator, clients: int, of: int, size: int) -> NDArray[np.int64]:
    """For each client, `size` distinct numbers below `of`."""
    return np.array([rng.choice(of, size, replace=False, shuffle=False) for _ in range(clients)])


def _doublings(clients: int) -> int:
    """How many of 1, 2, 4, … are below `clients`."""
    return (clients - 1).bit_length()


def _divisors(n: int, most: int | None = None) -> list[int]:
    return [d for d in range(1, (most or n) + 1) if n % d == 0]


def _is_torus(n: int) -> bool:
    return any(n % r == 0 for r in range(3, n // 3 + 1))


# What a user can get wrong about the number of clients.


def _at_least(least: int, clients: int, name: str) -> None:
    if clients < least:
        others = [f"'{other}'" for other, needs in (("ring", 3), ("full", 1)) if needs <= clients and other != name]
        instead = f"; {' or '.join(others)} would do" if others else ""
        noun = "client" if least == 1 else "clients"
        raise GraphError(f"graph '{name}' needs at least {least} {noun} (got {clients}){instead}")


def _fewer_than_clients(name: str, parameter: str, value: int, clients: int) -> None:
    if value >= clients:
        raise GraphError(
            f"graph '{name}': {parameter} = {value}, but each of {clients} clients has only {clients - 1} others; "
            f"set {parameter} to at most {clients - 1}, or take 'full'"
        )


def _is_client(node: int, clients: int, where: str) -> None:
    if not 0 <= node < clients:
        raise GraphError(f"{where}: there is no client {node}; {clients} clients are numbered 0 to {clients - 1}")
