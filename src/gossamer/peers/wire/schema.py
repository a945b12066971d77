"""What a letter must look like to be let in: checked from its header, before a byte of it is stored, and after.

Nothing in here depends on what the sender claims about itself. The shapes are those that this peer would send.
"""

from collections.abc import Callable
from typing import Any

import torch

from gossamer.methods import Message, arrived, gossip_steps, mixes, travelling
from gossamer.peers.losses import LARGEST
from gossamer.peers.mass import Parcel
from gossamer.peers.store.letters import DIGEST_BYTES, Letter, describe, size_of
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.training.steps import Training, about_client, this_round

Description = list[wire.Tensor]
MASS_OPERATORS = ("push", "deliver")
#: Bytes of a header beside its tensors and losses, and of one loss in it.
HEADER_BYTES, LOSS_BYTES = 1024, 32
#: Values that are looked at in one go.
AT_ONCE = 1 << 20


class Refused(ValueError):
    """A message that is not let in, with the reason."""


class Schema:
    """The messages of one experiment."""

    def __init__(self, training: Training, number: int) -> None:
        method: Any = training.method
        self._method = method
        self._clients, self._rounds = training.network.clients, training.rounds
        self.model_dtype = training.model.initial.dtype
        state, opening = method.init(training.model.initial), Message()
        if hasattr(method, "open"):
            start = this_round(training, 0, about_client(training, number, 0, opening=True))
            state, opening = method.open(state, lambda: training.model.initial, start)
        round = this_round(training, 0, about_client(training, number, 0))
        _, message = method.finish(state, method.begin(state, round), round)
        pairs = mixes(method.sends, message).values()
        #: The names of the tensors that are pushed, and of those that are averaged or summed.
        self.pushed = sorted({name for name, operator in pairs if operator in MASS_OPERATORS})
        self.mixed = sorted(message.keys() - set(self.pushed))
        plain = {name: message[name] for name in self.mixed}
        self._plain = describe(plain)
        letter = travelling(method, plain) if self.mixed else {}
        self._letter = describe(letter)
        mass = {name: message[name] for name in self.pushed}
        self._mass = (describe(mass), describe({name: value.double() for name, value in mass.items()}))
        self._opening = describe(opening)
        self.steps = gossip_steps(method)
        self.open_steps = int(getattr(method, "open_mixings", 0)) if opening else 0

    @property
    def largest(self) -> int:
        """Bytes of the largest letter that may come."""
        return max(size_of(each) for each in (self._letter, *self._mass, self._opening))

    @property
    def largest_header(self) -> int:
        """Bytes of the largest header that may come."""
        described: int = max(
            sum(each.ByteSize() + 8 for each in every) for every in (self._letter, *self._mass, self._opening)
        )
        return HEADER_BYTES + described + LOSS_BYTES * self._clients

    def check_header(self, header: wire.Header) -> None:
        """Refuse a letter of other tensors or another size, before anything is stored of it."""
        allowed = self._allowed(header)
        found = list(header.tensors)
        self._check_losses(header)
        if found not in allowed:
            raise Refused(_difference(found, allowed[0]))
        if header.bytes != size_of(found):
            raise Refused(f"wrong size: declares {header.bytes} bytes for tensors of {size_of(found)}")
        if len(header.digest) != DIGEST_BYTES:
            raise Refused(f"wrong digest: {len(header.digest)} bytes long, not {DIGEST_BYTES}")
        if header.kind == wire.MASS and header.base >= header.step:
            raise Refused(f"wrong base: mass since step {header.base} cannot end at step {header.step}")

    def check_base(self, header: wire.Header, held: Parcel) -> None:
        """Refuse mass that does not go on from what is held of this sender: see `mass` for why honest mass does."""
        if header.base not in (held.base, held.through):
            raise Refused(
                f"wrong base: mass since step {header.base}, where that up to step {held.through} is here, in a sum "
                f"since step {held.base}"
            )

    def check_values(self, letter: Letter, held: Parcel | None = None) -> None:
        """Refuse values that no honest peer sends. `held`: of mass, the parcel before it."""
        header, message = letter.header, letter.message
        mass = header.kind == wire.MASS
        # Of a sum that goes on, only what is new will be taken: this must be sound too, in the method's precision.
        before = held.total if mass and held is not None and header.base != held.through else {}
        for name, value in message.items():
            dtype = self.model_dtype if mass else value.dtype
            if value.is_floating_point() and not _all_finite(value, before.get(name), dtype, letter.put_down):
                raise Refused(f"not finite: '{name}' holds NaN or infinity")
        if mass and "weight" in message:
            weight = message["weight"].double() - before["weight"].double() if before else message["weight"]
            if not bool((weight > 0).all()):
                raise Refused(f"wrong weight: {float(weight):g}, which is not positive")
        if not mass and header.step >= 0 and hasattr(self._method, "decode"):
            try:
                unpacked = arrived(self._method, message)
                decoded = describe(unpacked)
            except Exception as error:  # whatever a packed form can do wrong
                raise Refused(f"cannot be unpacked: {str(error)[:100]!r}") from error
            if decoded != self._plain:
                raise Refused("cannot be unpacked: " + _difference(decoded, self._plain))
            for name, value in unpacked.items():
                if value.is_floating_point() and not _all_finite(value, None, value.dtype):
                    raise Refused(f"not finite: '{name}' holds NaN or infinity when unpacked")

    def _check_losses(self, header: wire.Header) -> None:
        if len(header.losses) > self._clients:
            raise Refused(f"wrong losses: {len(header.losses)}, of {self._clients} peers")
        for known in header.losses:
            if not (0 <= known.peer < self._clients and 0 <= known.round < self._rounds):
                raise Refused(f"wrong losses: of peer {known.peer} in round {known.round}")
            if not abs(known.loss) <= LARGEST:
                raise Refused(f"wrong losses: {known.loss:g} of peer {known.peer}")

    def _allowed(self, header: wire.Header) -> tuple[Description, ...]:
        if header.kind == wire.MASS:
            if self.pushed and header.step >= 0:
                return self._mass
            raise Refused("unexpected: this experiment pushes no mass")
        if header.kind != wire.LETTER:
            raise Refused(f"unknown kind of message: {header.kind}")
        if header.step < 0:
            if header.step < -self.open_steps:
                raise Refused(f"wrong step: {header.step}")
            return (self._opening,)
        if not self.mixed:
            raise Refused("unexpected: this experiment pushes mass and sends nothing else")
        return (self._letter,)


def _difference(found: Description, expected: Description) -> str:
    """What is wrong with a list of tensors, in words."""
    if len(found) > len(expected) + 1:  # not worth a look at each
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
    value: torch.Tensor, before: torch.Tensor | None, dtype: torch.dtype, seen: Callable[[], None] = lambda: None
) -> bool:
    """Whether what a tensor adds to `before` is finite in this precision; takes no copy of a large one.

    `seen` is called between parts of it, to free the memory of those before.
    """
    flat, less = value.reshape(-1), None if before is None else before.reshape(-1)
    for start in range(0, flat.numel(), AT_ONCE):
        piece = flat[start : start + AT_ONCE]
        if less is not None:
            piece = piece.double() - less[start : start + AT_ONCE].double()
        # NaN is the least and the largest of whatever holds it, so these two speak for all, and take no memory.
        if not all(map(torch.isfinite, torch.aminmax(piece.to(dtype)))):
            return False
        seen()
    return True
