"""Losses: functions that return one number for each sample."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from gossamer.parts import Catalog, part

Loss = Callable[[Tensor, Tensor], Tensor]


@part
class CrossEntropy:
    """Cross-entropy of class scores."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.dim() != 1:  # probabilities of classes
            return functional.cross_entropy(outputs, targets, reduction="none")
        # Equal to `cross_entropy` to the last bit. Under `vmap`, torch decomposes `cross_entropy` in Python at every
        # call, which is a third slower, and imports sympy at the first, which takes half a second.
        return functional.log_softmax(outputs, 1).gather(1, targets.unsqueeze(1)).squeeze(1).neg()


@part
class SquaredError:
    """Half the squared distance between outputs and targets."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs - targets.to(outputs.dtype).view_as(outputs)).flatten(1).square().sum(1)


LOSSES = Catalog("loss", {"cross-entropy": CrossEntropy, "squared-error": SquaredError}, role="__call__")


def sample_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss for each sample, from a loss function that returns all of them or only their mean.

    Mini-batches of different clients are padded to one size, so the engine weights samples itself. A loss function that
    returns one number for a batch is therefore applied to each sample alone.
    """
    losses = loss(outputs, targets)
    if not isinstance(losses, Tensor) or (losses.dim() > 0 and losses.shape != targets.shape[:1]):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"a loss gives one number for each of {len(targets)} samples, or their mean (got {got})")
    if losses.dim() > 0:
        return losses
    return torch.func.vmap(lambda output, target: loss(output[None], target[None]))(outputs, targets)
