"""Mixing: every client's messages, stacked as rows, times a sparse matrix taken from the graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gossamer.graphs import Network
from gossamer.methods import Message, Operator, Traits, mixes
from gossamer.mixing.exchange import RowExchange
from gossamer.mixing.product import Multiply, product
from gossamer.system.sums import sum_rows
from gossamer.workers import ALONE, Group

Losses = np.ndarray | None
#: Matrices that are kept for graphs that repeat: a static graph has one for each operator.
MOST_MATRICES = 64
#: A worker's share of the columns is a multiple of so many.
SHARE = 32
#: Numbers of the messages to a server that are copied at once.
SERVER_BLOCK = 1 << 20


def operator_matrix(network: Network, operator: Operator, step: int, losses: Losses = None) -> sparse.csr_array:
    """The matrix that an operator multiplies the stacked messages with at one gossip step."""
    weights = network.matrix(step, losses)
    if operator in ("average", "push"):
        # They differ in the sums of the weights that they need, which are checked before a run.
        return weights
    others = sparse.csr_array(weights - sparse.diags_array(weights.diagonal()))
    others.eliminate_zeros()
    if operator == "sum":
        others.data = np.ones_like(others.data)
    return others


class Mixer:
    """Mixes the messages of a worker's own clients with those of all others.

    `client_ranges` are the clients of each worker; the messages of a worker are the rows of its own clients, in order.
    Where a worker sees the rows of all clients, which `all_clients` gives for those of its own, nothing is sent: each
    worker mixes some columns of them all. `columns`: how many will be mixed in the run. `note` is called where they are
    mixed in a slower way than that deserves.
    """

    def __init__(
        self,
        network: Network,
        client_ranges: Sequence[range] | None = None,
        group: Group = ALONE,
        all_clients: Callable[[Tensor], Tensor | None] = lambda rows: None,
        columns: float = 0,
        note: Callable[[str], None] = lambda trouble: None,
    ) -> None:
        self._note = note
        self._network = network
        self._group = group
        self._client_ranges = client_ranges or [range(network.clients)]
        self._own = self._client_ranges[group.rank]
        self._all_clients = all_clients
        self._columns = columns
        self._matrices: dict[tuple[Operator, int], _Matrix] = {}

    def mix(self, operators: dict[str, Operator], messages: Message, step: int, losses: Losses = None) -> Message:
        """The mixed messages of the own clients, by name: [own clients, ...]. The messages given may be overwritten.

        Every worker has written its messages before any of them calls this: a barrier is between.
        """
        mixed, waits = {}, False
        pairs = mixes(operators, messages)
        for number, (key, (name, operator)) in enumerate(pairs.items()):
            rows = messages[name]
            if operator == "server":
                mixed[key] = self._mean(rows, step).expand_as(rows)
                continue
            # A message that is mixed in a second way later must not be overwritten.
            needed_again = any(later == name for later, _ in list(pairs.values())[number + 1 :])
            mixed[key] = torch.empty_like(rows) if needed_again else rows
            matrix = self._matrix(operator, step, losses)
            seen = rows if self._group.size == 1 else self._all_clients(rows)
            if seen is None:
                matrix.exchange.apply(self._group, _flat(rows), _flat(mixed[key]))
            elif needed_again:
                matrix.own_rows(_flat(seen), _flat(mixed[key]))
                self._group.barrier()  # which are not overwritten before all have read them
            else:
                share = _share(_flat(seen), self._group)
                matrix.all_rows(share, share)
                waits = self._group.size > 1
        if waits:  # until all columns of the own rows are mixed
            self._group.barrier()
        return mixed

    def _mean(self, rows: Tensor, step: int) -> Tensor:
        """The mean over the clients that the server called."""
        called = self._network.participants(step)
        assert called is not None
        here = called[(called >= self._own.start) & (called < self._own.stop)] - self._own.start
        flat = rows.view(len(rows), -1)
        total = torch.zeros(flat.shape[1], dtype=torch.float64, device=rows.device)
        for some in torch.split(
            torch.as_tensor(here, device=rows.device), max(1, SERVER_BLOCK // max(1, flat.shape[1]))
        ):
            total += sum_rows(flat[some])
        return (self._group.all_sum(total) / len(called)).to(rows.dtype).view(rows.shape[1:])

    def _matrix(self, operator: Operator, step: int, losses: Losses) -> "_Matrix":
        period = self._network.period
        repeats = period is not None and period <= MOST_MATRICES and not (self._network.by_loss and losses is not None)
        key = (operator, step % period if period else 0)
        if repeats and key in self._matrices:
            return self._matrices[key]
        weights = operator_matrix(self._network, operator, step, losses)
        columns = self._columns / (period or 1) if repeats else 0
        matrix = _Matrix(weights, self._client_ranges, self._group.rank, columns, self._note)
        if repeats:
            self._matrices[key] = matrix
        return matrix


class _Matrix:
    """The ways to multiply by a matrix, made when they are first used."""

    def __init__(
        self,
        weights: sparse.csr_array,
        client_ranges: Sequence[range],
        rank: int,
        columns: float,
        note: Callable[[str], None],
    ) -> None:
        self._weights, self._client_ranges, self._rank, self._columns = weights, client_ranges, rank, columns
        self._note = note
        self._products: dict[tuple[str, torch.dtype], Multiply] = {}

    @cached_property
    def exchange(self) -> RowExchange:
        """Own rows from own rows and those that other workers send."""
        return RowExchange(self._weights, self._client_ranges, self._rank, self._columns, self._note)

    def all_rows(self, rows: Tensor, into: Tensor) -> None:
        """All rows from all rows."""
        self._product("all", self._weights, rows)([rows], into)

    def own_rows(self, rows: Tensor, into: Tensor) -> None:
        """The own clients' rows from all rows."""
        own = self._client_ranges[self._rank]
        self._product("own", self._weights[own.start : own.stop], rows)([rows], into)

    def _product(self, which: str, weights: sparse.csr_array, rows: Tensor) -> Multiply:
        key = (which, rows.dtype)
        if key not in self._products:
            self._products[key] = product(weights, rows, self._columns, self._note)
        return self._products[key]


def _flat(rows: Tensor) -> Tensor:
    return rows.view(len(rows), -1)


def _share(rows: Tensor, group: Group) -> Tensor:
    """A worker's share of the columns. Of neighbouring shares no cache line is written by both, but for the ends."""
    columns = rows.shape[1]
    ends = [-(-columns * worker // (group.size * SHARE)) * SHARE for worker in (group.rank, group.rank + 1)]
    return rows[:, min(ends[0], columns) : min(ends[1], columns)]


@dataclass
class Traffic:
    """Bytes that each client and the server send in a round, counted from the tensors that are sent."""

    clients: np.ndarray
    server: int = 0
    #: Sent over links, by clients and by the server together.
    messages: int = 0

    def add(self, network: Network, traits: Traits | None, messages: Message, step: int, losses: Losses) -> None:
        """Count one gossip step. The messages of a method with a codec count in their encoded form."""
        sends = network.sends(step, losses)
        first = {name: rows[0] for name, rows in messages.items()}
        if traits is not None:
            first = traits.encoded(first)
        # The messages of all clients have the same shapes, so one of them gives the size.
        one = sum(tensor.numel() * tensor.element_size() for tensor in first.values())
        self.clients += sends.astype(np.int64) * one
        self.server += network.server_sends(step) * one
        if one:
            self.messages += int(sends.sum()) + network.server_sends(step)
