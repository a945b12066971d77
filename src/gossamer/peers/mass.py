"""Push-sum mass that survives a bad network: one running sum for each directed edge, reset when it was acknowledged.

At every gossip step a sender splits its mass and *adds* a receiver's share to the sum of that edge. A parcel carries
the whole sum since the last reset, so that a parcel that was lost is repaid by the next one. The receiver *takes* what
is new of it, so that a parcel that comes twice, or after a later one, brings nothing. At any moment, whatever was lost,

    Σ over peers of their own mass + Σ over edges of (added − taken)  is constant,

and what is under way is the second sum: it lies in `OutEdge.total`, not in the network.

Why `take` always knows what is new. A parcel (base, through, total) is the sum of all that was added with
base < step <= through. Let a receiver have taken everything up to step t, out of a parcel with base b.

    through <= t    All of it was taken before.
    base == t       The sender was told of t and began a new sum: all of it is new.
    base == b       The same sum as last time, with more in it: the difference is new.

There is no other case, because a sender resets to step a only when the receiver says that it has everything up to a and
nothing later than a was ever sent: no parcel with an earlier base reaches beyond a, and t == a for as long as no parcel
with base a has been taken. That holds across restarts too, if whoever uses this keeps three rules:

    1  A receiver has a parcel on disk before it acknowledges it, and takes waiting parcels in the order of `through`;
       a waiting one may be thrown away for a later one with the same base. It acknowledges with the last step up to
       which it has everything on disk; an earlier one does no harm, but leaves the sum to grow.
    2  A sender that starts again from a checkpoint repeats its steps with the same numbers; `add` ignores what is in.
    3  A sender has a parcel on disk before it leaves, and starts again from the last one. With an older one it would go
       on with a sum that the receiver has forgotten, or reset although its former self had sent more.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.methods import Message

#: The step before the first one: nothing was added, sent or taken.
NOTHING = -1
#: What is given of a share that is held back. Almost nothing, but a parcel all the same: its receiver need not wait.
CRUMB = 1e-9


def given(weights: Mapping[int, float], held: Mapping[int, float]) -> tuple[dict[int, float], float]:
    """What each receiver gets of a sender's mass if some get a fraction of their share, and what the sender keeps.

    >>> given({1: 0.25, 2: 0.25}, held={2: 0.5})
    ({1: 0.25, 2: 0.125}, 0.125)
    """
    shares = {receiver: held.get(receiver, 1.0) * weight for receiver, weight in weights.items()}
    return shares, sum(weights[receiver] - shares[receiver] for receiver in held)


class Parcel(NamedTuple):
    """What travels: the sum of a sender's shares for this receiver with base < step <= through.

    One share alone is in the method's precision, a sum of several in float64.
    """

    base: int
    through: int
    total: Message


class OutEdge:
    """The sender's side of an edge: what is owed to the receiver, as far as the sender knows."""

    def __init__(self) -> None:
        self.base = NOTHING
        self.through = NOTHING
        self.total: Message = {}
        self.since = NOTHING  # the receiver has acknowledged the steps before this one, as far as this process knows
        self.sent = NOTHING  # the last step that ever left, also from a former life of this peer

    def add(self, step: int, increment: Message) -> None:
        """Owe the share of this step; a step that is in already changes nothing. The tensors are kept, not copied."""
        if step <= self.through:
            return
        if self.total:
            # Never in place: an earlier parcel may still be on its way out of this memory.
            increment = {name: tensor.double() + increment[name].double() for name, tensor in self.total.items()}
        else:
            self.since = step
        self.total, self.through = increment, step

    def parcel(self) -> Parcel | None:
        """What to send now, None if nothing is owed. The same again until it is acknowledged or more is added."""
        if self.through == self.base:
            return None
        self.sent = max(self.sent, self.through)
        return Parcel(self.base, self.through, self.total)

    def acknowledged(self, through: int) -> bool:
        """The receiver has everything up to this step. Whether nothing is owed any more; if not, the sum goes on."""
        last = max(self.through, self.sent)
        if through > last:
            raise ValueError(f"step {through} is acknowledged, but nothing later than step {last} was ever sent")
        if through < last:
            self.since = max(self.since, through + 1)
            return False
        # A receiver may be ahead of a sender that was set back: then the steps up to here need not be added again.
        self.base, self.through, self.total = through, through, {}
        return True

    def resume(self, parcel: Parcel) -> None:
        """Start again from the last parcel that was written down; it may have left."""
        self.base, self.through, self.total = parcel
        self.since = self.sent = self.through

    def waits_since(self, step: int) -> bool:
        """Whether nothing of this step, or of later ones, has been acknowledged, and something is owed."""
        return self.through > self.base and self.since <= step


class InEdge:
    """The receiver's side of an edge: what was taken of the sender's present sum. `dtype` is that of the method."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.base = NOTHING
        self.through = NOTHING
        self.total: Message = {}

    def take(self, parcel: Parcel) -> Message | None:
        """What is new of a parcel, None if nothing is. A share that comes alone is handed on bit for bit."""
        base, through, total = parcel
        if through <= self.through:
            return None
        if base == self.through:
            new = {name: tensor.to(self.dtype) for name, tensor in total.items()}
        elif base == self.base:
            new = {name: (t.double() - self.total[name].double()).to(self.dtype) for name, t in total.items()}
        else:
            raise ValueError(
                f"a parcel of the steps after {base} up to {through}, where those up to {self.through} have been taken "
                f"out of a sum that began after {self.base}: one of the two peers has lost what it had written"
            )
        self.base, self.through, self.total = base, through, total
        return new

    def state(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """What a checkpoint holds of it: tensors, and numbers that JSON can hold."""
        return dict(self.total), {"base": self.base, "through": self.through}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, int]) -> None:
        """Go back to what `state` gave."""
        self.total, self.base, self.through = dict(tensors), numbers["base"], numbers["through"]
