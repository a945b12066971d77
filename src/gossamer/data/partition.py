"""Partitions: which client holds which training sample. Every sample goes to exactly one client."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from gossamer.data.samples import Indices
from gossamer.errors import DataError
from gossamer.parts import Catalog, part
from gossamer.randomness import Purpose, generator

REDRAWS = 1000
Alpha = Annotated[
    float, Field(gt=0, allow_inf_nan=True, description="small: few classes for each client; large: all alike")
]


@part
class Iid:
    """Every client holds a random, equally large share of all samples."""

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        order = generator(seed, Purpose.PARTITION).permutation(len(targets))
        return np.array_split(order, clients)


@part
class Dirichlet:
    """Equally many samples for each client, of classes drawn from its own Dirichlet(alpha) distribution.

    Small alpha: few classes for each client. Infinite alpha: all classes alike.
    """

    alpha: Alpha = 0.3

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        """Let random clients that still have room take a sample of a class of their liking, until all are gone.

        A client whose drawn class is used up draws again. That is the same as drawing from its distribution over the
        classes that are left, which cannot go on forever; where nothing of that is left, it takes what there is.
        """
        rng = generator(seed, Purpose.PARTITION)
        pools = [pool.tolist() for pool in _by_class(targets, rng, "dirichlet")]
        liking = _dirichlet(rng, self.alpha, clients, len(pools))
        room = [len(share) for share in np.array_split(np.arange(len(targets)), clients)]
        held: list[list[int]] = [[] for _ in range(clients)]
        takers = [client for client in range(clients) if room[client]]
        wheels = [_wheel(row, pools) for row in liking]

        # Plain lists: one draw at a time is what this is, and numpy is slow at single numbers.
        for taker, turn in zip(*rng.random((2, len(targets))).tolist(), strict=True):
            place = int(taker * len(takers))
            client = takers[place]
            steps, total, last = wheels[client]
            label = bisect_right(steps, turn * total, 0, last)
            held[client].append(pools[label].pop())
            if len(held[client]) == room[client]:
                takers[place] = takers[-1]
                takers.pop()
            if not pools[label]:
                liking[:, label] = 0
                wheels = [_wheel(row, pools) for row in liking]
        return [np.array(indices, dtype=np.int64) for indices in held]


@part
class DirichletByClass:
    """Each class is spread over the clients by a Dirichlet(alpha) draw, so sizes differ too.

    The whole draw is repeated until every client holds at least `min_samples`.
    """

    alpha: Alpha = 0.3
    min_samples: Annotated[int, Field(ge=0, description="draw again until every client holds so many")] = 0

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        if self.min_samples * clients > len(targets):
            raise DataError(
                f"partition 'dirichlet-by-class': {clients:,} clients cannot hold min_samples={self.min_samples} each "
                f"of {len(targets):,} samples."
            )
        rng = generator(seed, Purpose.PARTITION)
        for _ in range(REDRAWS):
            pools = _by_class(targets, rng, "dirichlet-by-class")
            shares = _dirichlet(rng, self.alpha, len(pools), clients)
            cuts = [
                np.rint(share.cumsum()[:-1] * len(pool)).astype(int) for share, pool in zip(shares, pools, strict=True)
            ]
            pieces = [np.split(pool, cut) for pool, cut in zip(pools, cuts, strict=True)]
            parts = [np.concatenate([piece[client] for piece in pieces]) for client in range(clients)]
            if min(len(indices) for indices in parts) >= self.min_samples:
                return parts
        raise DataError(
            f"partition 'dirichlet-by-class': in {REDRAWS:,} draws with alpha={self.alpha:g} some client always held "
            f"fewer than min_samples={self.min_samples}. Take a larger alpha, fewer clients or a smaller min_samples."
        )


@part
class Shards:
    """Samples sorted by label and cut into shards; each client gets a few, so it knows few classes."""

    classes_per_client: Annotated[int, Field(ge=1, description="shards for each client")] = 2

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        shards = clients * self.classes_per_client
        if shards > len(targets):
            raise DataError(
                f"partition 'shards': {clients:,} clients with classes_per_client={self.classes_per_client} need "
                f"{shards:,} shards, but there are only {len(targets):,} samples. Take fewer clients or more samples."
            )
        rng = generator(seed, Purpose.PARTITION)
        cut = np.array_split(np.concatenate(_by_class(targets, rng, "shards")), shards)
        hands = rng.permutation(shards).reshape(clients, self.classes_per_client)
        return [np.concatenate([cut[shard] for shard in hand]) for hand in hands]


def _plain_lists(value: Any) -> Any:
    """Arrays and tensors as lists, so that a user may pass what numpy gave."""
    if isinstance(value, str | Path):
        return str(value)
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, list | tuple):
        return value
    return [row.tolist() if hasattr(row, "tolist") else row for row in value]


@part
class Explicit:
    """The samples of each client, listed: one list of indices per client, or a .json file with such lists."""

    indices: Annotated[
        list[list[int]] | str, BeforeValidator(_plain_lists), Field(description="the lists, or the file's path")
    ]

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> list[Indices]:  # nothing to draw
        lists = _read_lists(Path(self.indices)) if isinstance(self.indices, str) else self.indices
        if len(lists) != clients:
            raise DataError(f"partition 'explicit': {len(lists):,} lists of indices for {clients:,} clients.")
        parts = [np.array(indices, dtype=np.int64) for indices in lists]
        check_partition(parts, len(targets))
        return parts


PARTITIONS = Catalog(
    "partition",
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "dirichlet-by-class": DirichletByClass,
        "shards": Shards,
        "explicit": Explicit,
    },
    role="split",
)


def split(partition: Any, targets: NDArray[Any], clients: int, seed: int) -> list[Indices]:
    """Apply a partition, ours or a user's own (an object with `split`, or a function), and check what it gives."""
    divide = getattr(partition, "split", partition)
    if not callable(divide) or isinstance(partition, str | bytes):
        raise DataError(
            f"a partition is one of {', '.join(PARTITIONS)}, an object with split(targets, clients, seed), or such a "
            f"function; got {partition!r}."
        )
    if clients < 1:
        raise DataError(f"samples cannot be split among {clients} clients: there must be at least one.")
    parts = divide(targets, clients, seed)
    if not isinstance(parts, Sequence) or len(parts) != clients:
        found = f"{len(parts):,} parts" if isinstance(parts, Sequence) else type(parts).__name__
        raise DataError(f"the partition gave {found} for {clients:,} clients, expected one index array for each.")
    parts = [np.asarray(indices) if len(indices) else np.empty(0, dtype=np.int64) for indices in parts]
    check_partition(parts, len(targets))
    return [indices.astype(np.int64) for indices in parts]


def check_partition(parts: Sequence[NDArray[Any]], samples: int) -> None:
    """Refuse anything but an exact partition: every sample in exactly one client's hands.

    >>> check_partition([np.array([0, 2]), np.array([1])], 3)
    >>> check_partition([np.array([0, 2]), np.array([2])], 3)
    Traceback (most recent call last):
    gossamer.errors.DataError: sample 2 is given to clients 0 and 1; each sample belongs to exactly one client.
    """
    owner = np.full(samples, -1)
    for client, indices in enumerate(parts):
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise DataError(
                f"client {client}: expected a flat array of sample indices, got {indices.dtype} {indices.shape}."
            )
        outside = indices[(indices < 0) | (indices >= samples)]
        if len(outside):
            raise DataError(
                f"client {client}: no sample has index {outside[0]}; there are {samples:,}, counted from 0."
            )
        taken = indices[owner[indices] >= 0]
        if len(taken):
            raise DataError(
                f"sample {taken[0]} is given to clients {owner[taken[0]]} and {client}; "
                f"each sample belongs to exactly one client."
            )
        owner[indices] = client
        found, times = np.unique(indices, return_counts=True)
        if len(found) < len(indices):
            raise DataError(
                f"client {client}: sample {found[times > 1][0]} is listed {times.max()} times, expected once."
            )
    missing = np.flatnonzero(owner < 0)
    if len(missing):
        named = ", ".join(str(index) for index in missing[:5]) + (", …" if len(missing) > 5 else "")
        raise DataError(f"{len(missing):,} of {samples:,} samples belong to no client: {named}.")


def _by_class(targets: NDArray[Any], rng: np.random.Generator, name: str) -> list[Indices]:
    """The samples of each class that occurs, shuffled."""
    if targets.ndim != 1 or targets.dtype.kind not in "iub":
        raise DataError(
            f"partition '{name}' splits by class and needs integer labels; these are {targets.dtype}. Use iid."
        )
    order = rng.permutation(len(targets))
    labels = targets[order]
    order = order[np.argsort(labels, kind="stable")]
    sizes = np.unique(labels, return_counts=True)[1]
    return np.split(order, np.cumsum(sizes)[:-1])


def _dirichlet(rng: np.random.Generator, alpha: float, rows: int, columns: int) -> NDArray[np.float64]:
    """Rows that sum to one, each from a symmetric Dirichlet distribution; infinite alpha is its limit, equal shares."""
    if np.isinf(alpha):
        return np.full((rows, columns), 1 / columns)
    return rng.dirichlet(np.full(columns, alpha), size=rows)


def _wheel(liking: NDArray[np.float64], pools: list[list[int]]) -> tuple[list[float], float, int]:
    """A wheel of fortune over the classes that are left: where each slice ends, the whole, and the last slice."""
    slices = [weight if pool else 0.0 for weight, pool in zip(liking.tolist(), pools, strict=True)]
    if not sum(slices) > 0:
        slices = [float(len(pool)) for pool in pools]
    steps = list(accumulate(slices))
    return steps, steps[-1], bisect_left(steps, steps[-1])


def _read_lists(path: Path) -> list[list[int]]:
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"partition 'explicit': {path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise DataError(f"partition 'explicit': {path}: not a JSON file ({error}).") from None
    if not isinstance(lists, list) or not all(
        isinstance(row, list) and all(type(i) is int for i in row) for row in lists
    ):
        raise DataError(f"partition 'explicit': {path}: expected one list of sample indices for each client.")
    return lists
