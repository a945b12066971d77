"""Ctrl-C and SIGTERM during a run."""

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class StopSignals:
    """Handles SIGINT, and SIGTERM (a scheduler's "time is up"): the first ends a run after its round, the second at
    once, by a KeyboardInterrupt."""

    def __init__(self, tell: Callable[[], None]) -> None:
        #: The signal that came; 0 if none did.
        self.received = 0
        self._tell = tell
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # forked workers ignore what the first one hears
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.received and kind is not None and not issubclass(kind, KeyboardInterrupt):
            signal.raise_signal(self.received)  # another exception ends the run: the signal is not lost with it

    def _handle(self, number: int, *_: Any) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
        with suppress(RuntimeError):  # the signal may have come in the middle of a print
            self._tell()
