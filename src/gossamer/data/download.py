"""Fetch published files: resumed where they were cut off, verified, and put in place only when whole.

A file is written to `<name>.part` beside its destination. Whatever happens, a name without `.part` is a whole file.
"""

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from gossamer.errors import DataError

ATTEMPTS = 5  # for each address; a connection that breaks is taken up again where it broke
TIMEOUT = httpx.Timeout(30.0, connect=10.0)
CHUNK = 1 << 20

Advance = Callable[[int, int | None], None]  # bytes so far, bytes in all where they are known


@dataclass(frozen=True)
class File:
    """A published file: its path below the folder of its data set, its exact size, and its digest ("sha256:…")."""

    name: str
    size: int | None = None
    digest: str | None = None


def flaw(path: Path, file: File) -> str | None:
    """What is wrong with the copy of `file` at `path`, in words, or None. Sizes first: they need no reading."""
    found = path.stat().st_size
    if file.size is not None and found != file.size:
        kind = "truncated" if found < file.size else "too long"
        return f"{kind}: {found:,} of {file.size:,} bytes"
    if file.digest is not None:
        algorithm, _, expected = file.digest.partition(":")
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, algorithm).hexdigest()
        if digest != expected:
            return f"other content than the published file: {algorithm} {digest}, expected {expected}"
    return None


def fetch(file: File, urls: Sequence[str], destination: Path, advance: Advance | None = None) -> None:
    """Download `file` from the first of `urls` that has it whole; a `DataError` says what each of them answered."""
    part = destination.with_name(destination.name + ".part")
    answers = []
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with httpx.Client(follow_redirects=True, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}) as client:
            for url in urls:
                answer = _fetch_from(client, url, file, part, advance)
                if answer is None:
                    os.replace(part, destination)
                    return
                answers.append(f"{url}: {answer}")
    except OSError as error:
        raise DataError(f"{error.filename or part}: cannot be written ({error.strerror}).") from None
    raise DataError("; ".join(answers) or "no address is known to download it from")


def _fetch_from(client: httpx.Client, url: str, file: File, part: Path, advance: Advance | None) -> str | None:
    """Complete `part` from one address. None when it is whole and verified, otherwise why not."""
    answer: str | None = None
    inherited = part.exists()  # the start of it may be from an earlier run, of which nothing is known
    for _ in range(ATTEMPTS):
        before = _size(part)
        try:
            refusal = _receive(client, url, file, part, advance)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            answer = str(error) or type(error).__name__
            if _size(part) > before:
                continue  # it broke off on the way
            return answer
        if refusal is not None:
            return refusal
        answer = flaw(part, file)
        if answer is None:
            return None
        part.unlink()  # appending to wrong bytes cannot make them right
        if not inherited:
            return answer
        inherited = False
    return answer


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(client: httpx.Client, url: str, file: File, part: Path, advance: Advance | None) -> str | None:
    """Append to `part` what is missing of it; the answer of a server that does not have it."""
    have = _size(part)
    if have and have == file.size:
        return None  # complete, but the last run ended before it was verified
    ranged = {"Range": f"bytes={have}-"} if have else {}
    with client.stream("GET", url, headers=ranged) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            part.unlink()
            return _receive(client, url, file, part, advance)
        if response.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            return f"{response.status_code} {response.reason_phrase}"
        # A server may ignore the range and send everything again.
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        size = file.size if file.size is not None else have + int(length) if length else None
        with part.open("ab" if resumed else "wb") as content:
            # Raw: these files are compressed themselves and must not be unpacked on the way. In pieces as they come:
            # what is collected into larger ones is lost when the connection breaks.
            for piece in response.iter_raw():
                content.write(piece)
                have += len(piece)
                if advance is not None:
                    advance(have, size)
    return None


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Unpack the named members of a tar.gz archive, each to its path, and nothing else of it."""
    missing = dict(members)
    try:
        # In the archive's own order: going back in a compressed stream is reading it again from its start.
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name not in missing or not member.isfile():
                    continue
                destination = missing.pop(member.name)
                part = destination.with_name(destination.name + ".part")
                # Only the content is taken from the archive: no path, link, owner or mode in it has any effect.
                with tar.extractfile(member) as content, part.open("wb") as copy:  # type: ignore[union-attr]  # a file
                    shutil.copyfileobj(content, copy, CHUNK)
                os.replace(part, destination)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: damaged archive ({error}).") from None
    except OSError as error:
        raise DataError(f"{error.filename or archive.parent}: cannot be written ({error.strerror}).") from None
    if missing:
        raise DataError(f"{archive}: not the expected archive: there is no {', '.join(missing)} in it.")
