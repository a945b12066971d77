"""Files that are written whole or not at all, also if the process is killed or the disk is full."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gossamer.errors import RunFolderError


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file beside `path`, sync it to disk, then rename it to `path`."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(aside)
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException as error:
        with suppress(OSError):  # it may not exist
            aside.unlink()
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def remove_asides(folder: Path) -> None:
    """Delete what a killed process has left beside the files that it was writing, in a folder and those in it."""
    for aside in folder.rglob(".*.part"):
        aside.unlink(missing_ok=True)


def straight(path: Path) -> Path:
    """A path without `..`: behind a folder that is still to be made it leads nowhere yet, and elsewhere later."""
    return path.resolve() if ".." in path.parts else path


def make_folder(path: Path) -> None:
    """Make a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""

    def write(aside: Path) -> None:
        aside.write_text(text, encoding="utf-8")

    replace_file(path, write)


def sync(path: Path) -> None:
    """Sync a file to disk."""
    try:
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from error


def append_line(path: Path, line: str) -> None:
    """Append one line to a file; on a full disk the file is left as it was."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                left = memoryview(line.encode() + b"\n")
                while left:
                    left = left[os.write(descriptor, left) :]
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """The message for a write that failed."""
    reason = error.strerror or str(error)
    return RunFolderError(f"{path}: cannot be written: {reason}. What was written before is kept.")
