"""A graph bound to its clients: the mixing matrix of every gossip step.

Orientation, everywhere in Gossamer: `W[i, j]` is the weight that client i applies to what it gets from client j. Row i
belongs to the receiver, column j to the sender, and mixing is `X <- W X`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from gossamer.errors import GraphError

Losses = NDArray[np.float64]
#: How far a sum that should be one may be off; rounding alone stays far below.
TOLERANCE = 1e-12
#: Steps after which most randomly drawn graphs are connected.
WINDOW = 10


@dataclass(frozen=True)
class Claims:
    """Properties that hold for every matrix of a graph. Methods require some of them; `check` verifies them."""

    #: Rows sum to one: equal models stay equal.
    rows: bool
    #: Columns sum to one: the mean of the models (push-sum: the mass) is preserved.
    columns: bool
    #: W equals its transpose.
    symmetric: bool
    #: Every client gives itself some weight.
    self_loops: bool
    #: Over a period (or the first few draws) every client reaches every other.
    connected: bool
    #: If client i sends to j, j sends to i, with any weights. Follows from `symmetric`.
    undirected: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "undirected", self.undirected or self.symmetric)


@dataclass(frozen=True, eq=False)  # two networks of the same name may be drawn from different seeds
class Network:
    """A graph bound to its clients: `matrix(step)` holds the weights of a gossip step."""

    name: str
    clients: int
    #: 1: static; m: repeats after m steps; None: drawn anew at every step.
    period: int | None
    claims: Claims
    #: The matrix of a step.
    build: Callable[[int], csr_array] = field(repr=False)
    #: The clients that a server calls at a step; None without a server.
    sample: Callable[[int], NDArray[np.int64]] | None = field(default=None, repr=False)
    #: The matrix of a step on a graph whose clients choose their neighbours by training loss; None for other graphs.
    by_loss: Callable[[int, Losses], csr_array] | None = field(default=None, repr=False)
    #: The first steps of a randomly drawn graph over which it is connected; these are checked before a run.
    draws: int = field(default=WINDOW, repr=False)
    #: The layout of a picture: `(n,)` a circle, `(rows, columns)` a grid, `()` computed from the links.
    shape: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        size = None if self.period else 8  # a step of a random graph is used a few times in a row, then never again
        object.__setattr__(self, "_build", lru_cache(size)(lambda step: _tidy(self, self.build(step), step)))
        if self.sample is not None:
            object.__setattr__(self, "sample", lru_cache(8)(self.sample))
        object.__setattr__(self, "_facts", lru_cache(size)(lambda step: _facts(self.matrix(step))))

    def matrix(self, step: int, losses: Losses | None = None) -> csr_array:
        """The weights W of gossip step `step`, checked against the claims. Cached: do not write to it.

        `losses` are the clients' training losses, for a graph that depends on them; without them, such a graph is
        drawn as if all losses were equal.
        """
        if self.by_loss is not None and losses is not None:
            return _tidy(self, self.by_loss(step, losses), step)
        return self._build(self._phase(step))  # type: ignore[attr-defined]  # set above

    def _phase(self, step: int) -> int:
        return step % self.period if self.period else step

    @property
    def has_server(self) -> bool:
        """Whether clients talk to a server, and not to each other."""
        return self.sample is not None

    def participants(self, step: int) -> NDArray[np.int64] | None:
        """The clients that take part at `step`, in ascending order; None if all do."""
        return None if self.sample is None else self.sample(step)

    def participation(self, step: int) -> float:
        """The share of all clients that work at `step`."""
        return 1.0 if self.sample is None else len(self.sample(step)) / self.clients

    def sends(self, step: int, losses: Losses | None = None) -> NDArray[np.int64]:
        """The number of messages that each client sends at `step`."""
        if self.sample is not None:  # one message to the server from each client it called
            return np.bincount(self.sample(step), minlength=self.clients)
        if self.by_loss is not None and losses is not None:
            return _facts(self.matrix(step, losses)).sends
        counts: NDArray[np.int64] = self._facts(self._phase(step)).sends  # type: ignore[attr-defined]  # set above
        return counts

    def hears(self, step: int) -> NDArray[np.int64]:
        """The number of messages that each client receives at `step`; with a server, one."""
        if self.sample is not None:
            return np.ones(self.clients, dtype=np.int64)
        counts: NDArray[np.int64] = self._facts(self._phase(step)).hears  # type: ignore[attr-defined]  # set above
        return counts

    def own_weights(self, step: int) -> NDArray[np.float64]:
        """The weight that each client gives itself at `step`; zero with a server."""
        if self.sample is not None:
            return np.zeros(self.clients)
        weights: NDArray[np.float64] = self._facts(self._phase(step)).own_weights  # type: ignore[attr-defined]  # set above
        return weights

    def server_sends(self, step: int) -> int:
        """The number of messages that the server sends at `step`; zero without a server."""
        return 0 if self.sample is None else len(self.sample(step))

    def window(self, draws: int | None = None) -> range:
        """The steps that represent the graph: its period, or the first `draws` steps of a random one."""
        return range(self.period or draws or self.draws)


def check(network: Network) -> None:
    """Check a network against its claims; a `GraphError` names the graph, the client, the step and the value."""
    if network.has_server:
        return  # a server's mean uses no matrix, and its matrix would be dense
    union = union_links(network)
    if not network.claims.connected or network.clients == 1:
        return
    when = {1: "", None: f" over its first {network.draws} steps"}.get(
        network.period, f" over its {network.period} steps"
    )
    for graph, complaint in (
        (union, "{} cannot reach client 0"),
        (union.T.tocsr(), "client 0 cannot reach {}"),
    ):
        reached = breadth_first_order(graph, 0, return_predecessors=False)
        if len(reached) < network.clients:
            missing = np.setdiff1d(np.arange(network.clients), reached)
            raise GraphError(
                f"graph '{network.name}' is not connected{when}: {complaint.format(name_clients(missing))}"
            )


def links(matrix: csr_array) -> csr_array:
    """The messages of a matrix: True at (i, j) if j sends to another client i."""
    entries = matrix.tocoo()
    row, column = entries.coords
    other = (row != column) & (entries.data != 0)
    return csr_array((np.ones(other.sum(), dtype=bool), (row[other], column[other])), shape=matrix.shape)


def union_links(network: Network, draws: int | None = None) -> csr_array:
    """The links of all steps of the window together."""
    union = csr_array((network.clients, network.clients), dtype=bool)
    for step in network.window(draws):
        union = union + links(network.matrix(step))
    return union


def claims_of(matrix: csr_array, connected: bool = True) -> Claims:
    """The claims that hold for a static matrix."""
    messages = links(matrix)
    return Claims(
        rows=bool(np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=TOLERANCE)),
        columns=bool(np.allclose(matrix.sum(axis=0), 1, rtol=0, atol=TOLERANCE)),
        symmetric=bool(abs(matrix - matrix.T).max() <= TOLERANCE),
        self_loops=bool((matrix.diagonal() > 0).all()),
        connected=connected,
        undirected=bool((messages != messages.T).nnz == 0),
    )


def name_clients(clients: Iterable[int], most: int = 8) -> str:
    """The clients in words, for an error.

    >>> name_clients([4]), name_clients([4, 7, 9]), name_clients(range(100), most=3)
    ('client 4', 'clients 4, 7 and 9', 'clients 0, 1, 2 and 97 more')
    """
    numbers = [str(client) for client in clients]
    if len(numbers) == 1:
        return f"client {numbers[0]}"
    shown = numbers[: most if len(numbers) > most else -1]
    last = f"{len(numbers) - most} more" if len(numbers) > most else numbers[-1]
    return f"clients {', '.join(shown)} and {last}"


class _Facts(NamedTuple):
    """The messages that each client sends and receives at a step, and the weight that it gives itself."""

    sends: NDArray[np.int64]
    hears: NDArray[np.int64]
    own_weights: NDArray[np.float64]


def _facts(matrix: csr_array) -> _Facts:
    messages = links(matrix)
    sends = np.bincount(messages.indices, minlength=matrix.shape[1])
    return _Facts(sends, np.diff(messages.indptr).astype(np.int64), matrix.diagonal())


def _tidy(network: Network, matrix: csr_array, step: int) -> csr_array:
    """The matrix in canonical form, after checking every claim that concerns a single step."""
    name, n, claims = network.name, network.clients, network.claims
    if matrix.shape != (n, n):
        rows, columns = matrix.shape
        raise GraphError(f"graph '{name}' is a {rows} x {columns} matrix at step {step}; {n} clients need {n} x {n}")
    matrix = csr_array(matrix, dtype=np.float64)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()

    bad = np.flatnonzero(~(np.isfinite(matrix.data) & (matrix.data >= 0)))
    if bad.size:
        row, column = (int(index[bad[0]]) for index in matrix.tocoo().coords)
        raise GraphError(
            f"graph '{name}': client {row} gives client {column} the weight {matrix.data[bad[0]]:.12g} at step {step}; "
            "weights must be finite and not negative"
        )
    for claimed, axis, what in (
        (claims.rows, 1, "that client {} applies"),
        (claims.columns, 0, "on what client {} sends"),
    ):
        sums = matrix.sum(axis=axis)
        worst = int(np.argmax(np.abs(sums - 1)))
        if claimed and abs(sums[worst] - 1) > TOLERANCE:
            line = f"{'row' if axis else 'column'} {worst} of its matrix"
            raise GraphError(
                f"graph '{name}': the weights {what.format(worst)} sum to {sums[worst]:.12g} at step {step}, "
                f"not to 1 ({line})"
            )
    if claims.symmetric:
        difference = abs(matrix - matrix.T).tocoo()
        if difference.nnz and difference.data.max() > TOLERANCE:
            row, column = (int(index[np.argmax(difference.data)]) for index in difference.coords)
            raise GraphError(
                f"graph '{name}' is not symmetric: clients {row} and {column} give each other the weights "
                f"{matrix[row, column]:.12g} and {matrix[column, row]:.12g} at step {step}"
            )
    elif claims.undirected:
        messages = links(matrix)
        lonely = (messages != messages.T).tocoo()
        if lonely.nnz:
            row, column = (int(index[0]) for index in lonely.coords)
            raise GraphError(
                f"graph '{name}' is not undirected: clients {row} and {column} hear each other one way only at "
                f"step {step}"
            )
    if claims.self_loops and (matrix.diagonal() <= 0).any():
        client = int(np.argmin(matrix.diagonal()))
        raise GraphError(f"graph '{name}': client {client} gives itself no weight at step {step}")
    return matrix
