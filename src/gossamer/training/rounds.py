"""A round as its clients know it: of one client, or stacked for several."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.methods import Round
from gossamer.randomness import Purpose, generator
from gossamer.training.training import Training


def stacked_round(work: Training, clients: np.ndarray, index: int, opening: bool = False) -> Round:
    """A round as several clients know it: its tensors have a leading dimension of clients.

    The exchange before the first round (`opening`) has noise of its own, so that nothing is drawn twice.
    """
    step, x0 = work.gossip_steps(index).start, work.model.initial

    def rows(values: np.ndarray) -> Tensor:
        # In the precision of the model: an integer tensor times the learning rate would be rounded to single.
        return torch.from_numpy(values[clients].astype(np.float64)).to(x0)

    noise = None
    if work.traits.draws:
        drawn = [
            generator(work.seed, Purpose.METHOD, int(client), index, int(opening)).random(
                work.model.size, dtype=np.float32
            )
            for client in clients
        ]
        noise = torch.from_numpy(np.stack(drawn)).to(x0)
    return Round(
        number=index,
        rounds=work.rounds,
        lr=work.lr_at(index),
        steps=rows(work.batches.steps),
        degree=rows(work.network.hears(step)),
        own_weight=rows(work.network.own_weights(step)),
        participation=work.network.share(step),
        noise=noise,
    )


def client_round(work: Training, client: int, index: int, opening: bool = False) -> Round:
    """A round as one client knows it."""
    return first_of(stacked_round(work, np.array([client]), index, opening))


def first_of(round: Round) -> Round:
    """The first client's part of a stacked round."""
    return map_tensors(round, itemgetter(0))


def map_tensors(round: Round, function: Callable[[Tensor], Tensor]) -> Round:
    """A round with a function applied to each of its tensors."""
    noise = None if round.noise is None else function(round.noise)
    steps, degree, own_weight = function(round.steps), function(round.degree), function(round.own_weight)
    return round._replace(steps=steps, degree=degree, own_weight=own_weight, noise=noise)


def client_dims(round: Round) -> Any:
    """The `in_dims` of `vmap` for a stacked round: its tensors are mapped over, the rest is not."""
    return Round(None, None, None, 0, 0, 0, None, None if round.noise is None else 0)  # type: ignore[arg-type]
