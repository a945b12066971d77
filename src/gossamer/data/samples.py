"""Data sets in memory, and data sets made of a user's arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.data.augment import Augmentation
from gossamer.data.client_rows import ClientRows, Indices
from gossamer.data.inputs import Inputs, input_tensors, map_inputs
from gossamer.errors import DataError

#: The shape of one sample; of inputs with names, the shape of each.
Shape: TypeAlias = tuple[int, ...] | dict[str, tuple[int, ...]]
#: The target of a token that does not count: `ignore_index` of torch's cross-entropy.
IGNORED = -100
#: Classes that are believed of labels alone, without `classes`, however few labels there are.
BELIEVED_CLASSES = 1000
#: The test samples in error messages.
TEST_SET = "the test set"


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs [N, ...] as they are stored (pixels stay uint8), and targets: int64 [N] or [N, T], or floats [N, ...]."""

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: slice | Tensor) -> "Samples":
        return Samples(map_inputs(lambda values: values[rows], self.inputs), self.targets[rows])

    def select(self, rows: Tensor) -> "Samples":
        """The rows with these indices, copied as blocks, which is faster than indexing."""
        return Samples(
            map_inputs(lambda values: values.index_select(0, rows), self.inputs), self.targets.index_select(0, rows)
        )

    def to(self, device: torch.device) -> "Samples":
        """The same samples on a device."""
        return Samples(map_inputs(lambda values: values.to(device), self.inputs), self.targets.to(device))

    @property
    def tensors(self) -> list[Tensor]:
        """Inputs and targets."""
        return [*input_tensors(self.inputs), self.targets]

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.targets.device

    @property
    def shape(self) -> Shape:
        """The shape of one input, or of each by name."""
        if isinstance(self.inputs, Tensor):
            return tuple(self.inputs.shape[1:])
        return {name: tuple(values.shape[1:]) for name, values in self.inputs.items()}


@dataclass(frozen=True)
class Scaling:
    """The scaling of a batch before the model: (x / scale - mean) / std, per channel.

    Samples stay bytes in memory, a quarter of the size of floats; only batches in use are converted. Integers (such as
    tokens) and booleans stay as they are. Of inputs with names, only bytes are scaled.

    >>> Scaling(scale=2.0, mean=(1.0,), std=(0.5,)).apply(torch.tensor([0, 2, 4], dtype=torch.uint8), torch.float32)
    tensor([-2.,  0.,  2.])
    """

    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def apply(self, inputs: Inputs, dtype: torch.dtype) -> Inputs:
        """Scale inputs [..., C, H, W]; with a single mean and std, inputs of any shape."""
        if isinstance(inputs, Tensor):
            return self._scaled(inputs, dtype)
        return {
            name: (self if values.dtype == torch.uint8 else UNSCALED)._scaled(values, dtype)
            for name, values in inputs.items()
        }

    def _scaled(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        if inputs.dtype != torch.uint8 and not inputs.is_floating_point():
            return inputs
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
    shape: Shape
    scaling: Scaling
    augmentation: Augmentation | None = None
    clients: ClientRows | Sequence[Indices] | None = None

    def __post_init__(self) -> None:
        if self.augmentation is not None and isinstance(self.shape, dict):
            raise DataError(f"data set '{self.name}': augmentation needs one tensor of images, not inputs with names.")


def per_client(
    clients: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None = None,
    classes: int | None = None,
    name: str = "own",
    scaling: Scaling | None = None,
) -> Dataset:
    """A data set of your own: one (inputs, targets) pair of arrays or tensors for each client.

    A client may hold no samples. Without a test set, nothing is evaluated. Bytes are taken as pixels and scaled to
    [0, 1], unless `scaling` is given; other numbers are not scaled, and integers stay integers.

    Inputs may be a dict of arrays, which the model receives as keyword arguments. Integer targets are classes: one for
    each sample, or one for each token (−100: the token does not count). Their number is taken from the training
    targets unless `classes` is given. Float targets are values to regress, or whatever a loss of your own makes of
    them.

    >>> data = per_client([([[0.1], [0.2]], [0, 1]), ([[0.3]], [2])])
    >>> data.classes, data.shape, [owner.tolist() for owner in data.clients]
    (3, (1,), [[0, 1], [2]])
    """
    owned = [_pair(f"client {i}", pair) for i, pair in enumerate(clients)]
    tested = None if test is None else _pair(TEST_SET, test)
    places = [*((f"client {i}", pair) for i, pair in enumerate(owned)), *([(TEST_SET, tested)] if tested else [])]
    filled = [(where, pair) for where, pair in places if len(pair)]
    if not any(len(pair) for pair in owned):
        raise DataError(f"data set '{name}': no client holds a sample. Give at least one (inputs, targets) pair.")

    first, like = filled[0]
    for where, pair in filled:
        _agree(where, pair, first, like)
    classes = _classes(filled, classes)

    def joined(pairs: Sequence[Samples]) -> Samples:
        full = [pair for pair in pairs if len(pair)]
        if not full:
            return like[:0]
        *inputs, targets = (torch.cat(values) for values in zip(*(pair.tensors for pair in full), strict=True))
        named = isinstance(like.inputs, dict)
        return Samples(dict(zip(like.inputs, inputs, strict=True)) if named else inputs[0], targets)

    owners = np.repeat(np.arange(len(owned)), [len(pair) for pair in owned])
    return Dataset(
        name=name,
        train=joined(owned),
        test=joined([tested] if tested else []),
        classes=classes,
        shape=like.shape,
        scaling=scaling or (Scaling() if has_bytes(like) else UNSCALED),
        clients=ClientRows.by_owner(np.arange(len(owners)), owners, len(owned)),
    )


def _pair(where: str, pair: Any) -> Samples:
    """One user's pair as tensors, each checked on its own."""
    try:
        inputs, targets = pair
    except (TypeError, ValueError):
        raise DataError(f"{where}: expected a pair (inputs, targets), got {type(pair).__name__}.") from None
    if isinstance(inputs, Mapping):
        if not inputs or not all(isinstance(name, str) for name in inputs):
            raise DataError(f"{where}: inputs with names need one text each as their name (got {list(inputs)}).")
        inputs = {name: _tensor(f"{where}: inputs '{name}'", inputs[name]) for name in sorted(inputs)}
    else:
        inputs = _tensor(f"{where}: inputs", inputs)
    targets = _tensor(f"{where}: targets", targets)
    for values in input_tensors(inputs):
        if len(values) != len(targets):
            raise DataError(
                f"{where}: {len(values):,} inputs but {len(targets):,} targets. Each input needs one target."
            )
    return Samples(inputs, targets if targets.is_floating_point() else targets.long())


def has_bytes(samples: Samples) -> bool:
    """Whether some inputs are bytes, which are taken as pixels."""
    return any(values.dtype == torch.uint8 for values in input_tensors(samples.inputs))


def _tensor(where: str, given: Any) -> Tensor:
    """Any array as a tensor: bytes, floats, booleans, int32 and int64 as they are, other integers as int64."""
    try:
        values = given.detach().cpu() if isinstance(given, Tensor) else torch.from_numpy(_numbers(np.asarray(given)))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: not an array of numbers ({error}).") from None
    if values.ndim == 0:
        raise DataError(f"{where}: a single number, expected one row for each sample.")
    if values.dtype in (torch.int8, torch.int16):  # which torch does not take as indices
        values = values.long()
    finite = torch.isfinite(values) if values.ndim == 1 else torch.isfinite(values).flatten(1).all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise DataError(f"{where}: row {row:,} is not finite (nan or infinity). Clean or remove it.")
    return values


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """The array in a form that torch accepts: writable, contiguous, of a type that torch has."""
    if array.dtype.kind not in "fiub":
        raise TypeError(f"their type is {array.dtype}")
    if array.dtype.kind != "f" and array.dtype not in (np.uint8, np.bool_, np.int32):
        array = array.astype(np.int64)
    return np.require(array, requirements=["C", "W"])


def _agree(where: str, pair: Samples, first: str, like: Samples) -> None:
    """Refuse a pair whose shapes or kinds of numbers differ from the first one's."""
    if pair.shape != like.shape:
        raise DataError(f"{where}: inputs of shape {pair.shape}, but {first} has {like.shape}.")
    for mine, theirs in zip(input_tensors(pair.inputs), input_tensors(like.inputs), strict=True):
        if (mine.dtype == torch.uint8) != (theirs.dtype == torch.uint8):
            raise DataError(
                f"{where}: inputs are {mine.dtype}, but those of {first} are {theirs.dtype}. "
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
    if classes is not None and (not isinstance(classes, int) or classes < 1):
        raise DataError(f"classes: should be a whole number, at least 1 (got {classes!r})")
    if like.targets.is_floating_point():
        if classes is not None:
            raise DataError(
                f"{where}: targets are {like.targets.dtype}, but classes={classes} asks for integer labels. "
                "Give the labels as whole numbers (targets.long()), or leave `classes` out where they are no classes."
            )
        return int(like.targets[0].numel())
    if like.targets.ndim > 1 and like.targets[0].numel() == 1:
        raise DataError(
            f"{where}: labels of shape {tuple(like.targets.shape)}, expected one integer for each sample, y.reshape(-1)"
        )
    training = [(place, pair) for place, pair in filled if place != TEST_SET]
    known = classes if classes is not None else 1 + max(int(pair.targets.max()) for _, pair in training)
    labels = sum(pair.targets.numel() for _, pair in training)
    if classes is None and known > max(labels, BELIEVED_CLASSES):
        place, row = next((p, row) for p, pair in training if (row := _row_of(pair.targets == known - 1)) is not None)
        raise DataError(
            f"{place}: label {known - 1} in row {row:,} would make {known:,} classes of {labels:,} labels. Number the "
            f"classes from 0 without gaps, or give classes={known} if there are so many."
        )
    for where, pair in filled:
        check_labels(where, pair.targets, known, given=classes is not None)
    return known


def check_labels(where: str, targets: Tensor, classes: int, given: bool = True) -> None:
    """Refuse a label that is none of the classes; of tokens, −100 is allowed too."""
    wrong = (targets < 0) | (targets >= classes)
    if targets.ndim > 1:
        wrong &= targets != IGNORED
    if (row := _row_of(wrong)) is None:
        return
    label = int(targets[row][wrong[row]].flatten()[0])
    hint = ""
    if not given and label >= classes:
        hint = f" as in training. Give classes={label + 1} if the training samples lack a class that there is"
    if targets.ndim > 1:
        hint += f", or {IGNORED} for a token that does not count"
    raise DataError(f"{where}: label {label} in row {row:,}, expected 0 to {classes - 1}{hint}.")


def _row_of(found: Tensor) -> int | None:
    """The first row in which something is true."""
    return int(found.nonzero()[0, 0]) if bool(found.any()) else None
