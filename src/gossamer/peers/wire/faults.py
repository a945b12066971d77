"""Injected faults: messages lost, duplicated and delayed, to rehearse a run and to test it."""

import random
from dataclasses import dataclass, field

from gossamer.errors import GossamerError, did_you_mean

#: The largest values of the settings that are no rates: seconds, a number.
MOST = {"delay": 3600.0, "seed": 1e15}


@dataclass
class Faults:
    """The rate of each fault, from 0 to 1. The same seed gives the same faults."""

    #: Requests that never arrive.
    lose: float = 0.0
    #: Requests that arrive and whose acknowledgement is lost.
    lose_receipts: float = 0.0
    #: Requests that are sent twice.
    double: float = 0.0
    #: The longest delay of a request in seconds; drawn uniformly from zero on.
    delay: float = 0.0
    #: Whether a lost letter stays lost, however often it is sent again (mass is repaid by the next parcel).
    for_good: bool = False
    seed: int = 0
    _rng: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # not for secrets

    def loses(self, *letter: int) -> bool:
        """Whether this request is lost."""
        if self.for_good:
            return random.Random(f"{self.seed} {letter}").random() < self.lose
        return self._rng.random() < self.lose

    def loses_receipt(self) -> bool:
        """Whether this acknowledgement is lost."""
        return self._rng.random() < self.lose_receipts

    def doubles(self) -> bool:
        """Whether this request is sent twice."""
        return self._rng.random() < self.double

    def draw_delay(self) -> float:
        """Seconds to wait before sending."""
        return self._rng.random() * self.delay


def parse_faults(text: str | None) -> Faults | None:
    """The faults in the text of `--faults`.

    >>> parse_faults("lose=0.2,delay=0.5").lose
    0.2
    """
    if not text:
        return None
    kinds = {"lose": float, "lose_receipts": float, "double": float, "delay": float, "for_good": bool, "seed": int}
    asked: dict[str, float] = {}
    for setting in text.split(","):
        key, _, value = setting.strip().partition("=")
        if key not in kinds:
            raise GossamerError(f"--faults: unknown key '{key}': {did_you_mean(key, kinds)}")
        most = MOST.get(key, 1.0)
        try:
            if not 0 <= (number := float(value)) <= most:  # nor NaN
                raise ValueError
        except ValueError:
            raise GossamerError(f"--faults: {key}: should be a number from 0 to {most:g} (got '{value}')") from None
        asked[key] = kinds[key](number)
    return Faults(**asked)  # type: ignore[arg-type]
