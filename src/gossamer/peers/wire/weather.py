"""A bad network on purpose: messages lost, doubled and delayed, to rehearse a run and to test it."""

import random
from dataclasses import dataclass, field

from gossamer.errors import GossamerError, did_you_mean


@dataclass
class Weather:
    """How often what goes wrong, from 0 to 1; the same seed gives the same weather."""

    lose: float = 0.0
    """Requests that never arrive."""
    lose_receipts: float = 0.0
    """Requests that arrive, and whose acknowledgement does not."""
    double: float = 0.0
    """Requests that are sent twice."""
    delay: float = 0.0
    """Seconds that a request is held back: between none and this."""
    for_good: bool = False
    """Whether a letter that is lost stays lost, however often it is sent again (mass is repaid by the next parcel)."""
    seed: int = 0
    _rng: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # weather, not secrets

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

    def holds_back(self) -> float:
        """Seconds to wait before sending."""
        return self._rng.random() * self.delay


def as_weather(text: str | None) -> Weather | None:
    """The weather that a command asks for.

    >>> as_weather("lose=0.2,delay=0.5").lose
    0.2
    """
    if not text:
        return None
    kinds = {"lose": float, "lose_receipts": float, "double": float, "delay": float, "for_good": bool, "seed": int}
    asked: dict[str, float] = {}
    for setting in text.split(","):
        key, _, value = setting.strip().partition("=")
        if key not in kinds:
            raise GossamerError(f"--weather: unknown key '{key}': {did_you_mean(key, kinds)}")
        try:
            asked[key] = kinds[key](float(value))
        except ValueError:
            raise GossamerError(f"--weather: {key}: should be a number (got '{value}')") from None
        if asked[key] < 0 or (key not in ("delay", "seed") and asked[key] > 1):
            raise GossamerError(f"--weather: {key}: should be from 0 to 1 (got {value})")
    return Weather(**asked)  # type: ignore[arg-type]
