"""The curves of a run that goes on: rows on evenly spaced rounds, which grow with it."""

from collections.abc import Sequence
from typing import Any

from gossamer.pages.live.feed import Row
from gossamer.pages.live.reading import Tail
from gossamer.pages.report_data import AXES, PANELS, POINTS, short
from gossamer.runs.folder import RunFolder

#: What a row of a run holds, in this order.
COLUMNS = (*(axis.key for axis in AXES), *(panel.key for panel in PANELS))
#: The metrics that are there on the cadence of the evaluation, and not in every round.
EVALUATED = tuple(panel.key for panel in PANELS if panel.key != "local_loss")


class Thinned:
    """Rows of which at most `most` are kept of each of two kinds, every second, fourth, … one."""

    def __init__(self, most: int = POINTS) -> None:
        self.rows: list[Row] = []
        self._most = most
        #: Of each kind, how many rows there have been, and of how many one is kept.
        self._seen, self.every = [0, 0], [1, 1]
        self._kept: list[tuple[int, int]] = []

    def add(self, rows: Sequence[tuple[bool, Row]]) -> tuple[bool, list[Row]]:
        """Take rows, each with whether it is of the first kind; gives whether kept ones were dropped, and new ones."""
        new = []
        for first, row in rows:
            kind = 0 if first else 1
            number, self._seen[kind] = self._seen[kind], self._seen[kind] + 1
            if number % self.every[kind] == 0:
                self._kept.append((kind, number))
                new.append(row)
        self.rows += new
        dropped = False
        for kind in (0, 1):
            while sum(each == kind for each, _ in self._kept) > self._most:
                self.every[kind] *= 2
                dropped = True
                stay = [each != kind or number % self.every[kind] == 0 for each, number in self._kept]
                self.rows = [row for row, stays in zip(self.rows, stay, strict=True) if stays]
                self._kept = [mark for mark, stays in zip(self._kept, stay, strict=True) if stays]
        return dropped, new


class Series:
    """The rows of one run, from its files as they grow."""

    def __init__(self, folder: RunFolder) -> None:
        self._metrics, self._timings = Tail(folder.metrics), Tail(folder.timings)
        self._begin()

    def _begin(self) -> None:
        self.kept = Thinned()
        self._seconds: dict[int, float] = {}
        self._total = 0.0
        self._waiting: list[dict[str, Any]] = []

    def look(self) -> tuple[bool, list[Row]]:
        """Whether the rows begin anew (all are in `kept.rows`), and those that are new."""
        anew, lines = self._metrics.read()
        timed_anew, timings = self._timings.read()
        if anew or timed_anew:  # both are written anew together, and a round must not be lost between them
            self._begin()
            self._metrics, self._timings = self._metrics.again(), self._timings.again()
            (_, lines), (_, timings) = self._metrics.read(), self._timings.read()
        for line in timings:
            parts = (value for key, value in line.items() if key.startswith("seconds_") and isinstance(value, float))
            self._total += sum(parts)
            self._seconds[line["round"]] = self._total
        # The timings of a round are written after its metrics: a round waits for them until the next look.
        ready = [line for line in (*self._waiting, *lines) if line["round"] in self._seconds]
        ready += [line for line in self._waiting if line["round"] not in self._seconds]
        self._waiting = [line for line in lines if line["round"] not in self._seconds]
        dropped, new = self.kept.add([self._row(line) for line in sorted(ready, key=lambda line: int(line["round"]))])
        return dropped or anew or timed_anew, new

    def _row(self, line: dict[str, Any]) -> tuple[bool, Row]:
        found = {**line, "seconds": self._seconds.pop(line["round"], None)}
        for key in ("bytes", "gradients"):
            found[key] = line.get(f"{key}_total")
        row = [number(found.get(key)) for key in COLUMNS]
        return any(line.get(key) is not None for key in EVALUATED), row


def number(value: Any) -> float | None:
    """A finite number to six digits; None for anything else that a file may hold."""
    return short(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
