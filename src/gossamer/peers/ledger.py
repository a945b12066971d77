"""The push-sum mass between a peer and its neighbours: owed to each receiver, stored and taken from each sender.

See `mass` for the protocol of one edge.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.methods import Message
from gossamer.peers.mass import NOTHING, InEdge, OutEdge, Parcel
from gossamer.peers.store.journal import with_prefix
from gossamer.peers.store.letters import Letter
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.training import together


class MassLedger:
    """All edges of one peer. Parcels that have arrived and are not taken yet lie in the mailbox."""

    def __init__(self, mailbox: Mailbox, dtype: torch.dtype) -> None:
        self._mailbox, self._dtype = mailbox, dtype
        self._in_edges: dict[int, InEdge] = {}
        self._out_edges: dict[int, OutEdge] = {}
        #: The weight of the mass that was taken at the last gossip step, by sender.
        self.last_weights: dict[int, float] = {}
        self._last_taken: dict[int, Letter] = {}  # the last parcel of each sender: its sum may be needed again

    def in_edge(self, sender: int) -> InEdge:
        """The edge from a sender."""
        return self._in_edges.setdefault(sender, InEdge(self._dtype))

    def out_edge(self, receiver: int) -> OutEdge:
        """The edge to a receiver."""
        return self._out_edges.setdefault(receiver, OutEdge())

    def has_sent_since(self, step: int) -> bool:
        """Whether mass of this gossip step or a later one has left this peer."""
        return any(edge.sent >= step for edge in self._out_edges.values())

    def stored_through(self, sender: int) -> int:
        """The last step up to which all of a sender's mass is on this disk."""
        return max([self.in_edge(sender).through, *self._mailbox.steps(wire.MASS, sender)[-1:]])

    def last_parcel(self, sender: int) -> Parcel:
        """The last parcel of a sender that is on this disk."""
        if waiting := self._mailbox.steps(wire.MASS, sender):
            return parcel_of(self._mailbox.letter(wire.MASS, sender, waiting[-1]))
        edge = self.in_edge(sender)
        return Parcel(edge.base, edge.through, edge.total)

    def due(self, step: int) -> dict[str, int]:
        """The senders whose mass is taken at a step, each with the last step of that mass.

        Mass of later steps, from senders that are ahead, waits.
        """
        found = {}
        for sender in self._mailbox.senders(wire.MASS):
            steps = [each for each in self._mailbox.steps(wire.MASS, sender) if each <= step]
            if steps and steps[-1] > self.in_edge(sender).through:
                found[str(sender)] = steps[-1]
        return found

    def due_letters(self, due: Mapping[str, int]) -> dict[int, list[Letter]]:
        """The parcels of `due`, in the order in which they must be taken."""
        return {
            int(sender): [
                self._mailbox.letter(wire.MASS, int(sender), step)
                for step in self._mailbox.steps(wire.MASS, int(sender))
                if step <= through
            ]
            for sender, through in due.items()
        }

    def take(self, letters: Mapping[int, list[Letter]]) -> dict[int, Message]:
        """The new mass in these parcels, by sender."""
        mass = {}
        for sender, parcels in letters.items():
            self._last_taken[sender] = parcels[-1]
            taken = [self.in_edge(sender).take(parcel_of(letter)) for letter in parcels]
            if new := [message for message in taken if message is not None]:
                mass[sender] = together(new)
        self.last_weights = {sender: float(message.get("weight", torch.inf)) for sender, message in mass.items()}
        return mass

    def release_memory(self) -> None:
        """Unload the sums that were taken: they are on disk and rarely needed again."""
        for letter in self._last_taken.values():
            letter.release_memory()

    def drop_taken(self) -> None:
        """Delete the parcels that were taken, after the state that contains them is committed."""
        for sender, edge in self._in_edges.items():
            self._mailbox.drop(wire.MASS, edge.through + 1, sender)

    def unacknowledged_since(self, step: int) -> set[int]:
        """Receivers that are owed mass and have acknowledged nothing of this step or later ones."""
        return {receiver for receiver, edge in self._out_edges.items() if edge.waits_since(step)}

    def owed(self) -> dict[str, int]:
        """The last step of the mass that was sent to each receiver: the outbox must hold it, or later mass."""
        return {str(receiver): edge.sent for receiver, edge in self._out_edges.items() if edge.sent > NOTHING}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The contents for a checkpoint: tensors and numbers. Mass that is owed to others lies in the outbox."""
        tensors: dict[str, Tensor] = {}
        numbers = {}
        for sender, edge in self._in_edges.items():
            kept, numbers[str(sender)] = edge.state()
            tensors |= {f"{sender}/{name}": value for name, value in kept.items()}
        return tensors, numbers

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Restore the contents of a checkpoint."""
        for sender, edge in numbers.items():
            self.in_edge(int(sender)).load(with_prefix(f"{sender}/", tensors), edge)


def parcel_of(letter: Letter) -> Parcel:
    """The parcel in a letter of mass."""
    return Parcel(letter.header.base, letter.header.step, letter.message)
