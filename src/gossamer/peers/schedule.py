"""Which peers exchange letters at a gossip step. Every peer derives the same graph from the shared experiment."""

from typing import NamedTuple

import numpy as np

from gossamer.graphs import Network


class StepRole(NamedTuple):
    """One peer's role in a gossip step."""

    #: The weight of its own message in the mix.
    own_weight: float
    #: Its in-neighbours, and the weight of each one's message in the mix.
    senders: dict[int, float]
    #: Its out-neighbours, and the weight of its message in each one's mix.
    receivers: dict[int, float]


class GossipSchedule:
    """One peer's role in every gossip step. Steps before the first round have negative numbers."""

    def __init__(self, network: Network, number: int, open_steps: int) -> None:
        self._network, self._number, self._open_steps = network, number, open_steps

    def at(self, step: int, losses: np.ndarray | None = None) -> StepRole:
        """The role at a gossip step. `losses` are needed where the graph depends on them."""
        weights = self._network.matrix(step if step >= 0 else step + self._open_steps, losses)
        senders = _by_peer(weights[[self._number], :].toarray()[0])
        receivers = _by_peer(weights[:, [self._number]].toarray()[:, 0])
        receivers.pop(self._number, None)
        return StepRole(senders.pop(self._number, 0.0), senders, receivers)


def _by_peer(weights: np.ndarray) -> dict[int, float]:
    return {int(j): float(weights[j]) for j in np.flatnonzero(weights)}
