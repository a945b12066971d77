"""How a client mixes the messages of its neighbours with its own, letter by letter."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from gossamer.methods import Message, Operator, mixes


class Delivery(NamedTuple):
    """One message on its way to one receiver."""

    sender: int
    #: The gossip step it was sent at.
    step: int
    #: The share of the sender's mass that it stands for.
    share: float
    #: The tensors that travel.
    wire: Message


def mix_letters(
    operators: dict[str, Operator],
    mine: Message,
    own: float,
    row: dict[int, float],
    heard: Mapping[int, Message],
    mass: Mapping[int, Message],
    kept: float = 0.0,
) -> Message:
    """Mix a client's own message with the letters of this step and with the mass it received.

    `row` holds the weight of each neighbour, `own` that of the client itself. `heard` holds the letters that arrived,
    `mass` the sum of the weighted shares of each sender, of any step. `kept` is the share of its own mass that was
    meant for others and not sent. Senders are added up in ascending order: the result does not depend on the order of
    arrival, to the last bit.

    average   the weight of a missing letter goes to the client's own message
    push      its own share, the share that was kept, and the mass
    deliver   the share that was kept, and the mass
    sum       needs a letter of every neighbour
    """
    missing = sum(weight for sender, weight in row.items() if sender not in heard)
    mixed = {}
    for key, (name, operator) in mixes(operators, mine).items():
        # Models may be large and letters on disk: they are read one at a time, and added in place.
        if operator == "average":
            total = (own + missing) * mine[name]
            for j in sorted(heard):
                total.add_(heard[j][name], alpha=row[j])
        elif operator in ("push", "deliver"):
            total = (kept + (own if operator == "push" else 0)) * mine[name]
            for j in sorted(mass):
                total.add_(mass[j][name])
        else:
            total = 0 * mine[name]
            for j in sorted(row):
                total.add_(heard[j][name])
        mixed[key] = total
    return mixed


def pushed_names(operators: dict[str, Operator], message: Message) -> list[str]:
    """The tensors of a message that carry mass, which must be neither lost nor counted twice."""
    return [name for name, operator in mixes(operators, message).values() if operator in ("push", "deliver")]


def share_of(message: Message, share: float, names: list[str]) -> Message:
    """The part of a message's mass that is meant for one receiver."""
    return {name: share * message[name] for name in names}


def together(parts: list[Message]) -> Message:
    """The sum of several shares, taken in float64; a single share is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    sums = {name: torch.stack([part[name].double() for part in parts]).sum(0) for name in parts[0]}
    return {name: total.to(parts[0][name].dtype) for name, total in sums.items()}
