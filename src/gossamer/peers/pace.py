"""How long to wait for a neighbour: as long as it usually takes, and some more.

A running mean of how late its messages are, plus four times how much that varies (as TCP judges a silent line). Before
anything is known, and at most, the network's `patience`. A neighbour that stays silent is given more time once or
twice; one that cannot even be reached is then no longer waited for, until it is heard from again.
"""

MEAN_GAIN, DEVIATION_GAIN = 1 / 8, 1 / 4
#: A message is given so many seconds at least: machines pause now and then.
LEAST = 1.0
#: Rounds without a word after which an unreachable neighbour is not waited for.
AWAY_AFTER = 2


class Pace:
    """What one neighbour's lateness has been."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.missed = 0
        self._met = False
        self._mean: float | None = None
        self._deviation = 0.0

    def heard(self, seconds: float) -> None:
        """Its message came so long after it was first wanted (0: it was there already)."""
        self.missed = 0
        if not self._met:  # how late it started says nothing about how late it will be
            self._met = True
            return
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += DEVIATION_GAIN * (abs(seconds - self._mean) - self._deviation)
        self._mean += MEAN_GAIN * (seconds - self._mean)

    def silent(self) -> None:
        """It was waited for in vain."""
        self.missed += 1

    def limit(self, reachable: bool) -> float:
        """Seconds to wait for it now."""
        if self.missed >= AWAY_AFTER and not reachable:
            return 0.0
        if self._mean is None:
            return self.patience
        usual = max(LEAST, self._mean + 4 * self._deviation)
        return float(min(self.patience, usual * 2 ** min(self.missed, 10)))
