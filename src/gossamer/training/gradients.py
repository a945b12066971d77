"""How many gradients a method takes, found by letting one client take a step."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.methods import Gradient, Round
from gossamer.training.steps import Training


class GradientCount(NamedTuple):
    """Gradients that one client takes."""

    #: Of a mini-batch, in one local step.
    step: int
    #: Of all samples of the client, in the exchange before the first round.
    opening: int


def count_gradients(training: Training) -> GradientCount:
    """Count the gradients of one step of one client, whose loss is constant."""
    x0, one = training.model.initial, training.model.initial.new_ones(())
    method: Any = training.method
    noise = torch.full_like(x0, 0.5) if getattr(method, "draws", False) else None
    round = Round(0, training.rounds, training.lr, steps=one, degree=2 * one, own_weight=one / 3, noise=noise)
    state, opening = method.init(x0), 0

    def full_gradient() -> Tensor:
        nonlocal opening
        opening += 1
        return torch.zeros_like(x0)

    if hasattr(method, "open"):
        state, _ = method.open(state, full_gradient, round)
    gradient = Gradient(lambda x: (torch.zeros_like(x), x.new_zeros(())), training.weight_decay, training.clip)
    method.step(state, method.begin(state, round), gradient, round)
    return GradientCount(len(gradient.losses), opening)
