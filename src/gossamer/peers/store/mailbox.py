"""Letters that have arrived: on disk before they are acknowledged, and waited for by the round that needs them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gossamer.peers.store.letters import Damaged, Letter
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.runs.files import make_folder

NAMES: dict[int, str] = {wire.LETTER: "letter", wire.MASS: "mass"}


class Mailbox:
    """The inbox of a peer: one file for each letter, named by its kind, sender and gossip step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)
        for draft in folder.glob(".*.part"):  # what was under way when the process was killed
            draft.unlink(missing_ok=True)
        self._news = asyncio.Condition()
        self._here: dict[int, dict[int, set[int]]] = {kind: {} for kind in NAMES}  # kind -> sender -> steps
        #: When a sender was last heard, for those who wonder how late it is.
        self.came: dict[int, float] = {}
        for kind, name in NAMES.items():
            for path in folder.glob(f"*.{name}"):
                sender, step = (int(number) for number in path.stem.split("at"))
                try:
                    Letter(path)
                except Damaged:
                    path.unlink(missing_ok=True)
                else:
                    self._here[kind].setdefault(sender, set()).add(step)

    def place(self, kind: int, sender: int, step: int) -> Path:
        """Where a letter belongs."""
        return self.folder / f"{sender}at{step}.{NAMES[kind]}"

    def has(self, kind: int, sender: int, step: int) -> bool:
        """Whether a letter is here."""
        return step in self._here[kind].get(sender, ())

    def steps(self, kind: int, sender: int) -> list[int]:
        """The gossip steps of a sender's letters, in order."""
        return sorted(self._here[kind].get(sender, ()))

    def senders(self, kind: int) -> list[int]:
        """Those of whom letters are here."""
        return sorted(sender for sender, steps in self._here[kind].items() if steps)

    def letter(self, kind: int, sender: int, step: int) -> Letter:
        """A letter that is here."""
        return Letter(self.place(kind, sender, step))

    async def arrived(self, kind: int, sender: int, step: int) -> None:
        """A letter is in its place."""
        # Known at once, before those who wait are told: what comes next of this sender is judged by it.
        self._here[kind].setdefault(sender, set()).add(step)
        self.came[sender] = time.monotonic()
        await self.nudge()

    async def nudge(self) -> None:
        """Something changed that those who wait should look at."""
        async with self._news:
            self._news.notify_all()

    async def wait(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until `ready()`, or for so many seconds; whether it is."""
        async with self._news:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait_for(ready)
        return ready()

    def forget(self, kind: int, before: int, sender: int | None = None) -> None:
        """Drop letters of steps before this one, of all senders or of one."""
        for each in list(self._here[kind]) if sender is None else [sender]:
            for step in [step for step in self._here[kind].get(each, ()) if step < before]:
                self._here[kind][each].discard(step)
                self.place(kind, each, step).unlink(missing_ok=True)
