"""Mixing when each worker holds the rows of its own clients: the rows that are sent between workers.

A worker needs the messages of every neighbour of its own clients. Another worker sends either those messages or, where
that is less (many clients send to few, as to the hub of a star), partial sums that are weighted for each receiver.
Workers without neighbouring clients send each other nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gossamer.mixing.product import Multiply, product
from gossamer.workers import Group

#: Bytes that are sent at once: so many that latency does not matter, so few that they add little to the state.
SENDING_BLOCK = 1 << 20
#: Columns that are sent at once at least, however many rows there are: a few cache lines.
LEAST_COLUMNS = 32


class Parcel(NamedTuple):
    """What a worker sends to another one: some of its own rows, or sums of them."""

    worker: int
    number: int
    rows: np.ndarray | None = None
    sums: sparse.csr_array | None = None


class RowExchange:
    """One matrix applied to rows that are spread over workers. `columns`: how many will be mixed in the run. `note` is
    called where they are mixed in a slower way than that deserves."""

    def __init__(
        self,
        matrix: sparse.csr_array,
        client_ranges: Sequence[range],
        rank: int,
        columns: float = 0,
        note: Callable[[str], None] = lambda trouble: None,
    ) -> None:
        own = client_ranges[rank]
        mine = matrix[own.start : own.stop]
        #: The number of rows from each other worker, in the order of the workers.
        self.receives: dict[int, int] = {}
        self.sends: list[Parcel] = []
        parts = []
        for worker, others in enumerate(client_ranges):
            if worker == rank:
                self.before = sum(self.receives.values())
                parts.append(mine[:, others.start : others.stop])
                continue
            needed = mine[:, others.start : others.stop]
            senders, receivers = _nonempty(needed)
            if len(senders):
                as_rows = len(senders) <= len(receivers)
                self.receives[worker] = len(senders) if as_rows else len(receivers)
                parts.append(needed[:, senders] if as_rows else _placement(receivers, len(own)))
            sent = matrix[others.start : others.stop, own.start : own.stop]
            senders, receivers = _nonempty(sent)
            if len(senders):
                if len(senders) <= len(receivers):
                    self.sends.append(Parcel(worker, len(senders), rows=senders))
                else:
                    self.sends.append(Parcel(worker, len(receivers), sums=sparse.csr_array(sent[receivers])))
        #: The most rows that any worker sends or receives: all workers must cut rows into the same blocks.
        self.most_rows = _most_rows(matrix, client_ranges)
        # In the order of the clients, so that sums do not depend on the number of workers.
        self.matrix = sparse.csr_array(sparse.hstack(parts, format="csr"))
        self.matrix.sort_indices()
        self._mixed, self._note = columns, note
        self._products: dict[torch.dtype, tuple[Multiply, dict[int, Multiply]]] = {}

    def apply(self, group: Group, rows: Tensor, into: Tensor) -> None:
        """Mix `rows` [own clients, numbers] into `into`, which may be the same tensor."""
        if not rows.shape[1]:
            return
        arriving, size, columns = sum(self.receives.values()), rows.element_size(), rows.shape[1]
        wide = min(columns, max(LEAST_COLUMNS, SENDING_BLOCK // (self.most_rows * size))) if self.most_rows else columns
        mix, sums = self._multiplies(rows)
        # The same memory for all blocks, freed at the end: with a large state there may be little.
        leaving, foreign = [Block(rows, parcel.number, wide) for parcel in self.sends], Block(rows, arriving, wide)
        for start in range(0, columns, wide):
            block = rows[:, start : start + wide]
            width = block.shape[1]
            sends = {}
            for parcel, memory in zip(self.sends, leaving, strict=True):
                sends[parcel.worker] = memory(width)
                if parcel.rows is not None:
                    torch.index_select(block, 0, torch.as_tensor(parcel.rows, device=rows.device), out=memory(width))
                else:
                    sums[parcel.worker]([block], memory(width))
            arrived = foreign(width)
            receives, first = {}, 0
            for worker, count in self.receives.items():
                receives[worker] = arrived[first : first + count]
                first += count
            group.exchange(sends, receives)
            mix([arrived[: self.before], block, arrived[self.before :]], into[:, start : start + wide])

    def _multiplies(self, rows: Tensor) -> tuple[Multiply, dict[int, Multiply]]:
        """The product with the matrix, and for each worker that gets sums the product that makes them."""
        if rows.dtype not in self._products:
            make = partial(product, like=rows, columns=self._mixed, note=self._note)
            sums = {parcel.worker: make(parcel.sums) for parcel in self.sends if parcel.sums is not None}
            self._products[rows.dtype] = make(self.matrix), sums
        return self._products[rows.dtype]


class Block:
    """Memory for so many rows of at most so many columns; called with a number of columns, it gives a tensor there."""

    def __init__(self, like: Tensor, rows: int, most: int) -> None:
        self._rows = rows
        self._numbers = like.new_empty(rows * most)

    def __call__(self, width: int) -> Tensor:
        return self._numbers[: self._rows * width].view(self._rows, width)


def _nonempty(block: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """The columns and the rows of a block that are not empty: senders and receivers."""
    entries = block.tocoo()
    row, column = entries.coords
    return np.unique(column), np.unique(row)


def _most_rows(matrix: sparse.csr_array, client_ranges: Sequence[range]) -> int:
    """The most rows that one worker sends to all others, or receives from them."""
    clients, workers = matrix.shape[0], len(client_ranges)
    owner = np.repeat(np.arange(workers), [len(owned) for owned in client_ranges])
    row, column = matrix.tocoo().coords
    away = owner[row] != owner[column]
    row, column = row[away].astype(np.int64), column[away].astype(np.int64)
    # Each sender once for each worker that it sends to, each receiver once for each worker that it receives from.
    (to, sender), (by, receiver) = (
        np.divmod(np.unique(owner[one] * clients + other), clients) for one, other in ((row, column), (column, row))
    )
    as_rows = np.bincount(owner[sender] * workers + to, minlength=workers**2)
    as_sums = np.bincount(by * workers + owner[receiver], minlength=workers**2)
    crossing = np.minimum(as_rows, as_sums).reshape(workers, workers)
    return int(max(crossing.sum(0).max(), crossing.sum(1).max()))


def _placement(receivers: np.ndarray, clients: int) -> sparse.csr_array:
    """The matrix that adds partial sums to the clients they are for."""
    ones = np.ones(len(receivers))
    return sparse.csr_array((ones, (receivers, np.arange(len(receivers)))), shape=(clients, len(receivers)))
