"""Losses: functions that return one number for each sample."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gossamer.data import IGNORED
from gossamer.errors import ExperimentError
from gossamer.parts import Catalog, part
from gossamer.system.torch_private import tree_leaves, tree_map

#: Of the model's outputs, mostly a tensor, and the targets.
Loss = Callable[[Any, Tensor], Tensor]


@part
class CrossEntropy:
    """Cross-entropy of class scores [N, C]; of tokens, [N, T, C], their mean over the tokens that count."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        expected = outputs.shape if targets.is_floating_point() else outputs.shape[:-1]
        if targets.shape != expected:
            raise ValueError(_mismatch(outputs, targets))
        if targets.is_floating_point():  # probabilities of classes
            return functional.cross_entropy(outputs, targets, reduction="none")
        if targets.dim() > 1:
            counted = targets != IGNORED
            scores = functional.log_softmax(outputs, -1).gather(-1, targets.where(counted, 0).unsqueeze(-1)).squeeze(-1)
            return -(scores * counted).flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)
        # Equal to `cross_entropy` to the last bit. Under `vmap`, torch decomposes `cross_entropy` in Python at every
        # call, which is a third slower, and imports sympy at the first, which takes half a second.
        return functional.log_softmax(outputs, 1).gather(1, targets.unsqueeze(1)).squeeze(1).neg()


def _mismatch(outputs: Tensor, targets: Tensor) -> str:
    """Why cross-entropy cannot compare these, and what would be right."""
    given = f"outputs of shape {tuple(outputs.shape)} and {targets.dtype} targets of shape {tuple(targets.shape)}"
    if targets.is_floating_point():
        return (
            f"cross-entropy has {given}: it needs integer class labels, or probabilities of the shape of the outputs. "
            "Values to regress need loss = 'squared-error'."
        )
    hint = "classes come last: [samples, classes] for targets [samples], [samples, tokens, classes] for tokens"
    if outputs.dim() == targets.dim() == 2:
        hint += "; of one-hot labels give the class, y.argmax(1); several labels a sample need floats and an own loss"
    elif outputs.shape[:1] + outputs.shape[2:] == targets.shape:
        hint += "; outputs.movedim(1, -1) puts them there"
    return f"cross-entropy has {given}: {hint}."


@part
class SquaredError:
    """Half the squared distance between outputs and targets."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        apart = outputs - targets.to(outputs.dtype).view_as(outputs)
        return 0.5 * apart.reshape(len(apart), -1).square().sum(1)


LOSSES = Catalog("loss", {"cross-entropy": CrossEntropy, "squared-error": SquaredError}, role="__call__")


def sample_losses(loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    """One loss for each sample, from a loss function that returns all of them or only their mean.

    Mini-batches of different clients are padded to one size, so the engine weights samples itself. A loss function that
    returns one number for a batch is therefore applied to each sample alone.
    """
    losses = loss(outputs, targets)
    if not isinstance(losses, Tensor) or (losses.dim() > 0 and losses.shape != targets.shape[:1]):
        raise ExperimentError(_not_one_number(losses, outputs, targets))
    if losses.dim() > 0:
        return losses
    if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(outputs)):
        raise ValueError(
            f"it returns one number for a batch, and outputs of type {type(outputs).__name__} cannot be taken apart"
        )

    def alone(*sample: Any) -> Tensor:
        return loss(*tree_map(lambda value: value[None], sample))

    try:
        return torch.func.vmap(alone)(outputs, targets)
    except RuntimeError:  # it has no rule for what this loss does
        samples = (tree_map(lambda value, i=i: value[i], (outputs, targets)) for i in range(len(targets)))
        return torch.stack([alone(*sample) for sample in samples])


def _not_one_number(losses: Any, outputs: Any, targets: Tensor) -> str:
    """Why what a loss gives is not one number for each sample, and what to write."""
    got, hint = type(losses).__name__, "a tensor is needed, without .item(), float() or numpy: torch differentiates it"
    if losses is None:
        hint = "is a `return` missing?"
    if isinstance(losses, Tensor):
        got = str(tuple(losses.shape))
        hint = (
            _broadcast(outputs, targets) or 'reduction="none" gives one for each, losses.flatten(1).mean(1) their mean'
        )
    return f"a loss gives one number for each of {len(targets)} samples, or their mean (got {got}): {hint}"


def _broadcast(outputs: Any, targets: Tensor) -> str:
    """A warning if numbers to compare have different shapes, which torch broadcasts to a table of all pairs."""
    if not isinstance(outputs, Tensor) or not targets.is_floating_point() or outputs.shape == targets.shape:
        return ""
    return (
        f"outputs have the shape {tuple(outputs.shape)}, targets {tuple(targets.shape)}, and torch compares every one "
        "with every other: targets.view_as(outputs)"
    )


def check_loss(loss: Loss, outputs: Any, targets: Tensor) -> None:
    """Refuse a loss of a batch that is not the mean over its samples, each by itself.

    >>> outputs, targets = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([0, 1])
    >>> check_loss(functional.cross_entropy, outputs, targets)
    >>> check_loss(lambda o, t: functional.cross_entropy(o, t, weight=torch.tensor([1.0, 9.0])), outputs, targets)
    Traceback (most recent call last):
    gossamer.errors.ExperimentError: loss: it is 0.246 for a batch of 2 samples, but the mean of their losses is 0.72. \
A batch counts as the mean over its samples here, so weights of classes or a sum would be lost. Return one number for \
each sample, its weight included: cross_entropy(outputs, targets, reduction="none") * weight[targets]
    """
    losses, each = loss(outputs, targets), sample_losses(loss, outputs, targets)
    if losses.dim() == 0:
        if not _close(losses, each.mean()):
            if hint := _broadcast(outputs, targets):
                raise ExperimentError(f"loss: {hint}")
            raise ExperimentError(
                f"loss: it is {float(losses):.3g} for a batch of {len(targets)} samples, but the mean of their losses "
                f"is {float(each.mean()):.3g}. A batch counts as the mean over its samples here, so weights of classes "
                "or a sum would be lost. Return one number for each sample, its weight included: "
                'cross_entropy(outputs, targets, reduction="none") * weight[targets]'
            )
        return
    leaves = tree_leaves(outputs)
    if len(targets) > 1 and all(isinstance(leaf, Tensor) and len(leaf) == len(targets) for leaf in leaves):
        part = slice(0, len(targets) // 2)
        alone = loss(tree_map(lambda value: value[part], outputs), targets[part])
        if alone.shape != losses[part].shape or not _close(alone, losses[part]):
            raise ExperimentError(
                "loss: the loss of a sample is another one beside other samples. Batches of different clients are "
                "padded to one size, so a sample's loss must depend on its own output and target alone"
            )


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other.to(one.dtype), rtol=1e-3, atol=1e-6, equal_nan=True)
