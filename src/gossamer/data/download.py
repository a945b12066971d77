"""Downloads that are resumed after a broken connection, verified, and renamed only when complete.

A file is written to `<name>.part` beside its destination, so a name without `.part` is always a complete file.
"""

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from gossamer.data.sources import File
from gossamer.errors import DataError

#: Attempts for each address; each continues where the one before broke off.
ATTEMPTS = 5
TIMEOUT = httpx.Timeout(30.0, connect=10.0)
CHUNK = 1 << 20

#: Called with the bytes received so far and the total, if known.
Advance = Callable[[int, int | None], None]


def flaw(path: Path, file: File) -> str | None:
    """What is wrong with the copy of `file` at `path`; None if it is intact. The size is checked before the digest."""
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
    """Download `file` from the first of `urls` that has it intact; a `DataError` lists the answer of each."""
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
    """Complete `part` from one address. Returns None if it is complete and verified, else the reason."""
    answer: str | None = None
    inherited = part.exists()  # left by an earlier run, perhaps with wrong bytes
    for _ in range(ATTEMPTS):
        before = _size(part)
        try:
            refusal = _receive(client, url, file, part, advance)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            answer = str(error) or type(error).__name__
            if _size(part) > before:
                continue  # the connection broke: resume
            return answer
        if refusal is not None:
            return refusal
        answer = flaw(part, file)
        if answer is None:
            return None
        part.unlink()  # resuming cannot repair wrong bytes
        if not inherited:
            return answer
        inherited = False
    return answer


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(client: httpx.Client, url: str, file: File, part: Path, advance: Advance | None) -> str | None:
    """Append to `part` the bytes that it lacks. Returns the server's refusal, if any."""
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
            # Raw, since these files are compressed and must stay so. Unbuffered, since buffered bytes are lost when
            # the connection breaks.
            for piece in response.iter_raw():
                content.write(piece)
                have += len(piece)
                if advance is not None:
                    advance(have, size)
    return None


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Extract the named members of a tar.gz archive, each to its path, and nothing else."""
    missing = dict(members)
    try:
        # In the archive's order: seeking back in a compressed stream reads it again from the start.
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name not in missing or not member.isfile():
                    continue
                destination = missing.pop(member.name)
                part = destination.with_name(destination.name + ".part")
                # Only the content is used: no path, link, owner or mode in the archive has any effect.
                with tar.extractfile(member) as content, part.open("wb") as copy:  # type: ignore[union-attr]  # a file
                    shutil.copyfileobj(content, copy, CHUNK)
                os.replace(part, destination)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: damaged archive ({error}).") from None
    except OSError as error:
        raise DataError(f"{error.filename or archive.parent}: cannot be written ({error.strerror}).") from None
    if missing:
        raise DataError(f"{archive}: not the expected archive: there is no {', '.join(missing)} in it.")
