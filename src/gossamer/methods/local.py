"""Small functions that methods share: the gradient of a mini-batch, and what is made of it."""

from collections.abc import Callable

import torch
from torch import Tensor

#: Keeps the perturbation of a vanishing gradient at zero.
TINY = 1e-12


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
            g = torch.add(g, x, alpha=self._weight_decay)
        return g


def sam_gradient(gradient: Gradient, x: Tensor, rho: float) -> Tensor:
    """The gradient at the worst point within `rho` of x, to first order, on the same mini-batch."""
    if rho == 0:
        return gradient(x)
    ascent = gradient.raw(x)
    worst = torch.addcmul(x, ascent, rho / (ascent.norm() + TINY))
    del ascent  # before another gradient is there
    return gradient(x, at=worst)


def heavy_ball(velocity: Tensor, direction: Tensor, momentum: float) -> Tensor:
    """The velocity after one more step in `direction`."""
    return torch.add(direction, velocity, alpha=momentum)
