"""Letters to send, on disk before they are sent: a process that is killed finds them again.

The letter of a gossip step is one file for all receivers. Mass has one file for each receiver: the sum of all shares
that it may not have yet.
"""

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path

from gossamer.methods import Message
from gossamer.peers.store import letters
from gossamer.peers.store.letters import Letter
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.runs.files import make_folder


class Outbox:
    """The outbox of a peer. `sync`: files are flushed to disk, to survive a power cut."""

    def __init__(self, folder: Path, sync: bool) -> None:
        self._folder, self._sync = folder, sync
        make_folder(folder)

    async def write_letter(self, header: wire.Header, message: Message) -> Path:
        """Write the letter of a gossip step."""
        return await self._write(self.letter_path(header.step), header, message)

    async def write_parcel(self, receiver: int, header: wire.Header, total: Message) -> Path:
        """Write the mass for one receiver; it replaces the parcel before it, which it contains."""
        return await self._write(self.parcel_path(receiver), header, total)

    def letter_path(self, step: int) -> Path:
        """The file of a gossip step's letter."""
        return self._folder / f"{step}.letter"

    def parcel_path(self, receiver: int) -> Path:
        """The file of the mass for a receiver."""
        return self._folder / f"{receiver}.mass"

    async def _write(self, path: Path, header: wire.Header, message: Message) -> Path:
        await asyncio.to_thread(letters.write, path, header, message, self._sync)
        return path

    def letters(self) -> list[tuple[int, Path]]:
        """The letters, with their gossip steps in order."""
        return sorted((int(path.stem), path) for path in self._folder.glob("*.letter"))

    def parcels(self) -> Iterator[tuple[int, Path]]:
        """The parcels of mass, with their receivers."""
        return ((int(path.stem), path) for path in self._folder.glob("*.mass"))

    def sign(self, path: Path, sender: wire.Header) -> None:
        """Replace what a letter that an earlier process wrote says about its sender: process, version, code."""
        letter = Letter(path)
        header = wire.Header()
        header.CopyFrom(letter.header)
        header.MergeFrom(sender)
        if header != letter.header:
            letters.write(path, header, letter.message, self._sync)

    def drop(self, before: int, keep: Collection[int]) -> None:
        """Delete the letters of steps before this one, except those to keep."""
        for step, path in self.letters():
            if step < before and step not in keep:
                path.unlink(missing_ok=True)
