"""How long to wait for a neighbour's message.

The limit is a running mean of how late its messages are, plus four times their mean deviation (as TCP computes its
retransmission timeout). It is the network's `patience` at most, and as long as nothing is known. It doubles after each
missed message. A neighbour that is also unreachable is no longer waited for after `AWAY_AFTER` missed messages, until
it is heard from again.
"""

MEAN_GAIN, DEVIATION_GAIN = 1 / 8, 1 / 4
#: The shortest limit in seconds: machines pause now and then.
LEAST = 1.0
#: Missed messages in a row after which an unreachable neighbour is not waited for.
AWAY_AFTER = 2


class Pace:
    """The statistics of one neighbour's lateness."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        #: Messages in a row that were waited for in vain.
        self.missed = 0
        self._met = False
        self._mean: float | None = None
        self._deviation = 0.0

    def heard(self, seconds: float) -> None:
        """Record a message that came so many seconds after it was first needed; 0 if it was there already."""
        self.missed = 0
        if not self._met:  # the first message is late because the peer started late
            self._met = True
            return
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += DEVIATION_GAIN * (abs(seconds - self._mean) - self._deviation)
        self._mean += MEAN_GAIN * (seconds - self._mean)

    def silent(self) -> None:
        """Record a message that did not come."""
        self.missed += 1

    def limit(self, reachable: bool) -> float:
        """Seconds to wait for the next message."""
        if self.missed >= AWAY_AFTER and not reachable:
            return 0.0
        if self._mean is None:
            return self.patience
        usual = max(LEAST, self._mean + 4 * self._deviation)
        return float(min(self.patience, usual * 2 ** min(self.missed, 10)))
