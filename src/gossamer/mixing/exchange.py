"""Mixing when each worker holds the rows of its own clients: which rows cross, and how.

A worker needs the messages of every client that its own ones hear. What its neighbours owe it is, per pair of workers,
either those messages themselves or, where fewer numbers cross that way (many send to few, as to the hub of a star), the
partial sums already weighted for each receiver. Nothing crosses between workers whose clients do not talk.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gossamer.workers import Group

#: Bytes of a block of columns: small enough for a core's cache, so that a row is fetched from memory once.
CACHE_BLOCK = 2 << 20
#: Bytes that cross at once: large enough that the way there does not matter, small enough to hold beside the state.
CROSSING_BLOCK = 1 << 20
#: Columns that cross at once at least, however many rows there are: a few lines of a processor's cache.
LEAST = 32


class Give(NamedTuple):
    """What a worker sends to another one: some of its own rows, or sums of them."""

    worker: int
    number: int
    rows: np.ndarray | None = None
    sums: sparse.csr_array | None = None


class RowExchange:
    """One matrix applied to rows that are spread over workers."""

    def __init__(self, matrix: sparse.csr_array, client_ranges: Sequence[range], rank: int) -> None:
        own = client_ranges[rank]
        mine = matrix[own.start : own.stop]
        #: Rows that come from each other worker, in the order of the workers.
        self.takes: dict[int, int] = {}
        self.gives: list[Give] = []
        columns = []
        for worker, place in enumerate(client_ranges):
            if worker == rank:
                self.before = sum(self.takes.values())
                columns.append(mine[:, place.start : place.stop])
                continue
            wanted = mine[:, place.start : place.stop]
            senders, receivers = _crossing(wanted)
            if len(senders):
                as_rows = len(senders) <= len(receivers)
                self.takes[worker] = len(senders) if as_rows else len(receivers)
                columns.append(wanted[:, senders] if as_rows else _put(receivers, len(own)))
            owed = matrix[place.start : place.stop, own.start : own.stop]
            senders, receivers = _crossing(owed)
            if len(senders):
                if len(senders) <= len(receivers):
                    self.gives.append(Give(worker, len(senders), rows=senders))
                else:
                    self.gives.append(Give(worker, len(receivers), sums=sparse.csr_array(owed[receivers])))
        #: All must cut rows into the same blocks, so each reckons with the one who has the most to send or to hear.
        self.crossing = _most_crossing(matrix, client_ranges)
        # In the order of the clients, so that a sum is taken in the same order whatever the number of workers.
        self.matrix = sparse.csr_array(sparse.hstack(columns, format="csr"))
        self.matrix.sort_indices()

    def apply(self, group: Group, rows: Tensor, into: Tensor) -> None:
        """Mix `rows` [own clients, numbers] into `into`, which may be the same tensor."""
        if not rows.shape[1]:
            return
        arriving, size, columns = sum(self.takes.values()), rows.element_size(), rows.shape[1]
        wide = min(columns, max(LEAST, CROSSING_BLOCK // (self.crossing * size))) if self.crossing else columns
        narrow = min(wide, max(64, CACHE_BLOCK // (self.matrix.shape[1] * size)))
        product = Product(self.matrix, rows)
        partial = {give.worker: Product(give.sums, rows) for give in self.gives if give.sums is not None}
        # The same memory for all blocks, and given back at the end: there may be little beside the state.
        leaving, foreign = [Room(rows, give.number, wide) for give in self.gives], Room(rows, arriving, wide)
        together = Room(rows, arriving + len(rows), narrow)
        for start in range(0, columns, wide):
            block = rows[:, start : start + wide]
            width = block.shape[1]
            parcels = {}
            for give, room in zip(self.gives, leaving, strict=True):
                parcels[give.worker] = room(width)
                if give.rows is not None:
                    torch.index_select(block, 0, torch.as_tensor(give.rows, device=rows.device), out=room(width))
                else:
                    room(width).copy_(partial[give.worker](block.contiguous()))
            arrived = foreign(width)
            shelves, first = {}, 0
            for worker, count in self.takes.items():
                shelves[worker] = arrived[first : first + count]
                first += count
            group.exchange(parcels, shelves)
            for left in range(0, width, narrow):
                right = min(left + narrow, width)
                near, far = block[:, left:right], arrived[:, left:right]
                ordered = together(right - left)
                torch.cat([far[: self.before], near, far[self.before :]], out=ordered)
                into[:, start + left : start + right] = product(ordered)


class Room:
    """Memory for so many rows, as wide as they may be; called with a width it gives a tensor there."""

    def __init__(self, like: Tensor, rows: int, most: int) -> None:
        self._rows = rows
        self._numbers = like.new_empty(rows * most)

    def __call__(self, width: int) -> Tensor:
        return self._numbers[: self._rows * width].view(self._rows, width)


class Product:
    """A sparse matrix times dense rows, by the library that does it best where the rows are."""

    def __init__(self, matrix: sparse.csr_array, like: Tensor) -> None:
        self._on_cpu = like.device.type == "cpu"
        if self._on_cpu:  # several times faster than torch's own sparse product there
            self._matrix = sparse.csr_array(matrix, dtype=str(like.dtype).removeprefix("torch."))
        else:
            self._tensor = as_torch(matrix, like.dtype, like.device)

    def __call__(self, rows: Tensor) -> Tensor:
        if self._on_cpu:
            return torch.from_numpy(self._matrix @ rows.numpy())
        return self._tensor @ rows


def _crossing(block: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """The columns and the rows of a block that are not empty: who sends, who receives."""
    entries = block.tocoo()
    row, column = entries.coords
    return np.unique(column), np.unique(row)


def _most_crossing(matrix: sparse.csr_array, client_ranges: Sequence[range]) -> int:
    """The most rows that one worker sends to all others, or hears from them."""
    clients, workers = matrix.shape[0], len(client_ranges)
    owner = np.repeat(np.arange(workers), [len(place) for place in client_ranges])
    row, column = matrix.tocoo().coords
    away = owner[row] != owner[column]
    row, column = row[away].astype(np.int64), column[away].astype(np.int64)
    # Each sender once for each worker that hears it, each receiver once for each worker that it hears.
    (to, sender), (by, receiver) = (
        np.divmod(np.unique(owner[one] * clients + other), clients) for one, other in ((row, column), (column, row))
    )
    as_rows = np.bincount(owner[sender] * workers + to, minlength=workers**2)
    as_sums = np.bincount(by * workers + owner[receiver], minlength=workers**2)
    crossing = np.minimum(as_rows, as_sums).reshape(workers, workers)
    return int(max(crossing.sum(0).max(), crossing.sum(1).max()))


def _put(receivers: np.ndarray, clients: int) -> sparse.csr_array:
    """The matrix that adds partial sums to the clients they are for."""
    ones = np.ones(len(receivers))
    return sparse.csr_array((ones, (receivers, np.arange(len(receivers)))), shape=(clients, len(receivers)))


def as_torch(matrix: sparse.csr_array, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same sparse matrix for torch."""
    with warnings.catch_warnings():
        # torch calls its CSR layout "in beta state" once per process.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            dtype=dtype,
            check_invariants=False,
            device=device,
        )
