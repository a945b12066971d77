"""Whether a letter is let in, by its header alone: nothing of it has been stored yet."""

from typing import NamedTuple

from gossamer.peers.edges import Edges
from gossamer.peers.losses import Losses
from gossamer.peers.schedule import Plan
from gossamer.peers.standing import AHEAD, Standing
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.schema import Schema


class Answer(NamedTuple):
    """What a peer makes of a letter; `verdict` None: let it in."""

    verdict: int | None
    reason: str = ""


class Door:
    """The door of one peer."""

    def __init__(
        self, now: Standing, schema: Schema, plan: Plan, mailbox: Mailbox, edges: Edges, losses: Losses
    ) -> None:
        self._now, self._schema, self._plan = now, schema, plan
        self._mailbox, self._edges, self._losses = mailbox, edges, losses
        self._speakers: dict[int, wire.Process] = {}

    def judge(self, sender: int, header: wire.Header) -> Answer:
        """What to do with a letter of this header."""
        now, step, kind, steps = self._now, header.step, int(header.kind), self._schema.steps
        if header.network != now.network:
            return Answer(wire.REFUSED, "another network: its experiment, peers or policy differ from ours")
        if header.version != now.version:
            return Answer(wire.REFUSED, f"another version: {header.version[:20]!r}, this peer runs {now.version}")
        if not self._is_right_process(sender, header.process):
            return Answer(wire.REFUSED, "another process speaks for this peer")
        if step >= now.rounds * steps or step < -self._schema.open_steps:
            return Answer(wire.REFUSED, f"wrong step: there is no step {step}")
        if kind not in (wire.LETTER, wire.MASS):
            return Answer(wire.REFUSED, f"unknown kind of message: {kind}")
        if self._mailbox.has(kind, sender, step) or (kind == wire.MASS and step <= self._edges.has_through(sender)):
            return Answer(wire.DOUBLED)
        if kind == wire.LETTER and step < now.floor:
            return Answer(wire.PAST, f"past: step {step} is over, this peer is at step {now.floor}")
        now.heard_of(sender, step // steps)
        if step >= now.floor + (AHEAD + 1) * steps:
            return Answer(wire.EARLY, f"future: step {step} is too far ahead of step {now.floor}")
        # Who is chosen by its loss is known to those who choose only.
        if not self._losses.choose and sender not in self._plan.at(step).hears:
            return Answer(wire.REFUSED, f"no neighbour: this peer does not hear from the sender at step {step}")
        return Answer(None)

    def _is_right_process(self, sender: int, process: wire.Process) -> bool:
        """Of two processes with one name, the one that started last is heard; of two copies, the first."""
        known = self._speakers.get(sender)
        if known is not None and process != known and process.number <= known.number:
            return False
        self._speakers[sender] = process
        return True
