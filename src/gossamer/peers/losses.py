"""The training losses of all peers, for methods that choose their neighbours by them.

Every letter tells all that its sender knows, each loss with the round it is of, and the newest is kept: after as many
rounds as the graph is wide, a loss is known everywhere.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from gossamer.graphs import Network
from gossamer.peers.wire import wire_pb2 as wire

#: A training loss that is larger is not told to others, nor believed.
LARGEST = 1e30


class Losses:
    """The newest loss of each peer that this one has heard of, with its round."""

    def __init__(self, method: Any, network: Network, number: int) -> None:
        self._told = bool(getattr(method, "shares_loss", False))
        #: Whether neighbours are chosen by them.
        self.choose = self._told and network.by_loss is not None
        self._clients, self._number = network.clients, number
        self._known: dict[int, tuple[int, float]] = {}

    def note(self, peer: int, round: int, loss: float) -> None:
        """A peer's loss in a round."""
        self._known[peer] = (round, loss)

    def hear(self, told: Iterable[wire.Loss]) -> None:
        """What another peer knows; of its own loss a peer knows best itself."""
        for each in told:
            if each.peer != self._number and each.round > self._known.get(each.peer, (-1, 0.0))[0]:
                self.note(each.peer, each.round, each.loss)

    def tell(self) -> list[wire.Loss]:
        """All that is worth telling."""
        known = self._known.items() if self._told else ()
        return [wire.Loss(peer=j, round=round, loss=loss) for j, (round, loss) in known if abs(loss) <= LARGEST]

    def are_since(self, round: int, peer: int) -> bool:
        """Whether a peer's loss in this round, or in a later one, is known."""
        return self._known.get(peer, (-1, 0.0))[0] >= round

    def table(self) -> np.ndarray:
        """Everyone's loss; who is unknown counts as an average one."""
        known = {j: loss for j, (_, loss) in self._known.items() if np.isfinite(loss)}
        usual = float(np.mean(list(known.values()))) if known else 0.0
        return np.array([known.get(j, usual) for j in range(self._clients)])

    def state(self) -> dict[str, tuple[int, float]]:
        """What a checkpoint holds of them."""
        return {str(j): known for j, known in self._known.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Go back to what `state` gave."""
        self._known = {int(j): (int(round), float(loss)) for j, (round, loss) in state.items()}
