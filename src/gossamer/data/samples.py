"""Data sets in memory, and data sets made of a user's arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.data.augment import Augmentation
from gossamer.data.client_rows import ClientRows, Indices
from gossamer.errors import DataError


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs [N, ...] as they are stored (pixels stay uint8) and their targets: int64 [N], or float for regression."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Scaling:
    """The scaling of a batch before the model: (x / scale - mean) / std, per channel.

    Samples stay bytes in memory, a quarter of the size of floats; only batches in use are converted.

    >>> Scaling(scale=2.0, mean=(1.0,), std=(0.5,)).apply(torch.tensor([0, 2, 4], dtype=torch.uint8), torch.float32)
    tensor([-2.,  0.,  2.])
    """

    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def apply(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Scale inputs [..., C, H, W]; with a single mean and std, inputs of any shape."""
        factors = [1 / (self.scale * std) for std in self.std]
        shifts = [mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        scaled = inputs.to(dtype)
        if len(factors) > 1:
            factor = torch.tensor(factors, dtype=dtype, device=inputs.device).view(-1, 1, 1)
            # In place only if `to` made a copy: the inputs may be the data set itself.
            scaled = scaled * factor if inputs.dtype == dtype else scaled.mul_(factor)
            return scaled.sub_(torch.tensor(shifts, dtype=dtype, device=inputs.device).view(-1, 1, 1))
        # A pass over a batch costs as much as a small layer, so passes without effect are skipped.
        if factors[0] != 1:
            scaled = scaled * factors[0] if inputs.dtype == dtype else scaled.mul_(factors[0])
        if shifts[0] != 0:
            scaled = scaled - shifts[0] if inputs.dtype == dtype else scaled.sub_(shifts[0])
        return scaled


UNSCALED = Scaling(scale=1.0)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples, the shape of one input, and the scaling and augmentation of a batch.

    `classes` is the number of classes, or of outputs if the targets are floats. `clients` holds the training samples of
    each client, for data that is already split; otherwise a partition splits it.
    """

    name: str
    train: Samples
    test: Samples
    classes: int
    shape: tuple[int, ...]
    scaling: Scaling
    augmentation: Augmentation | None = None
    clients: ClientRows | Sequence[Indices] | None = None


def per_client(
    clients: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None = None,
    classes: int | None = None,
    name: str = "own",
    scaling: Scaling | None = None,
) -> Dataset:
    """A data set of your own: one (inputs, targets) pair of arrays or tensors for each client.

    A client may hold no samples. Without a test set, nothing is evaluated. Bytes are taken as pixels and scaled to
    [0, 1], unless `scaling` is given; other numbers are not scaled.

    >>> data = per_client([([[0.1], [0.2]], [0, 1]), ([[0.3]], [2])])
    >>> data.classes, data.shape, [owner.tolist() for owner in data.clients]
    (3, (1,), [[0, 1], [2]])
    """
    owned = [_pair(f"client {i}", pair) for i, pair in enumerate(clients)]
    tested = None if test is None else _pair("the test set", test)
    places = [*((f"client {i}", pair) for i, pair in enumerate(owned)), *([("the test set", tested)] if tested else [])]
    filled = [(where, pair) for where, pair in places if len(pair)]
    if not any(len(pair) for pair in owned):
        raise DataError(f"data set '{name}': no client holds a sample. Give at least one (inputs, targets) pair.")

    first, like = filled[0]
    shape = tuple(like.inputs.shape[1:])
    for where, pair in filled:
        _agree(where, pair, first, like)
    classes = _classes(filled, classes)

    def joined(pairs: Sequence[Samples]) -> Samples:
        full = [pair for pair in pairs if len(pair)]
        if not full:
            return Samples(like.inputs[:0], like.targets[:0])
        return Samples(torch.cat([pair.inputs for pair in full]), torch.cat([pair.targets for pair in full]))

    owners = np.repeat(np.arange(len(owned)), [len(pair) for pair in owned])
    return Dataset(
        name=name,
        train=joined(owned),
        test=joined([tested] if tested else []),
        classes=classes,
        shape=shape,
        scaling=scaling or (Scaling() if like.inputs.dtype == torch.uint8 else UNSCALED),
        clients=ClientRows.by_owner(np.arange(len(owners)), owners, len(owned)),
    )


def _pair(where: str, pair: Any) -> Samples:
    """One user's pair as tensors, each checked on its own."""
    try:
        inputs, targets = pair
    except (TypeError, ValueError):
        raise DataError(f"{where}: expected a pair (inputs, targets), got {type(pair).__name__}.") from None
    inputs, targets = _tensor(f"{where}: inputs", inputs), _tensor(f"{where}: targets", targets)
    if len(inputs) != len(targets):
        raise DataError(f"{where}: {len(inputs):,} inputs but {len(targets):,} targets. Each input needs one target.")
    return Samples(inputs, targets if targets.is_floating_point() else targets.long())


def _tensor(where: str, given: Any) -> Tensor:
    """Any array as a tensor: bytes and floats as they are, other integers as int64."""
    try:
        values = given.detach().cpu() if isinstance(given, Tensor) else torch.from_numpy(_numbers(np.asarray(given)))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: not an array of numbers ({error}).") from None
    if values.ndim == 0:
        raise DataError(f"{where}: a single number, expected one row for each sample.")
    finite = torch.isfinite(values) if values.ndim == 1 else torch.isfinite(values).flatten(1).all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise DataError(f"{where}: row {row:,} is not finite (nan or infinity). Clean or remove it.")
    return values


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """The array in a form that torch accepts: writable, contiguous, of a type that torch has."""
    if array.dtype.kind not in "fiub":
        raise TypeError(f"their type is {array.dtype}")
    if array.dtype.kind != "f" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    return np.require(array, requirements=["C", "W"])


def _agree(where: str, pair: Samples, first: str, like: Samples) -> None:
    """Refuse a pair whose shapes or kinds of numbers differ from the first one's."""
    if pair.inputs.shape[1:] != like.inputs.shape[1:]:
        raise DataError(
            f"{where}: inputs of shape {tuple(pair.inputs.shape[1:])}, but {first} has {tuple(like.inputs.shape[1:])}."
        )
    if (pair.inputs.dtype == torch.uint8) != (like.inputs.dtype == torch.uint8):
        raise DataError(
            f"{where}: inputs are {pair.inputs.dtype}, but those of {first} are {like.inputs.dtype}. "
            f"Bytes (0 to 255) and other numbers cannot be mixed; convert one of them."
        )
    if pair.targets.is_floating_point() != like.targets.is_floating_point():
        raise DataError(
            f"{where}: targets are {pair.targets.dtype}, but those of {first} are {like.targets.dtype}. "
            f"Integers are classes, floats are values to regress; give one kind."
        )
    if pair.targets.shape[1:] != like.targets.shape[1:]:
        raise DataError(f"{where}: targets of shape {tuple(pair.targets.shape)} do not fit those of {first}.")


def _classes(filled: Sequence[tuple[str, Samples]], classes: int | None) -> int:
    """The number of outputs of a model, after checking that every label is valid."""
    where, like = filled[0]
    if like.targets.is_floating_point():
        if classes is not None:
            raise DataError(
                f"{where}: targets are {like.targets.dtype}, but classes={classes} asks for integer labels."
            )
        return int(like.targets[0].numel())
    if like.targets.ndim != 1:
        raise DataError(f"{where}: labels of shape {tuple(like.targets.shape)}, expected one integer for each sample.")
    known = max(int(pair.targets.max()) for _, pair in filled) + 1 if classes is None else classes
    for where, pair in filled:
        wrong = (pair.targets < 0) | (pair.targets >= known)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise DataError(f"{where}: label {int(pair.targets[row])} in row {row:,}, expected 0 to {known - 1}.")
    return known
