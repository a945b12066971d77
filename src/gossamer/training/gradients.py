"""How many gradients a method takes, found by letting one client take a step."""

from typing import NamedTuple

import torch

from gossamer.methods import Gradient, probe
from gossamer.training.training import Training


class GradientCount(NamedTuple):
    """Gradients that one client takes."""

    #: Of a mini-batch, in one local step.
    step: int
    #: Of all samples of the client, in the exchange before the first round.
    opening: int


def count_gradients(training: Training) -> GradientCount:
    """Count the gradients of one step of one client, whose loss is constant."""
    client = probe(training.method, training.model.initial)
    gradient = Gradient(lambda x: (torch.zeros_like(x), x.new_zeros(())), training.weight_decay, training.clip)
    training.method.step(client.state, client.local, gradient, client.round)
    return GradientCount(len(gradient.losses), client.full_gradients)
