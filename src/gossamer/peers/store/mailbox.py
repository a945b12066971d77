"""Letters that have arrived. Each is on disk before it is acknowledged."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gossamer.peers.store.letters import DamagedFile, Letter
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.runs.files import make_folder

NAMES: dict[int, str] = {wire.LETTER: "letter", wire.MASS: "mass"}


class Mailbox:
    """The inbox of a peer: one file for each letter, named by sender, gossip step and kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)
        for draft in folder.glob(".*.part"):  # incomplete when an earlier process was killed
            draft.unlink(missing_ok=True)
        self._changed = asyncio.Condition()
        self._here: dict[int, dict[int, set[int]]] = {kind: {} for kind in NAMES}  # kind -> sender -> steps
        #: When the last letter of each sender arrived, on the monotonic clock.
        self.last_arrival: dict[int, float] = {}
        #: Letters that were damaged while no process ran: kind, file and problem of each.
        self.damaged: list[tuple[int, Path, str]] = []
        for kind, name in NAMES.items():
            for path in sorted(folder.glob(f"*.{name}")):
                try:
                    sender, step = (int(number) for number in path.stem.split("at"))
                    Letter(path).verify()
                except DamagedFile as error:
                    self.damaged.append((kind, path, str(error)))
                except ValueError:  # not a letter's name: another program's file
                    continue
                else:
                    self._here[kind].setdefault(sender, set()).add(step)

    def path(self, kind: int, sender: int, step: int) -> Path:
        """The file of a letter."""
        return self.folder / f"{sender}at{step}.{NAMES[kind]}"

    def has(self, kind: int, sender: int, step: int) -> bool:
        """Whether a letter has arrived."""
        return step in self._here[kind].get(sender, ())

    def steps(self, kind: int, sender: int) -> list[int]:
        """The gossip steps of a sender's letters, in order."""
        return sorted(self._here[kind].get(sender, ()))

    def senders(self, kind: int) -> list[int]:
        """The senders of the letters that are here."""
        return sorted(sender for sender, steps in self._here[kind].items() if steps)

    def letter(self, kind: int, sender: int, step: int) -> Letter:
        """A letter that has arrived."""
        return Letter(self.path(kind, sender, step))

    async def arrived(self, kind: int, sender: int, step: int) -> None:
        """Record a letter whose file is complete."""
        # Recorded before the await: the next letter of this sender is checked against it.
        self._here[kind].setdefault(sender, set()).add(step)
        self.last_arrival[sender] = time.monotonic()
        await self.notify()

    async def notify(self) -> None:
        """Have all that wait check their condition again."""
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until `ready()` is true or the time is over; return whether it is true."""
        async with self._changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait_for(ready)
        return ready()

    def drop(self, kind: int, before: int, sender: int | None = None) -> None:
        """Delete the letters of steps before this one, of all senders or of one."""
        for each in list(self._here[kind]) if sender is None else [sender]:
            for step in [step for step in self._here[kind].get(each, ()) if step < before]:
                self._here[kind][each].discard(step)
                self.path(kind, each, step).unlink(missing_ok=True)
