"""Who hears whom at a gossip step: every peer derives the same graph from the experiment that all of them hold."""

from typing import NamedTuple

import numpy as np

from gossamer.graphs import Network


class Part(NamedTuple):
    """One peer's part in a gossip step."""

    own: float
    """The weight of its own message in what it makes of all of them."""
    hears: dict[int, float]
    """The weight of each neighbour's message."""
    tells: dict[int, float]
    """The weight that its message has for each of those who get it."""


class Plan:
    """One peer's part in all gossip steps. Those before the first round have negative numbers."""

    def __init__(self, network: Network, number: int, open_steps: int) -> None:
        self._network, self._number, self._open_steps = network, number, open_steps

    def at(self, step: int, losses: np.ndarray | None = None) -> Part:
        """The part at a gossip step; `losses` are those that a graph may be chosen by."""
        weights = self._network.matrix(step if step >= 0 else step + self._open_steps, losses)
        hears = _by_peer(weights[[self._number], :].toarray()[0])
        tells = _by_peer(weights[:, [self._number]].toarray()[:, 0])
        tells.pop(self._number, None)
        return Part(hears.pop(self._number, 0.0), hears, tells)


def _by_peer(weights: np.ndarray) -> dict[int, float]:
    return {int(j): float(weights[j]) for j in np.flatnonzero(weights)}
