"""How a run ended."""

import json
from typing import Literal, NamedTuple

Kind = Literal["finished", "stopped", "diverged", "interrupted", "failed"]


class Ending(NamedTuple):
    """How a run ended. A run folder keeps `stopped` and `diverged`; a run that was interrupted or failed has no end."""

    kind: Kind
    #: The last round that was recorded.
    round: int
    #: For "stopped", the observer that asked for it; for "diverged", "interrupted" and "failed", the error message.
    reason: str = ""

    def __str__(self) -> str:
        if self.kind == "finished":
            return f"finished after round {self.round}"
        return f"ended on purpose after round {self.round}: {self.reason}" if self.kind == "stopped" else self.reason

    def to_json(self) -> str:
        """The ending as text."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "Ending":
        """The ending that `to_json` wrote; a ValueError for anything else."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("kind") not in ("stopped", "diverged"):
            raise ValueError("not an ending")
        return cls(values["kind"], int(values.get("round", 0)), str(values.get("reason", "")))
