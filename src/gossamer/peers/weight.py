"""Keeps the push-sum weight of a peer from running down while a sender gives nothing.

Shares leave a peer at every step, and its weight w stays up because as much comes back. Where a sender gives nothing
(it is missing, frozen, finished, or holding back itself), less comes back; a peer that went on as usual would lose a
factor at every step, and its own steps, taken at x / w, would grow without bound. The law, whatever the reason:

    From the step after one at which some sender gave nothing, until every sender gives and the peer has regained the
    weight of before (or the average weight, one), its shares are scaled so that at least half of the weight that it had
    when it noticed stays with it.

So its weight does not fall below that half, however long it lasts. Where all senders give, nothing is scaled.
"""

from collections.abc import Collection, Mapping
from typing import Any

#: Mass with less weight is a token share: see `mass.CRUMB`.
TOKEN_WEIGHT = 1e-7
#: A smaller fraction of the usual shares is not sent, so that no share is mistaken for a token.
LEAST_FRACTION = 0.01


class WeightGuard:
    """The restraint of one peer."""

    def __init__(self) -> None:
        self._silent: set[int] = set()  # senders whose last mass that was due did not come, or was a token
        self._before = 1.0  # the weight at the last step without restraint, at most the average
        self._least: float | None = None  # the weight to keep, under restraint

    def fraction(self, weight: float, usual: float) -> float:
        """The fraction of the usual shares to send at this step, of a peer with this weight."""
        if self._least is not None and not self._silent and weight >= self._before:
            self._least = None
        elif self._least is None and self._silent:
            self._least = weight / 2
        if self._least is None:
            self._before = min(weight, 1.0)
            return 1.0
        spare = (weight - self._least) / usual if usual > 0 else 1.0
        return 0.0 if spare < LEAST_FRACTION else min(spare, 1.0)

    def took(self, due: Collection[int] | None, weights: Mapping[int, float]) -> None:
        """Record the weight taken at a step from each sender, and the senders that were due.

        Where receivers are chosen by loss, nobody knows the senders (None): then some mass is due from anybody.
        """
        gave = {sender for sender, weight in weights.items() if weight >= TOKEN_WEIGHT}
        if due is None:
            self._silent = set() if gave else {-1}
        else:
            self._silent = (self._silent | set(due)) - gave

    def state(self) -> dict[str, Any]:
        """The contents for a checkpoint."""
        return {"silent": sorted(self._silent), "before": self._before, "least": self._least}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the contents of a checkpoint."""
        self._silent, self._before, self._least = set(state["silent"]), state["before"], state["least"]
