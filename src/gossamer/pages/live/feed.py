"""What a page is told: values by name and rows that grow, encoded once for all tabs."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

#: Messages that are kept for tabs that are behind; those further behind get the whole again.
KEPT = 32
#: Seconds after which a silent stream says that it is there, so that a tab that has gone is noticed.
STILL_THERE = 10.0

Row = list[Any]


class Feed:
    """Values and rows with their changes, each change a message that all tabs share."""

    def __init__(self) -> None:
        #: How many messages there have been.
        self.number = 0
        self._values: dict[str, Any] = {}
        self._rows: dict[str, list[Row]] = {}
        self._set: dict[str, Any] = {}
        self._add: dict[str, list[Row]] = {}
        self._gone: list[str] = []
        self._messages: deque[bytes] = deque(maxlen=KEPT)
        self._whole: tuple[int, bytes] = (-1, b"")

    def put(self, name: str, value: Any) -> None:
        """Set a value; nothing is told if it is as it was."""
        if name not in self._values or self._values[name] != value:
            self._values[name] = self._set[name] = value
            if name in self._gone:
                self._gone.remove(name)

    def rows(self, name: str, rows: list[Row]) -> None:
        """Set all rows of a name, as when they begin anew or are thinned."""
        self._rows[name] = list(rows)
        self._add.pop(name, None)
        self._set[name] = self._rows[name].copy()
        if name in self._gone:
            self._gone.remove(name)

    def add(self, name: str, rows: list[Row]) -> None:
        """Append rows."""
        if name not in self._rows:
            self.rows(name, rows)
        elif rows:
            self._rows[name] += rows
            (self._set if name in self._set else self._add).setdefault(name, []).extend(rows)

    def keep_last(self, name: str, most: int) -> None:
        """Forget all but the last rows of a name; a tab that has seen the others may keep them."""
        del self._rows[name][:-most]

    def drop(self, name: str) -> None:
        """Forget a name."""
        if name in self._values or name in self._rows:
            self._values.pop(name, None)
            self._rows.pop(name, None)
            self._set.pop(name, None)
            self._add.pop(name, None)
            self._gone.append(name)

    def names(self) -> list[str]:
        """All names."""
        return [*self._values, *self._rows]

    def flush(self) -> bool:
        """Make a message of what has changed; False if nothing has."""
        if not (self._set or self._add or self._gone):
            return False
        self._messages.append(encoded({"set": self._set, "add": self._add, "gone": self._gone}))
        self.number += 1
        self._set, self._add, self._gone = {}, {}, []
        return True

    def since(self, number: int) -> Sequence[bytes]:
        """The messages after the first `number`, or the whole for a tab that is new or too far behind."""
        behind = self.number - number
        if number < 0 or behind > len(self._messages):
            if self._whole[0] != self.number:
                self._whole = (self.number, encoded({"all": True, "set": {**self._values, **self._rows}}))
            return [self._whole[1]]
        return list(self._messages)[len(self._messages) - behind :]


def encoded(message: dict[str, Any]) -> bytes:
    """A message as a server-sent event."""
    return b"data: " + json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


class Bell:
    """Wakes all streams at once."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.closed = False

    def ring(self) -> None:
        """Wake everyone who waits."""
        rung, self._next = self._next, asyncio.Event()
        rung.set()

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self.ring()

    async def wait(self) -> bool:
        """Wait for a ring; False after a while without."""
        try:
            async with asyncio.timeout(STILL_THERE):
                await self._next.wait()
        except TimeoutError:
            return False
        return True


async def stream(finds: Sequence[Callable[[], Feed]], bell: Bell) -> AsyncIterator[bytes]:
    """The events of one tab, those of the second feed under a name of their own.

    What a slow tab has not taken yet waits in the feeds, which are there once for all.
    """
    known: list[Feed | None] = [None] * len(finds)
    seen = [-1] * len(finds)
    while not bell.closed:
        told = False
        for place, find in enumerate(finds):
            feed = find()
            if feed is not known[place]:
                known[place], seen[place] = feed, -1
            if seen[place] == feed.number or not feed.number:
                continue
            messages, seen[place], told = feed.since(seen[place]), feed.number, True
            for message in messages:
                yield (b"event: shown\n" if place else b"") + message
        if not told and not await bell.wait():
            yield b": still there\n\n"
