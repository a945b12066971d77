"""What a method costs, measured by running one client of it once: what it keeps and what it sends, in model sizes."""

from typing import Any, NamedTuple

import torch

from gossamer.methods.contract import Method, Round, Setting, fitted, gossip_steps, needs, travelling

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
    form: Any = fitted(method, Setting(server, SHAPES))
    x0, one = torch.linspace(-1, 1, SIZE), torch.ones(())
    noise = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)) if getattr(form, "draws", False) else None
    round = Round(0, 1, 0.1, steps=one, degree=2 * one, own_weight=one / 3, noise=noise)
    state = form.init(x0)
    if hasattr(form, "open"):
        state, _ = form.open(state, lambda: x0, round)
    state, message = form.finish(state, form.begin(state, round), round)
    kept = sum(tensor.numel() for tensor in state.values())
    sent = sum(tensor.numel() * tensor.element_size() for tensor in travelling(form, message).values())
    return Costs(kept / SIZE, gossip_steps(form) * sent / (SIZE * x0.element_size()))


def model_sizes(cost: float) -> str:
    """A cost as a person reads it.

    >>> model_sizes(2.0), model_sizes(1.0001), model_sizes(0.53625)
    ('2', '1', '0.54')
    """
    return f"{cost:.0f}" if abs(cost - round(cost)) < 0.001 else f"{cost:.2g}"


def graph_needed(method: Method) -> str:
    """The graphs a method is defined on, in a few words."""
    operators = set(method.sends.values())
    if "server" in operators:
        return "server, all clients" if "everyone" in needs(method) else "server"
    if operators & {"push", "deliver"}:
        return "directed, columns sum to 1"
    if asked := needs(method):
        return ", ".join(asked)
    return "rows sum to 1" if "average" in operators else "any"
