"""A round as its clients know it: of one client, or stacked for several."""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.methods import Round
from gossamer.randomness import Purpose, generator
from gossamer.training.training import Training

#: Makes a function of one client a function of rows.
Mapping = Callable[[Callable[..., Any]], Callable[..., Any]]


def stacked_round(
    work: Training, clients: np.ndarray, index: int, opening: bool = False, before: Round | None = None
) -> Round:
    """A round as several clients know it: its tensors have a leading dimension of clients.

    The exchange before the first round (`opening`) has noise of its own, so that nothing is drawn twice. What an
    earlier round gave the same clients (`before`) is given again where the graph is the same in every round.
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
    if before is not None and work.network.period == 1:
        return before._replace(number=index, lr=work.lr_at(index), noise=noise)
    return Round(
        number=index,
        rounds=work.rounds,
        lr=work.lr_at(index),
        steps=rows(work.batches.local_steps),
        degree=rows(work.network.hears(step)),
        own_weight=rows(work.network.own_weights(step)),
        participation=work.network.participation(step),
        noise=noise,
    )


def client_round(work: Training, client: int, index: int, opening: bool = False) -> Round:
    """A round as one client knows it."""
    return first_of(stacked_round(work, np.array([client]), index, opening))


def first_of(round: Round) -> Round:
    """The first client's part of a stacked round."""
    return with_tensors(round, map(itemgetter(0), tensors_of_round(round)))


def tensors_of_round(round: Round) -> tuple[Tensor, ...]:
    """The tensors of a round, which differ between clients."""
    tensors = round.steps, round.degree, round.own_weight
    return tensors if round.noise is None else (*tensors, round.noise)


def with_tensors(round: Round, tensors: Iterable[Tensor]) -> Round:
    """A round with other tensors, in the order of `tensors_of_round`."""
    steps, degree, own_weight, *noise = tensors
    return Round(round.number, round.rounds, round.lr, steps, degree, own_weight, round.participation, *noise)


def over_clients(mapping: Mapping, function: Callable[..., Any], round: Round) -> Callable[..., Any]:
    """A function of the rows of several clients, from one of a single client whose last argument is the round.

    `mapping` is `vmap`, or does the same. It is given the tensors of the stacked round alone, since `vmap` takes 30 µs
    longer for a whole round.
    """

    def one_client(*arguments: Any) -> Any:
        *given, tensors = arguments
        return function(*given, with_tensors(round, tensors))

    mapped = mapping(one_client)
    return lambda *rows: mapped(*rows, tensors_of_round(round))
