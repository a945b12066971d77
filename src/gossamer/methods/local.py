"""Small functions that methods share: the gradient of a mini-batch, and weighted sums of vectors."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

#: Keeps the perturbation of a vanishing gradient at zero.
TINY = 1e-12

#: The factor of a vector: a number, or a scalar tensor if it differs between clients or rounds.
Weight: TypeAlias = float | Tensor


def combine(*terms: tuple[Weight, Tensor]) -> Tensor:
    """The weighted sum of vectors, combine((a, x), (b, y), ...) = a x + b y + ..., summed from left to right.

    Each term is added in one pass, without storing its product, and is released before the next one is added: of a
    large model, no more than a term, the old and the new sum exist at once. A first weight of 1 costs nothing.

    >>> combine((1, torch.ones(2)), (-0.5, torch.ones(2)))
    tensor([0.5000, 0.5000])
    """
    waiting = list(terms)
    del terms
    weight, total = waiting.pop(0)
    if isinstance(weight, Tensor) or weight != 1:
        total = weight * total
    while waiting:
        weight, term = waiting.pop(0)
        if isinstance(weight, Tensor):
            total = torch.addcmul(total, term, weight)
        else:
            total = torch.add(total, term, alpha=weight)
    return total


class Gradient:
    """The gradient of one mini-batch, as a function of the model vector.

    `gradient(x)` is the direction a step goes against: clipped to a global norm if asked, plus weight decay.
    `gradient.raw(x)` is the derivative and nothing else. The losses met on the way are kept in `losses`.
    """

    def __init__(
        self,
        gradient_and_loss: Callable[[Tensor], tuple[Tensor, Tensor]],
        weight_decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        self._gradient_and_loss = gradient_and_loss
        self._weight_decay = weight_decay
        self._clip = clip
        self.losses: list[Tensor] = []

    def raw(self, x: Tensor) -> Tensor:
        """The derivative of the mini-batch loss at x."""
        gradient, loss = self._gradient_and_loss(x)
        self.losses.append(loss)
        return gradient

    def __call__(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """The direction at x; with `at`, the derivative is taken there and weight decay still at x."""
        g = self.raw(x if at is None else at)
        if self._clip is not None:
            g = g * torch.clamp(self._clip / (g.norm() + 1e-6), max=1.0)
        if self._weight_decay:
            g = combine((1, g), (self._weight_decay, x))
        return g


def sam_gradient(gradient: Gradient, x: Tensor, rho: float) -> Tensor:
    """The gradient at the worst point within `rho` of x, to first order, on the same mini-batch."""
    if rho == 0:
        return gradient(x)
    ascent = gradient.raw(x)
    worst = combine((1, x), (rho / (ascent.norm() + TINY), ascent))
    del ascent  # frees its memory before the second gradient is computed
    return gradient(x, at=worst)


def heavy_ball(velocity: Tensor, direction: Tensor, momentum: float) -> Tensor:
    """The velocity after one more step in `direction`."""
    return combine((1, direction), (momentum, velocity))
