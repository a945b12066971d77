"""One gossip step of a peer: send, wait, write down, mix.

The letters that are mixed are written to the trace before they are mixed. A process that is killed in between finds the
line, and its successor mixes the same letters.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from gossamer.methods import Message, Operator
from gossamer.peers.ledger import MassLedger
from gossamer.peers.losses import Losses
from gossamer.peers.mass import CRUMB, given
from gossamer.peers.message_format import MessageFormat
from gossamer.peers.neighbours import Neighbours
from gossamer.peers.progress import AHEAD, PeerProgress
from gossamer.peers.schedule import GossipSchedule, StepRole
from gossamer.peers.store.journal import Journal, TraceLine
from gossamer.peers.store.letters import Letter
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.store.outbox import Outbox
from gossamer.peers.weight import WeightGuard
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.system.allocator import trim_freed_memory
from gossamer.training import Client, share_of


@dataclass
class Gossip:
    """The gossip steps of one peer, on the parts that it is made of."""

    client: Client
    format: MessageFormat
    schedule: GossipSchedule
    progress: PeerProgress
    losses: Losses
    journal: Journal
    outbox: Outbox
    mailbox: Mailbox
    ledger: MassLedger
    guard: WeightGuard
    neighbours: Neighbours
    #: Whether no step is mixed before the letters of all neighbours are here.
    waits: bool
    #: Seconds to wait at most for recent losses.
    patience: float
    #: Runs a computation in the peer's computing thread.
    compute: Callable[..., Awaitable[None]]

    async def step(self, step: int, operators: dict[str, Operator]) -> None:
        """Replace the client's message by what the gossip step makes of it."""
        await self._keep_pace(step)
        line = self.journal.mixed(step)  # written by an earlier process that was killed afterwards
        losses = self._losses_to_choose_by(line)
        role = self.schedule.at(step, losses)
        due = None if losses is not None else [*role.senders]
        if due is None:  # only a sender knows which receivers it chose: wait for nobody
            role = role._replace(senders={})
        message = self.client.letter(coded=step >= 0)
        pushed = self.format.pushed if step >= 0 else []
        sends_letters = not pushed or bool(self.format.mixed)
        shares, kept = given(role.receivers, self._held_back(step, role.receivers)) if pushed else ({}, 0.0)
        self.progress.doing = "sending"
        if sends_letters:
            letter = {name: message[name] for name in message if name not in pushed}
            await self._send_letter(step, letter, role.receivers)
        for receiver, share in shares.items():
            await self._send_mass(step, pushed, receiver, share)
        if line is None:
            self.progress.doing = "waiting"
            heard = await self.neighbours.wait_for([*role.senders], partial(self._is_here, step, sends_letters), step)
            line = {"step": step}
            line |= {"heard": {str(j): step for j in heard}} if sends_letters else {}
            line |= {"mass": self.ledger.due(step)} if pushed else {}
            line |= {} if losses is None else {"losses": losses.tolist()}
            self.journal.write(line)
        self.progress.doing = "mixing"
        letters = {int(name): self.mailbox.letter(wire.LETTER, int(name), step) for name in line.get("heard", {})}
        parcels = self.ledger.due_letters(line.get("mass", {}))
        trim_freed_memory()
        await self.compute(self._mix, step, operators, role, letters, parcels, kept)
        if pushed:
            self.guard.took(due, self.ledger.last_weights)
        self.progress.next_step = step + 1

    async def _keep_pace(self, step: int) -> None:
        """Wait while neighbours, or the losses that receivers are chosen by, are too many rounds behind."""
        if self.waits:
            letters_before = step - AHEAD * self.format.steps
            await self.mailbox.wait(partial(self.neighbours.have_acknowledged, step, letters_before), None)
        if self.losses.choose:
            recent = step // self.format.steps - AHEAD
            await self.mailbox.wait(partial(self._knows_losses_since, recent), self.patience)

    def _knows_losses_since(self, round: int) -> bool:
        links = self.neighbours.links.items()
        return all(self.losses.known_since(round, j) or not link.reachable for j, link in links)

    def _losses_to_choose_by(self, line: TraceLine | None) -> np.ndarray | None:
        if not self.losses.choose:
            return None
        return self.losses.table() if line is None else np.array(line["losses"])

    def _is_here(self, step: int, letters: bool, sender: int) -> bool:
        if letters:
            return self.mailbox.has(wire.LETTER, sender, step)
        return self.ledger.stored_through(sender) >= step

    def _held_back(self, step: int, receivers: Mapping[int, float]) -> dict[int, float]:
        """Receivers that get a fraction of their share of this step; written to the trace before anything is sent.

        Mass that a missing or finished peer gets does not come back: a receiver that has finished, or has not
        acknowledged its mass for some rounds, gets token shares. All others get what `WeightGuard` allows.
        """
        weight = float(self.client.message.get("weight", torch.inf))
        away = self.ledger.unacknowledged_since(step - AHEAD * self.format.steps) | self.progress.finished_peers()
        usual = weight * sum(share for receiver, share in receivers.items() if receiver not in away)
        fraction = self.guard.fraction(weight, usual)
        if step in self.journal.holds:
            return self.journal.holds[step]
        # An earlier process may have sent some of the shares before it was killed: whole ones, or there were a line.
        if self.journal.mixed(step) or any(self.ledger.out_edge(j).through >= step for j in receivers):
            return {}
        fractions = {j: CRUMB if j in away else max(fraction, CRUMB) for j in receivers}
        held = {j: fraction for j, fraction in fractions.items() if fraction < 1}
        if held:
            self.journal.write({"hold": [step, held]})
        return held

    async def _send_letter(self, step: int, message: Message, receivers: Mapping[int, float]) -> None:
        """Write the letter of this step, one file for all receivers, and post it."""
        path = await self.outbox.write_letter(self._header(wire.LETTER, step), message)
        self.neighbours.post(wire.LETTER, step, path, receivers)

    async def _send_mass(self, step: int, pushed: list[str], receiver: int, weight: float) -> None:
        """Add a receiver's share to its edge, write the parcel and post it."""
        edge = self.ledger.out_edge(receiver)
        # Receipts change edges too, so edges are changed in the event loop only, never in another thread.
        edge.add(step, share_of(self.client.message, weight, pushed))
        if parcel := edge.parcel():
            header = self._header(wire.MASS, parcel.through, parcel.base)
            path = await self.outbox.write_parcel(receiver, header, parcel.total)
            if edge.total:  # else the link has sent this file in place of the one before, and it is acknowledged
                edge.total = Letter(path).message  # mapped from the file, so that it takes no memory
            self.neighbours.post(wire.MASS, parcel.through, path, [receiver])

    def _header(self, kind: int, step: int, base: int = 0) -> wire.Header:
        header = self.progress.header()
        about = wire.Header(kind=kind, step=step, base=base, losses=self.losses.to_wire())  # type: ignore[arg-type]
        header.MergeFrom(about)
        return header

    def _mix(
        self,
        step: int,
        operators: dict[str, Operator],
        role: StepRole,
        letters: Mapping[int, Letter],
        parcels: Mapping[int, list[Letter]],
        kept: float,
    ) -> None:
        """Mix exactly the letters and parcels of the trace."""

        def decoded(sender: int) -> Message:
            message = letters[sender].message
            return self.client.traits.decoded(message) if step >= 0 else message

        taken = self.ledger.take(parcels)
        mass = LazyMessages({sender: parcels[sender][-1] for sender in taken}, taken.__getitem__)
        heard = LazyMessages(letters, decoded)
        self.client.hear(step, operators, role.senders, role.own_weight, heard, mass, kept)
        self.ledger.release_memory()


class LazyMessages(Mapping[int, Message]):
    """The messages in letters, by sender. Each is read on access, and releases the memory of the others."""

    def __init__(self, letters: Mapping[int, Letter], read: Callable[[int], Message]) -> None:
        self._letters, self._read = letters, read

    def __getitem__(self, sender: int) -> Message:
        for letter in self._letters.values():
            letter.release_memory()
        return self._read(sender)

    def __iter__(self) -> Iterator[int]:
        return iter(self._letters)

    def __len__(self) -> int:
        return len(self._letters)
