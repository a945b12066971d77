"""The rows of the training set that each client holds, as two arrays: a million clients are no list of a million."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import DataError

Indices = NDArray[np.int64]


class ClientRows:
    """Row indices of all clients in one array; those of client i lie between `offsets[i]` and `offsets[i + 1]`.

    >>> rows = ClientRows.of([[4, 1], [], [0]])
    >>> len(rows), rows[0], rows.sizes, rows.gather([2, 0])
    (3, array([4, 1]), array([2, 0, 1]), array([0, 4, 1]))
    """

    def __init__(self, indices: Indices, offsets: Indices) -> None:
        self.indices = indices
        self.offsets = offsets

    @classmethod
    def of(cls, rows: "ClientRows | Sequence[Any]") -> "ClientRows":
        """One sequence of indices for each client, joined."""
        if isinstance(rows, ClientRows):
            return rows
        arrays = [np.asarray(indices) if len(indices) else np.empty(0, dtype=np.int64) for indices in rows]
        for client, indices in enumerate(arrays):
            if indices.ndim != 1 or indices.dtype.kind not in "iu":
                raise DataError(
                    f"client {client}: expected a flat array of sample indices, got {indices.dtype} {indices.shape}."
                )
        joined = np.concatenate(arrays or [np.empty(0)], dtype=np.int64, casting="unsafe")
        return cls(joined, _offsets([len(indices) for indices in arrays]))

    @classmethod
    def cut(cls, indices: Indices, parts: int) -> "ClientRows":
        """Consecutive parts, equally large up to one row; the first ones are the larger."""
        whole, rest = divmod(len(indices), parts)
        return cls(indices, _offsets(whole + (np.arange(parts) < rest)))

    @classmethod
    def by_owner(cls, indices: Indices, owners: Indices, clients: int) -> "ClientRows":
        """Each index in the rows of its owner, in the order given."""
        order = np.argsort(owners, kind="stable")
        return cls(indices[order], _offsets(np.bincount(owners, minlength=clients)))

    @classmethod
    def of_one(cls, client: int, rows: int, clients: int) -> "ClientRows":
        """All rows held by one client; the others hold none."""
        return cls(np.arange(rows), np.where(np.arange(clients + 1) > client, rows, 0))

    @property
    def sizes(self) -> Indices:
        """The number of rows of each client."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Indices:
        """For each of `indices`, the client that holds it."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Indices:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Indices]:
        return (self[client] for client in range(len(self)))

    def gather(self, clients: Sequence[int] | Indices) -> Indices:
        """The rows of these clients, one client after the other; a client may occur several times."""
        chosen = np.asarray(clients, dtype=np.int64)
        starts, sizes = self.offsets[chosen], self.offsets[chosen + 1] - self.offsets[chosen]
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + sizes, sizes)
        rows: Indices = self.indices.take(places)
        return rows


def _offsets(sizes: Sequence[int] | NDArray[Any]) -> Indices:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
