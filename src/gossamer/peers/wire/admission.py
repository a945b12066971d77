"""Which letters are admitted: decided from the header before a byte is stored, then from the values.

Nothing here depends on claims of the sender about itself. The expected tensors are those that this peer would send.
"""

from collections.abc import Callable

import torch

from gossamer.peers.ledger import MassLedger
from gossamer.peers.losses import LARGEST, Losses
from gossamer.peers.mass import Parcel
from gossamer.peers.message_format import Description, MessageFormat
from gossamer.peers.progress import AHEAD, PeerProgress
from gossamer.peers.schedule import GossipSchedule
from gossamer.peers.store.letters import DIGEST_BYTES, Letter, describe, size_of
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.training import Training

#: Bytes of a header besides its tensors and losses, and of one loss in it.
HEADER_BYTES, LOSS_BYTES = 1024, 32
#: By how much roundings may raise a push-sum weight.
ROUNDING = 1e-3
#: Values that are checked at once.
VALUES_AT_ONCE = 1 << 20


class NotAdmitted(ValueError):
    """A letter that is not stored: the reason, and the verdict for its sender. A reason starts with its kind."""

    def __init__(self, reason: str, verdict: int = wire.REFUSED) -> None:
        super().__init__(reason)
        self.verdict = verdict


class Admission:
    """The checks of one peer for the letters that it receives."""

    def __init__(
        self,
        training: Training,
        format: MessageFormat,
        schedule: GossipSchedule,
        progress: PeerProgress,
        mailbox: Mailbox,
        ledger: MassLedger,
        losses: Losses,
    ) -> None:
        self._traits = training.traits
        self._clients, self._rounds = training.network.clients, training.rounds
        self._format, self._schedule, self._progress = format, schedule, progress
        self._mailbox, self._ledger, self._losses = mailbox, ledger, losses

    @property
    def largest_header(self) -> int:
        """Bytes of the largest header that can be valid."""
        described: int = max(sum(tensor.ByteSize() + 8 for tensor in tensors) for tensors in self._format.all)
        return HEADER_BYTES + described + LOSS_BYTES * self._clients

    def check_header(self, sender: int, header: wire.Header) -> Parcel | None:
        """Raise `NotAdmitted` for a letter with a wrong header; for mass, return the sender's last stored parcel."""
        self._check_origin(sender, header)
        self._check_step(sender, header)
        self._check_losses(header)
        self._check_tensors(header)
        return self._check_base(sender, header) if header.kind == wire.MASS else None

    def check_values(self, letter: Letter, before: Parcel | None) -> None:
        """Raise `NotAdmitted` for values that no honest peer sends. `before` is what `check_header` returned."""
        if letter.header.kind == wire.MASS:
            self._check_mass(letter, before)
        else:
            self._check_letter(letter)

    def receipt(self, sender: int, verdict: int, reason: str = "") -> wire.Receipt:
        """The answer to a letter."""
        round, through = self._progress.done, self._ledger.stored_through(sender)
        return wire.Receipt(verdict=verdict, reason=reason, round=round, through=through)  # type: ignore[arg-type]

    async def stored(self, sender: int, header: wire.Header) -> None:
        """Record a letter that is now in its place in the mailbox."""
        self._losses.merge(header.losses)
        self._progress.note_heard(sender, header.step)
        await self._mailbox.arrived(header.kind, sender, header.step)

    # Headers

    def _check_origin(self, sender: int, header: wire.Header) -> None:
        ours = self._progress
        if header.network != ours.network:
            raise NotAdmitted("another network: its experiment, peers or policy differ from ours")
        if header.version != ours.version:
            raise NotAdmitted(f"another version: {header.version[:20]!r}, this peer runs {ours.version}")
        if header.code != ours.code_digest:
            raise NotAdmitted(
                "another code: a part of the experiment is the user's own, and its code differs from ours"
            )
        # Of two processes with one name the one started last is accepted; of two copies of a kit, the first.
        known = ours.processes.get(sender)
        if known is not None and header.process != known and header.process.number <= known.number:
            raise NotAdmitted("another process speaks for this peer")
        ours.processes[sender] = header.process

    def _check_step(self, sender: int, header: wire.Header) -> None:
        step, kind, steps, next_step = header.step, int(header.kind), self._format.steps, self._progress.next_step
        if step >= self._rounds * steps or step < -self._format.open_steps:
            raise NotAdmitted(f"wrong step: there is no step {step}")
        if kind not in (wire.LETTER, wire.MASS):
            raise NotAdmitted(f"unknown kind of message: {kind}")
        if self._mailbox.has(kind, sender, step) or (kind == wire.MASS and step <= self._ledger.stored_through(sender)):
            raise NotAdmitted("", wire.DOUBLED)
        if kind == wire.LETTER and step < next_step:
            raise NotAdmitted(f"past: step {step} is over, this peer is at step {next_step}", wire.PAST)
        self._progress.note_round(sender, step // steps)
        if step >= next_step + (AHEAD + 1) * steps:
            raise NotAdmitted(f"future: step {step} is too far ahead of step {next_step}", wire.EARLY)
        # Where receivers are chosen by loss, only the sender knows whom it has chosen.
        if not self._losses.choose and sender not in self._schedule.at(step).senders:
            raise NotAdmitted(f"no neighbour: the sender has no edge to this peer at step {step}")

    def _check_losses(self, header: wire.Header) -> None:
        if len(header.losses) > self._clients:
            raise NotAdmitted(f"wrong losses: {len(header.losses)}, of {self._clients} peers")
        for known in header.losses:
            if not (0 <= known.peer < self._clients and 0 <= known.round < self._rounds):
                raise NotAdmitted(f"wrong losses: of peer {known.peer} in round {known.round}")
            if not abs(known.loss) <= LARGEST:
                raise NotAdmitted(f"wrong losses: {known.loss:g} of peer {known.peer}")

    def _check_tensors(self, header: wire.Header) -> None:
        allowed, found = self._allowed(header), list(header.tensors)
        if found not in allowed:
            raise NotAdmitted(_difference(found, allowed[0]))
        if header.bytes != size_of(found):
            raise NotAdmitted(f"wrong size: declares {header.bytes} bytes for tensors of {size_of(found)}")
        if len(header.digest) != DIGEST_BYTES:
            raise NotAdmitted(f"wrong digest: {len(header.digest)} bytes long, not {DIGEST_BYTES}")

    def _allowed(self, header: wire.Header) -> tuple[Description, ...]:
        """The tensors that a letter of this kind and step may have."""
        if header.kind == wire.MASS:
            if self._format.pushed and header.step >= 0:
                return self._format.mass
            raise NotAdmitted("unexpected: this experiment pushes no mass")
        if header.step < 0:
            return (self._format.opening,)
        if not self._format.mixed:
            raise NotAdmitted("unexpected: this experiment pushes mass and sends nothing else")
        return (self._format.letter,)

    def _check_base(self, sender: int, header: wire.Header) -> Parcel:
        """Check that mass continues the sender's last parcel: see `mass` for why honest mass does."""
        if header.base >= header.step:
            raise NotAdmitted(f"wrong base: mass since step {header.base} cannot end at step {header.step}")
        last = self._ledger.last_parcel(sender)
        if header.base not in (last.base, last.through):
            raise NotAdmitted(
                f"wrong base: mass since step {header.base}, but the stored mass ends at step {last.through}, in a sum "
                f"since step {last.base}"
            )
        return last

    # Values

    def _check_letter(self, letter: Letter) -> None:
        message = letter.message
        for name, value in message.items():
            if value.is_floating_point() and not _all_finite(value, None, value.dtype, letter.release_memory):
                raise NotAdmitted(f"not finite: '{name}' holds NaN or infinity")
        if letter.header.step < 0 or not self._traits.codec:
            return
        try:
            decoded = self._traits.decoded(message)
            found = describe(decoded)
        except Exception as error:  # a malformed encoding can fail in any way
            raise NotAdmitted(f"cannot be decoded: {str(error)[:100]!r}") from error
        if found != self._format.decoded:
            raise NotAdmitted("cannot be decoded: " + _difference(found, self._format.decoded))
        for name, value in decoded.items():
            if value.is_floating_point() and not _all_finite(value, None, value.dtype):
                raise NotAdmitted(f"not finite: '{name}' holds NaN or infinity after decoding")

    def _check_mass(self, letter: Letter, last: Parcel | None) -> None:
        header, message, dtype = letter.header, letter.message, self._format.model_dtype
        # Of a sum that goes on, only the difference is taken: it must be finite too, in the model's precision.
        before = last.total if last is not None and header.base != last.through else {}
        for name, value in message.items():
            if value.is_floating_point() and not _all_finite(value, before.get(name), dtype, letter.release_memory):
                raise NotAdmitted(f"not finite: '{name}' holds NaN or infinity")
        if "weight" in message:
            weight = message["weight"].double() - before["weight"].double() if before else message["weight"]
            if not bool((weight > 0).all()):
                raise NotAdmitted(f"wrong weight: {float(weight):g}, which is not positive")
            if not bool((weight <= self._clients * (1 + ROUNDING)).all()):
                raise NotAdmitted(f"wrong weight: {float(weight):g}, which is more than all peers have")


def _difference(found: Description, expected: Description) -> str:
    """The first difference between two lists of tensors."""
    if len(found) > len(expected) + 1:  # too many to compare one by one
        return f"extra tensor: {len(found)} of them, not {len(expected)}"
    have, want = ({each.name: each for each in tensors} for tensors in (found, expected))
    if missing := sorted(want.keys() - have.keys()):
        return f"missing tensor: '{missing[0]}'"
    if extra := sorted(have.keys() - want.keys()):
        return f"extra tensor: {extra[0][:40]!r}"
    for name, tensor in have.items():
        if tensor.dtype != want[name].dtype:
            return f"wrong type: '{name}' is {tensor.dtype[:20]!r}, not {want[name].dtype}"
        if tensor.shape != want[name].shape:
            return f"wrong shape: '{name}' is {list(tensor.shape)[:8]}, not {list(want[name].shape)}"
    return "wrong order of tensors"


def _all_finite(
    value: torch.Tensor, before: torch.Tensor | None, dtype: torch.dtype, checked: Callable[[], None] = lambda: None
) -> bool:
    """Whether `value` (less `before`) is finite in this precision, without a copy of a large tensor.

    `checked` is called after each part, to release its memory.
    """
    flat, less = value.reshape(-1), None if before is None else before.reshape(-1)
    for start in range(0, flat.numel(), VALUES_AT_ONCE):
        piece = flat[start : start + VALUES_AT_ONCE]
        if less is not None:
            piece = piece.double() - less[start : start + VALUES_AT_ONCE].double()
        # NaN propagates to both the minimum and the maximum, so these two suffice, and need no memory.
        if not all(map(torch.isfinite, torch.aminmax(piece.to(dtype)))):
            return False
        checked()
    return True
