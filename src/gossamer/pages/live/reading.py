"""Files of runs that may be written at this moment, read as they grow. Nothing here writes, locks or follows a link."""

import json
import os
import stat
from pathlib import Path
from typing import Any

#: The most bytes that are read of a file at a time; of a longer one the rest follows at the next look.
PIECE = 4 << 20
#: The most bytes of a small file, such as an experiment.
SMALL = 1 << 20


class NotPlain(OSError):
    """A link, a pipe or another thing that is no ordinary file."""


def open_plain(path: Path) -> int:
    """A descriptor of an ordinary file: a symbolic link might lead out of the folder, a pipe might block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain(f"{path}: is no ordinary file")
    return descriptor


def small_text(path: Path) -> str:
    """The text of a small file."""
    descriptor = open_plain(path)
    try:
        return os.read(descriptor, SMALL).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is no text") from None
    finally:
        os.close(descriptor)


def last_lines(path: Path, piece: int = 64 << 10) -> list[dict[str, Any]]:
    """The last whole lines of a JSON-lines file, in their order; none of a file that is not there."""
    try:
        descriptor = open_plain(path)
    except OSError:
        return []
    try:
        size = os.fstat(descriptor).st_size
        start = max(0, size - piece)
        text = os.pread(descriptor, size - start, start)
    finally:
        os.close(descriptor)
    whole = text[: text.rfind(b"\n") + 1].splitlines()
    return [line for line in map(parsed, whole[1:] if start else whole) if line is not None]


def parsed(line: bytes) -> dict[str, Any] | None:
    """A line of a run, which has the number of its round; None if it is damaged."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) and isinstance(values.get("round"), int) else None


class Tail:
    """The lines that are appended to a JSON-lines file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._at = 0

    def again(self) -> "Tail":
        """The same file from its start."""
        return Tail(self._path)

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the file has begun anew, as that of a run that was resumed, and its new whole lines."""
        try:
            descriptor = open_plain(self._path)
        except OSError:
            anew, self._file, self._at = self._at > 0, None, 0
            return anew, []
        try:
            about = os.fstat(descriptor)
            file = (about.st_dev, about.st_ino)
            anew = self._at > 0 and (file != self._file or about.st_size < self._at)
            if anew or file != self._file:
                self._file, self._at = file, 0
            text = os.pread(descriptor, min(PIECE, about.st_size - self._at), self._at)
        finally:
            os.close(descriptor)
        whole = text.rfind(b"\n") + 1
        self._at += whole
        if not whole and len(text) == PIECE:  # a line that no run writes
            self._at += len(text)
        return anew, [line for line in map(parsed, text[:whole].splitlines()) if line is not None]


def held_locks() -> set[int] | None:
    """The inodes of the files of this machine that a process holds a lock on; None where the system does not say.

    To try a lock would be to take it for a moment, and a run that starts in that moment would be refused.
    """
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = set()
    for line in lines:
        fields = line.split()
        if "->" not in fields[:2] and len(fields) >= 6 and fields[1] == "FLOCK":
            inode = fields[5].rpartition(":")[2]
            if inode.isdigit():
                found.add(int(inode))
    return found
