"""The training losses of all peers, for methods that choose receivers by loss.

Every letter carries all losses that its sender knows, each with its round; the newest one is kept. A loss reaches every
peer after as many rounds as the graph's diameter.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from gossamer.graphs import Network
from gossamer.methods import Traits
from gossamer.peers.wire import wire_pb2 as wire

#: Larger training losses are neither sent nor accepted.
LARGEST = 1e30


class Losses:
    """The newest known loss of each peer, with its round."""

    def __init__(self, traits: Traits, network: Network, number: int) -> None:
        self._shared = traits.shares_loss
        #: Whether receivers are chosen by loss.
        self.choose = self._shared and network.by_loss is not None
        self._clients, self._number = network.clients, number
        self._known: dict[int, tuple[int, float]] = {}

    def record(self, peer: int, round: int, loss: float) -> None:
        """A peer's loss in a round."""
        self._known[peer] = (round, loss)

    def merge(self, received: Iterable[wire.Loss]) -> None:
        """Keep the losses that are newer than the known ones. Nobody overrides this peer's own loss."""
        for each in received:
            if each.peer != self._number and each.round > self._known.get(each.peer, (-1, 0.0))[0]:
                self.record(each.peer, each.round, each.loss)

    def to_wire(self) -> list[wire.Loss]:
        """The losses to send with a letter."""
        known = self._known.items() if self._shared else ()
        return [wire.Loss(peer=j, round=round, loss=loss) for j, (round, loss) in known if abs(loss) <= LARGEST]

    def known_since(self, round: int, peer: int) -> bool:
        """Whether a peer's loss of this round or a later one is known."""
        return self._known.get(peer, (-1, 0.0))[0] >= round

    def table(self) -> np.ndarray:
        """The loss of every peer; unknown ones are set to the mean of the known ones."""
        known = {j: loss for j, (_, loss) in self._known.items() if np.isfinite(loss)}
        usual = float(np.mean(list(known.values()))) if known else 0.0
        return np.array([known.get(j, usual) for j in range(self._clients)])

    def state(self) -> dict[str, tuple[int, float]]:
        """The contents for a checkpoint."""
        return {str(j): known for j, known in self._known.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the contents of a checkpoint."""
        self._known = {int(j): (int(round), float(loss)) for j, (round, loss) in state.items()}
