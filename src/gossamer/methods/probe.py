"""One client of a method in its first round, made to learn what it keeps and sends. It trains on nothing."""

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.methods.contract import Local, Message, Method, Round, State, traits_of


class Probe(NamedTuple):
    """What a client has in its first round. The names, shapes and types are those of every client in every round."""

    round: Round
    #: Before the local steps.
    state: State
    local: Local
    #: After them, with the message to the neighbours.
    finished: State
    message: Message
    #: The message before the first round; empty without one.
    opening: Message
    #: How many gradients of all its samples it asked for to make that.
    full_gradients: int


def probe(method: Method, x0: Tensor) -> Probe:
    """A client of a method that starts from the model x0 and takes no step."""
    traits, one = traits_of(method), x0.new_ones(())
    noise = torch.rand(x0.shape, generator=torch.Generator().manual_seed(0)).to(x0) if traits.draws else None
    round = Round(0, 1, 0.1, steps=one, degree=2 * one, own_weight=one / 3, noise=noise)
    state, opening, asked = method.init(x0), Message(), 0

    def full_gradient() -> Tensor:
        nonlocal asked
        asked += 1
        return torch.zeros_like(x0)

    if traits.opening:
        state, opening = traits.opening.open(dict(state), full_gradient, round)
    local = method.begin(dict(state), round)  # copies: a method may set entries of what it is given
    return Probe(round, state, local, *method.finish(dict(state), dict(local), round), opening, asked)
