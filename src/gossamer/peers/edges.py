"""The mass that goes between a peer and its neighbours: what it owes each, and what it has of each. See `mass`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.engines.reference import together
from gossamer.methods import Message
from gossamer.peers.mass import InEdge, OutEdge, Parcel
from gossamer.peers.store.journal import under
from gossamer.peers.store.letters import Letter
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import wire_pb2 as wire

#: Less than this is a crumb: the least weight of a peer that gives is `LEAST_WEIGHT`, of which it gives a share.
A_CRUMB = 1e-8


class Edges:
    """All edges of one peer. Parcels that have arrived and are not taken yet lie in the mailbox."""

    def __init__(self, mailbox: Mailbox, dtype: torch.dtype) -> None:
        self._mailbox, self._dtype = mailbox, dtype
        self.ins: dict[int, InEdge] = {}
        self.outs: dict[int, OutEdge] = {}
        self._gave: dict[int, float] = {}  # the weight that each sender gave last
        #: The weight that came at the last gossip step.
        self.came = float("inf")
        self._taken: dict[int, Letter] = {}  # the last of each sender, which holds the sum that was taken

    def into(self, sender: int) -> InEdge:
        """The edge on which a sender's mass comes."""
        return self.ins.setdefault(sender, InEdge(self._dtype))

    def out_to(self, receiver: int) -> OutEdge:
        """The edge on which mass goes to a receiver."""
        return self.outs.setdefault(receiver, OutEdge())

    def has_through(self, sender: int) -> int:
        """Up to which step everything of a sender's mass is on this disk."""
        return max([self.into(sender).through, *self._mailbox.steps(wire.MASS, sender)[-1:]])

    def held(self, sender: int) -> Parcel:
        """The last of a sender's mass that is on this disk."""
        if waiting := self._mailbox.steps(wire.MASS, sender):
            return parcel_of(self._mailbox.letter(wire.MASS, sender, waiting[-1]))
        edge = self.into(sender)
        return Parcel(edge.base, edge.through, edge.total)

    def due(self, step: int) -> dict[str, int]:
        """Whose mass is to be taken at a step, and up to which step; later mass, of who is ahead, waits its turn."""
        found = {}
        for sender in self._mailbox.senders(wire.MASS):
            steps = [each for each in self._mailbox.steps(wire.MASS, sender) if each <= step]
            if steps and steps[-1] > self.into(sender).through:
                found[str(sender)] = steps[-1]
        return found

    def letters(self, due: Mapping[str, int]) -> dict[int, list[Letter]]:
        """The parcels that are due, in the order in which they are to be taken."""
        return {
            int(sender): [
                self._mailbox.letter(wire.MASS, int(sender), step)
                for step in self._mailbox.steps(wire.MASS, int(sender))
                if step <= through
            ]
            for sender, through in due.items()
        }

    def take(self, letters: Mapping[int, list[Letter]]) -> dict[int, Message]:
        """What is new of these parcels, by sender."""
        mass = {}
        for sender, parcels in letters.items():
            self._taken[sender] = parcels[-1]
            taken = [self.into(sender).take(parcel_of(letter)) for letter in parcels]
            if new := [message for message in taken if message is not None]:
                mass[sender] = together(new)
                self._gave[sender] = float(mass[sender].get("weight", torch.inf))
        self.came = sum(self._gave[sender] for sender in mass)
        return mass

    def is_held_from(self) -> bool:
        """Whether some sender, when it was last heard, gave a crumb."""
        return any(weight < A_CRUMB for weight in self._gave.values())

    def put_down(self) -> None:
        """Let the sums that were taken leave the memory: they are on disk, and hardly ever needed again."""
        for letter in self._taken.values():
            letter.put_down()

    def forget(self) -> None:
        """Drop the parcels that were taken, after what was made of them is kept."""
        for sender, edge in self.ins.items():
            self._mailbox.forget(wire.MASS, edge.through + 1, sender)

    def away(self, step: int) -> set[int]:
        """Receivers that were given something and have acknowledged nothing of this step, or of later ones."""
        return {receiver for receiver, edge in self.outs.items() if edge.waits_since(step)}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint holds of them: tensors and numbers. What is owed to others lies in the outbox."""
        tensors: dict[str, Tensor] = {}
        numbers = {}
        for sender, edge in self.ins.items():
            kept, numbers[str(sender)] = edge.state()
            tensors |= {f"{sender}/{name}": value for name, value in kept.items()}
        return tensors, numbers

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go back to what `state` gave."""
        for sender, about in numbers.items():
            self.into(int(sender)).load(under(f"{sender}/", tensors), about)


def parcel_of(letter: Letter) -> Parcel:
    """What a letter of mass holds."""
    return Parcel(letter.header.base, letter.header.step, letter.message)
