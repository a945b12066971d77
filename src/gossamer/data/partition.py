"""Partitions: the training samples of each client. Every sample belongs to exactly one, if not said otherwise."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from gossamer.data.client_rows import ClientRows, Indices
from gossamer.errors import DataError
from gossamer.parts import Catalog, part
from gossamer.randomness import Purpose, generator

REDRAWS = 1000
SWAPS = 100
#: Draws that are worked on at once.
BLOCK = 1 << 18
Alpha = Annotated[
    float, Field(gt=0, allow_inf_nan=True, description="small: few classes for each client; large: all alike")
]


@part
class Iid:
    """Every client holds a random, equally large share of all samples."""

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> ClientRows:
        return ClientRows.cut(generator(seed, Purpose.PARTITION).permutation(len(targets)), clients)


@part
class Dirichlet:
    """Equally many samples for each client, of classes drawn from its own Dirichlet(alpha) distribution.

    Small alpha: few classes for each client. Infinite alpha: all classes alike. With `refill`, a class that is used up
    starts again: clients have just the mixtures that they drew, but some samples are used twice and others never.
    """

    alpha: Alpha = 0.3
    refill: Annotated[bool, Field(description="a class that is used up starts again")] = False

    @property
    def repeats_samples(self) -> bool:
        """Whether samples may be used more than once, or not at all."""
        return self.refill

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> ClientRows:
        """Random clients with room left take one sample each, of a class drawn from their distribution, until all
        samples are taken.

        A client whose drawn class is used up draws again: the same as drawing from its distribution over the classes
        that are left, which always ends. A client whose distribution is zero on all of those draws by class size.
        """
        rng = generator(seed, Purpose.PARTITION)
        pools = _by_class(targets, rng, "dirichlet")
        likelihoods = _dirichlet(rng, self.alpha, clients, len(pools))
        takers, turns = rng.random((2, len(targets)))
        owners = _takers(takers, ClientRows.cut(np.arange(len(targets)), clients).sizes)
        left = np.array([len(pool) for pool in pools])
        samples = np.empty(len(targets), dtype=np.int64)
        if self.refill:
            labels = _spin(likelihoods, left, owners, turns)
            for label in np.unique(labels):
                places = np.flatnonzero(labels == label)
                samples[places] = np.resize(pools[label], len(places))
            return ClientRows.by_owner(samples, owners, clients)
        start = 0
        # Until a class is used up, everyone's distribution stays the same: so many draws are made at once.
        while start < len(targets):
            labels = _spin(likelihoods, left, owners[start:], turns[start:])
            end = start + min(_place_of(labels == label, count) for label, count in enumerate(left) if count)
            drawn = labels[: end - start]
            for label in np.unique(drawn):
                places = start + np.flatnonzero(drawn == label)
                samples[places] = pools[label][left[label] - len(places) : left[label]][::-1]
                left[label] -= len(places)
            start = end
        return ClientRows.by_owner(samples, owners, clients)


@part
class DirichletByClass:
    """Each class is spread over the clients by a Dirichlet(alpha) draw, so sizes differ too.

    The whole draw is repeated until every client holds at least `min_samples`.
    """

    alpha: Alpha = 0.3
    min_samples: Annotated[int, Field(ge=0, description="draw again until every client holds so many")] = 0

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> ClientRows:
        if self.min_samples * clients > len(targets):
            raise DataError(
                f"partition 'dirichlet-by-class': {clients:,} clients cannot hold min_samples={self.min_samples} each "
                f"of {len(targets):,} samples."
            )
        rng = generator(seed, Purpose.PARTITION)
        for _ in range(REDRAWS):
            pools = _by_class(targets, rng, "dirichlet-by-class")
            shares = _dirichlet(rng, self.alpha, len(pools), clients)
            owners = []
            for share, pool in zip(shares, pools, strict=True):
                cuts = np.rint(share.cumsum()[:-1] * len(pool)).astype(int)
                owners.append(np.repeat(np.arange(clients), np.diff(cuts, prepend=0, append=len(pool))))
            rows = ClientRows.by_owner(np.concatenate(pools), np.concatenate(owners), clients)
            if rows.sizes.min() >= self.min_samples:
                return rows
        raise DataError(
            f"partition 'dirichlet-by-class': in {REDRAWS:,} draws with alpha={self.alpha:g} some client always held "
            f"fewer than min_samples={self.min_samples}. Take a larger alpha, fewer clients or a smaller min_samples."
        )


@part
class Shards:
    """Samples sorted by label and cut into shards; each client gets a few of different classes."""

    classes_per_client: Annotated[int, Field(ge=1, description="shards for each client")] = 2

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> ClientRows:
        shards = clients * self.classes_per_client
        if shards > len(targets):
            raise DataError(
                f"partition 'shards': {clients:,} clients with classes_per_client={self.classes_per_client} need "
                f"{shards:,} shards, but there are only {len(targets):,} samples. Take fewer clients or more samples."
            )
        rng = generator(seed, Purpose.PARTITION)
        classes = _by_class(targets, rng, "shards")
        if shards < len(classes):
            cut = ClientRows.cut(np.concatenate(classes), shards)
        else:
            counts = _shards_of(np.array([len(rows) for rows in classes]), shards)
            cut = ClientRows.of(
                [piece for rows, count in zip(classes, counts, strict=True) for piece in np.array_split(rows, count)]
            )
        middles = np.array([rows[len(rows) // 2] for rows in cut])  # too few shards have several classes each
        dealt = _deal(targets[middles], clients, rng)
        owners = np.repeat(np.arange(shards) // self.classes_per_client, cut.sizes[dealt])
        return ClientRows.by_owner(cut.gather(dealt), owners, clients)


def _plain_lists(value: Any) -> Any:
    """Arrays and tensors as lists, which a file can hold."""
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

    def split(self, targets: NDArray[Any], clients: int, seed: int) -> ClientRows:  # nothing to draw
        lists = _read_lists(Path(self.indices)) if isinstance(self.indices, str) else self.indices
        if len(lists) != clients:
            raise DataError(f"partition 'explicit': {len(lists):,} lists of indices for {clients:,} clients.")
        return ClientRows.of(lists)  # `split` checks them


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


def split(partition: Any, targets: NDArray[Any], clients: int, seed: int) -> ClientRows:
    """Apply a partition, built-in or a user's (an object with `split`, or a function), and check its result."""
    divide = getattr(partition, "split", partition)
    if not callable(divide) or isinstance(partition, str | bytes | type):
        raise DataError(
            f"a partition is one of {', '.join(PARTITIONS)}, an object with split(targets, clients, seed), or such a "
            f"function; got {partition!r}."
        )
    if clients < 1:
        raise DataError(f"samples cannot be split among {clients} clients: there must be at least one.")
    given = divide(targets, clients, seed)
    if not isinstance(given, Sequence | ClientRows) or len(given) != clients:
        found = f"{len(given):,} parts" if isinstance(given, Sequence | ClientRows) else type(given).__name__
        raise DataError(f"the partition gave {found} for {clients:,} clients, expected one index array for each.")
    rows = ClientRows.of(given)
    check_partition(rows, len(targets), repeats=getattr(partition, "repeats_samples", False))
    return rows


def check_partition(client_rows: ClientRows | Sequence[Any], samples: int, *, repeats: bool = False) -> None:
    """Refuse anything but an exact partition, in which every sample belongs to exactly one client.

    With `repeats`, samples may be used more than once, or not at all.

    >>> check_partition([np.array([0, 2]), np.array([1])], 3)
    >>> check_partition([np.array([0, 2]), np.array([2])], 3)
    Traceback (most recent call last):
    gossamer.errors.DataError: sample 2 is given to clients 0 and 1; each sample belongs to exactly one client.
    """
    rows = ClientRows.of(client_rows)
    outside = np.flatnonzero((rows.indices < 0) | (rows.indices >= samples))
    if len(outside):
        raise DataError(
            f"client {rows.owners[outside[0]]}: no sample has index {rows.indices[outside[0]]}; there are {samples:,}, "
            "counted from 0."
        )
    if repeats:
        return
    times = np.bincount(rows.indices, minlength=samples)
    if times.max(initial=0) > 1:
        order = np.argsort(rows.indices, kind="stable")
        again = np.flatnonzero(np.diff(rows.indices[order]) == 0) + 1
        first = again[np.argmin(order[again])]  # the first place at which a sample occurs again
        sample = rows.indices[order[first]]
        before, client = rows.owners[order[[first - 1, first]]]
        if before == client:
            listed = np.count_nonzero(rows[client] == sample)
            raise DataError(f"client {client}: sample {sample} is listed {listed} times, expected once.")
        raise DataError(
            f"sample {sample} is given to clients {before} and {client}; each sample belongs to exactly one client."
        )
    missing = np.flatnonzero(times == 0)
    if len(missing):
        named = ", ".join(str(index) for index in missing[:5]) + (", …" if len(missing) > 5 else "")
        raise DataError(f"{len(missing):,} of {samples:,} samples belong to no client: {named}.")


def _shards_of(sizes: NDArray[Any], shards: int) -> NDArray[Any]:
    """How many shards each class is cut into, so that all shards are about as large: one at least.

    >>> _shards_of(np.array([500, 300, 10]), 8).tolist()
    [4, 3, 1]
    """
    counts = np.maximum(1, sizes * shards // sizes.sum())
    while counts.sum() < shards:
        counts[np.argmax(sizes / counts)] += 1
    while counts.sum() > shards:
        counts[np.argmin(np.where(counts > 1, sizes / np.maximum(1, counts - 1), np.inf))] -= 1
    return np.asarray(counts)


def _deal(classes: NDArray[Any], clients: int, rng: np.random.Generator) -> Indices:
    """The shards in the order of the clients that get them, equally many each, of different classes.

    Where two shards of one client are of the same class, one of them is swapped with a random other. If that does not
    help, all are dealt in turn, class by class: no client gets a class twice that has no more shards than clients.
    """
    dealt, each = rng.permutation(len(classes)), len(classes) // clients

    def others(place: int) -> set[int]:
        """The classes of the client that has the shard at this place, without that shard."""
        first = place - place % each
        return {int(classes[dealt[other]]) for other in range(first, first + each) if other != place}

    for place in range(len(dealt)):
        if classes[dealt[place]] not in others(place):
            continue
        for other in rng.integers(len(dealt), size=SWAPS).tolist():
            if classes[dealt[other]] not in others(place) and classes[dealt[place]] not in others(other):
                dealt[[place, other]] = dealt[[other, place]]
                break
        else:
            in_turn = rng.permutation(len(classes))
            in_turn = in_turn[np.argsort(classes[in_turn], kind="stable")]
            return in_turn.reshape(each, clients)[:, rng.permutation(clients)].T.ravel()
    return dealt


def _by_class(targets: NDArray[Any], rng: np.random.Generator, name: str) -> list[Indices]:
    """The samples of each class that occurs, shuffled."""
    if targets.ndim != 1 or targets.dtype.kind not in "iub":
        of = f"{targets.dtype} of shape {targets.shape[1:]}" if targets.ndim > 1 else str(targets.dtype)
        raise DataError(
            f"partition '{name}' splits by class and needs integer labels, one for each sample; these are {of}. "
            "Use partition 'iid' or 'explicit', or give each client its own samples (gossamer.per_client)."
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


def _takers(draws: NDArray[np.float64], room: Indices) -> Indices:
    """For each draw the client that takes a sample: a random one of those with room left."""
    # Plain lists, since numpy is slow at single numbers and every draw depends on the one before.
    takers, left = np.flatnonzero(room).tolist(), room.tolist()
    owners = np.empty(len(draws), dtype=np.int64)
    for start in range(0, len(draws), BLOCK):
        chosen = []
        for draw in draws[start : start + BLOCK].tolist():
            place = int(draw * len(takers))
            client = takers[place]
            chosen.append(client)
            left[client] -= 1
            if not left[client]:
                takers[place] = takers[-1]
                takers.pop()
        owners[start : start + BLOCK] = chosen
    return owners


def _spin(likelihoods: NDArray[np.float64], left: Indices, owners: Indices, turns: NDArray[np.float64]) -> Indices:
    """The class that each draw gives its client, of those that are left."""
    slices = np.where(left > 0, likelihoods, 0.0)
    slices[~(slices.sum(axis=1) > 0)] = left
    ends = np.cumsum(slices, axis=1)
    last = np.argmax(ends == ends[:, -1:], axis=1)  # the last class with a slice
    labels = np.empty(len(owners), dtype=np.int64)
    for start in range(0, len(owners), BLOCK):
        some = slice(start, start + BLOCK)
        reached = ends[owners[some]] <= (turns[some] * ends[owners[some], -1])[:, None]
        labels[some] = np.minimum(reached.sum(axis=1), last[owners[some]])
    return labels


def _place_of(found: NDArray[np.bool_], count: int) -> int:
    """The number of places up to and with the `count`-th that is true; all of them, if there are fewer."""
    places = np.flatnonzero(found)
    return int(places[count - 1]) + 1 if len(places) >= count else len(found)


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
