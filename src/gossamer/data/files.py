"""The files of a data set in the user's data directory: found, or downloaded, and verified once."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gossamer.data.download import extract, fetch, flaw
from gossamer.data.sources import File, Source
from gossamer.errors import DataError

VERIFIED = ".verified"


def data_directory(option: Path | str | None = None) -> Path:
    """The directory of all data sets: `option`, or GOSSAMER_DATA, or the user's cache."""
    chosen = option or os.environ.get("GOSSAMER_DATA")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("gossamer"))


def obtain(source: Source, directory: Path, progress: bool | None = None) -> list[Path]:
    """The verified files of `source` below `directory`, in the order of the source. Missing files are downloaded.

    GOSSAMER_MIRROR names a base address to try first: `<mirror>/<folder>/<file>`. `progress` shows a progress bar; the
    default is to show one on a terminal.
    """
    folder = directory / source.folder
    if _missing(source, folder):
        _complete(source, folder, progress)
    found = [place for place in _look(source, folder) if place is not None]
    _verify(folder, found)
    return [path for path, _ in found]


def _look(source: Source, folder: Path) -> list[tuple[Path, File] | None]:
    """Where each file is found; None for a missing one."""
    return [
        next(((folder / file.name, file) for file in places if (folder / file.name).is_file()), None)
        for places in source.files
    ]


def _missing(source: Source, folder: Path) -> list[File]:
    return [places[0] for places, found in zip(source.files, _look(source, folder), strict=True) if found is None]


def _complete(source: Source, folder: Path, progress: bool | None) -> None:
    """Download the missing files. Locked, since several workers of a run may do so at once."""
    if not _writable(folder):
        raise DataError(f"{_wanted(source, folder)} They cannot be downloaded to there: the folder is read-only.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire()
    except OSError as error:
        raise DataError(f"{_wanted(source, folder)} The folder cannot be written ({error.strerror}).") from None
    try:
        missing = _missing(source, folder)  # another process may have downloaded them meanwhile
        if missing and source.archive is not None:
            _unpack(source, source.archive, missing, folder, progress)
        else:
            _download(source, missing, folder, progress)
    finally:
        lock.release()


def _unpack(source: Source, archive: File, missing: Sequence[File], folder: Path, progress: bool | None) -> None:
    """Extract the missing files from the archive; an archive that was downloaded for this is removed afterwards."""
    path = folder / archive.name
    put_there = path.is_file()
    if put_there:
        _check(path, archive)
    else:
        _download(source, [archive], folder, progress)
    extract(path, {f"{source.archive_folder}/{file.name}": folder / file.name for file in missing})
    if not put_there:
        path.unlink()


def _download(source: Source, files: Sequence[File], folder: Path, progress: bool | None) -> None:
    own = os.environ.get("GOSSAMER_MIRROR")
    bases = [f"{own.rstrip('/')}/{source.folder}/"] if own else []
    with _bar(progress) as bar:
        for file in files:
            task = bar.add_task(f"{source.folder}/{file.name}", total=file.size)

            def advance(done: int, size: int | None, task: TaskID = task) -> None:
                bar.update(task, completed=done, total=size)

            try:
                fetch(file, [base + file.name for base in [*bases, *source.mirrors]], folder / file.name, advance)
            except DataError as error:
                raise DataError(f"{_wanted(source, folder)} The download failed: {error}") from None


def _wanted(source: Source, folder: Path) -> str:
    """The beginning of an error message: the missing files, and where to put them by hand."""
    names = ", ".join(file.name for file in _missing(source, folder))
    names += f" (or {source.archive.name}, which has them all)" if source.archive else ""
    return f"{source.folder}: files are missing. Put into {folder}: {names}. They come from {source.page}."


@contextmanager
def _bar(progress: bool | None) -> Iterator[Progress]:
    console = Console(stderr=True)
    shown = console.is_terminal if progress is None else progress
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not shown, transient=console.is_terminal) as bar:
        yield bar


def _verify(folder: Path, files: Sequence[tuple[Path, File]]) -> None:
    """Check sizes and digests. A verified file is checked again only if its size or modification time changes."""
    memory = folder / VERIFIED
    known = _remembered(memory)
    marks: dict[str, list[object]] = {}
    for path, file in files:
        status = path.stat()
        mark: list[object] = [status.st_size, status.st_mtime_ns, file.digest]
        if known.get(file.name) != mark:
            _check(path, file)
        marks[file.name] = mark
    if not marks.items() <= known.items():
        _remember(memory, {**known, **marks})


def _check(path: Path, file: File) -> None:
    try:
        problem = flaw(path, file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    if problem:
        raise DataError(f"{path}: {problem}. Delete it to download it again, or put a whole copy there.")


def _remembered(memory: Path) -> dict[str, object]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(memory: Path, marks: dict[str, object]) -> None:
    if not _writable(memory.parent):
        return  # the next run verifies again
    draft = memory.with_name(f"{VERIFIED}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(marks, indent=1), encoding="utf-8")
        os.replace(draft, memory)
    except OSError:
        draft.unlink(missing_ok=True)


def _writable(folder: Path) -> bool:
    """Whether files may be put into `folder`, or into the nearest folder above it that exists.

    A folder marked read-only is respected even for a superuser.
    """
    nearest = next(place for place in [folder, *folder.absolute().parents] if place.exists())
    return bool(nearest.stat().st_mode & 0o222) and os.access(nearest, os.W_OK)
