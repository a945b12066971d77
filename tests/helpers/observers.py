"""Observers that tests watch runs with."""

import signal

from gossamer import Observer
from gossamer.simulation import Outcome, RoundRecord, RunStart


class Listening(Observer):
    """Keeps everything that it is told."""

    def __init__(self) -> None:
        self.starts: list[RunStart] = []
        self.records: list[RoundRecord] = []
        self.notes: list[str] = []
        self.waits: list[str] = []
        self.outcomes: list[Outcome] = []

    def start(self, run: RunStart) -> None:
        self.starts.append(run)

    def round(self, record: RoundRecord) -> bool:
        self.records.append(record)
        return False

    def note(self, message: str) -> None:
        self.notes.append(message)

    def waiting(self, reason: str) -> None:
        self.waits.append(reason)

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def how(self) -> str:
        return self.starts[-1].how


class Stopping(Listening):
    """Stops the run after a round."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def round(self, record: RoundRecord) -> bool:
        super().round(record)
        return record.round == self.after


class PressesCtrlC(Stopping):
    """Presses Ctrl-C twice before a round is over."""

    def round(self, record: RoundRecord) -> bool:
        if super().round(record):
            raise KeyboardInterrupt
        return False


class Signalling(Stopping):
    """Sends a signal to this process when a round is over, and fails then if it is asked to."""

    def __init__(self, number: int, after: int, fails: bool = False) -> None:
        super().__init__(after)
        self.number, self.fails = number, fails

    def round(self, record: RoundRecord) -> bool:
        if super().round(record):
            signal.raise_signal(self.number)
            if self.fails:
                raise LookupError("seen enough")
        return False
