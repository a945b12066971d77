"""The memory and traffic of a method, in model sizes, counted from the tensors of one client."""

from typing import NamedTuple

import torch

from gossamer.methods.contract import Method, Setting, bind, traits_of
from gossamer.methods.probe import probe

#: A model of 10,000 parameters, mostly in one matrix.
SHAPES = ((99, 100), (100,))
SIZE = 10_000


class Costs(NamedTuple):
    """In model sizes: what a client keeps between rounds, and what it sends over each link in a round."""

    keeps: float
    sends: float


def costs(method: Method, server: bool = False) -> Costs:
    """The costs of a method, counted from the tensors it really makes.

    >>> from gossamer.methods import DFedSAMMGS
    >>> costs(DFedSAMMGS(gossip_steps=4))
    Costs(keeps=1.0, sends=4.0)
    """
    form = bind(method, Setting(server, SHAPES))
    traits, x0 = traits_of(form), torch.linspace(-1, 1, SIZE)
    client = probe(form, x0)
    kept = sum(tensor.numel() for tensor in client.finished.values())
    sent = sum(tensor.nbytes for tensor in traits.encoded(client.message).values())
    return Costs(kept / SIZE, traits.gossip_steps * sent / x0.nbytes)


def model_sizes(cost: float) -> str:
    """A cost as a person reads it.

    >>> model_sizes(2.0), model_sizes(1.0001), model_sizes(0.53625)
    ('2', '1', '0.54')
    """
    return f"{cost:.0f}" if abs(cost - round(cost)) < 0.001 else f"{cost:.2g}"


def graph_needed(method: Method) -> str:
    """The graphs a method is defined on, in a few words."""
    operators, needs = set(method.sends.values()), traits_of(method).needs
    if "server" in operators:
        return "server, all clients" if "everyone" in needs else "server"
    if operators & {"push", "deliver"}:
        return "directed, columns sum to 1"
    if needs:
        return ", ".join(needs)
    return "rows sum to 1" if "average" in operators else "any"
