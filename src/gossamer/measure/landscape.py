"""The loss around a model along filter-normalised random directions (Li et al., 2018), on a grid of one or two axes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.errors import ExperimentError
from gossamer.models import VectorModel
from gossamer.randomness import Purpose, generator


@dataclass(frozen=True)
class Grid:
    """Points of a square (or a line) around the model, numbered row by row.

    >>> grid = Grid(dimensions=2, points=3)
    >>> len(grid), grid.axis, grid.coordinates(5), grid.centre
    (9, (-1.0, 0.0, 1.0), (0.0, 1.0), 4)
    """

    #: 1 or 2 directions.
    dimensions: int = 2
    #: Points along each axis: odd, so that the model itself is one of them.
    points: int = 51
    #: Coordinates go from −radius to radius; 1 is as far as the model's own filters are long.
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.dimensions not in (1, 2):
            raise ExperimentError(f"a landscape has 1 or 2 dimensions (got {self.dimensions})")
        if self.points < 3 or self.points % 2 == 0:
            raise ExperimentError(
                f"points must be odd and 3 or more, so that the model is the centre (got {self.points})"
            )
        if not 0 < self.radius < math.inf:
            raise ExperimentError(f"radius must be finite and above 0 (got {self.radius})")

    def __len__(self) -> int:
        return int(self.points**self.dimensions)

    @property
    def axis(self) -> tuple[float, ...]:
        """Coordinates along one axis: symmetric, with 0 exactly in the middle."""
        last = self.points - 1
        return tuple(self.radius * (2 * i - last) / last for i in range(self.points))

    @property
    def centre(self) -> int:
        """The number of the point that is the model itself."""
        return len(self) // 2

    def coordinates(self, index: int) -> tuple[float, ...]:
        """Where a point lies: one coordinate for each direction."""
        axis = self.axis
        return tuple(axis[index // self.points**i % self.points] for i in reversed(range(self.dimensions)))


def filter_directions(model: VectorModel, x: Tensor, dimensions: int, seed: int = 0) -> list[Tensor]:
    """Random directions at x: Gaussian, each filter scaled to the norm of the model's, tensors of one dimension zero.

    d_f ← d_f ‖w_f‖ / (‖d_f‖ + 1e-10), for each filter f (first index) of each weight tensor. Models of one shape have
    the same Gaussian draws, scaled to the filters of each, so that their landscapes can be drawn on the same axes.
    """
    if x.shape != (model.size,):
        raise ExperimentError(f"a vector of shape {tuple(x.shape)} for a model of {model.size:,} parameters")
    found = []
    for number in range(dimensions):
        normal = generator(seed, Purpose.LANDSCAPE, step=number).standard_normal(model.size, dtype="float32")
        direction = torch.from_numpy(normal).to(x)
        for own, drawn in zip(model.unflatten(x).values(), model.unflatten(direction).values(), strict=True):
            if own.dim() < 2:
                drawn.zero_()
            else:
                flat = drawn.flatten(1)
                flat *= own.flatten(1).norm(dim=1, keepdim=True) / (flat.norm(dim=1, keepdim=True) + 1e-10)
        found.append(direction)
    if not any(bool(direction.any()) for direction in found):
        raise ExperimentError("this model has no landscape: all its weight tensors are zero or of one dimension")
    return found


def landscape_losses(
    loss: Callable[[Tensor], float],
    x: Tensor,
    along: Sequence[Tensor],
    grid: Grid,
    indices: Iterable[int] | None = None,
) -> Iterator[tuple[int, float]]:
    """(index, loss at x + Σ_i c_i d_i) of each grid point with coordinates c, as soon as it is known.

    `loss` is `Objective.value`, or any function of a model vector. A point's value depends on that point alone:
    `indices` can be a worker's share of them, or those that an interrupted landscape has left. Far from the model the
    loss may be infinite or NaN, and is returned so.
    """
    if len(along) != grid.dimensions:
        raise ExperimentError(f"a grid of {grid.dimensions} dimensions needs as many directions (got {len(along)})")
    for index in range(len(grid)) if indices is None else indices:
        point = x.clone()
        for coordinate, direction in zip(grid.coordinates(index), along, strict=True):
            point.add_(direction, alpha=coordinate)
        yield index, loss(point)


def check_same_shape(first: VectorModel, second: VectorModel) -> None:
    """Refuse two models that cannot share directions, and name the first tensor in which they differ."""
    tensors = [list(zip(model.names, map(tuple, model.shapes), strict=True)) for model in (first, second)]
    for number in range(max(map(len, tensors))):
        one, other = (f"{each[number][0]} {each[number][1]}" if number < len(each) else "none" for each in tensors)
        if one != other:
            raise ExperimentError(
                f"a landscape of two models needs models of one shape: tensor {number + 1} is {one} in the first and "
                f"{other} in the second"
            )
