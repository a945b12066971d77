"""A letter as a file: its header, then the bytes of its tensors.

Letters lie in the outbox before they are sent, and in the inbox before they are acknowledged: a peer that is killed
finds both again. Tensors are mapped from the file, so that a large letter takes no memory of its own.
"""

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import torch
from google.protobuf.message import DecodeError

from gossamer.methods import Message
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.runs.files import cannot_write

#: Bytes of a letter that are sent in one piece.
CHUNK = 1 << 19
DIGEST_BYTES = 32
#: The tensors start at a multiple of so many bytes, so that they can be mapped.
ALIGNED = 64
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)}  # fmt: skip


class DamagedFile(ValueError):
    """A letter, a line of a trace or a checkpoint is not as it was written."""


def describe(message: Message) -> list[wire.Tensor]:
    """Name, type and shape of a message's tensors, in the order of their bytes."""
    return [
        wire.Tensor(name=name, dtype=str(value.dtype).removeprefix("torch."), shape=list(value.shape))
        for name, value in sorted(message.items())
    ]


def size_of(tensors: list[wire.Tensor]) -> int:
    """Bytes of the tensors of this description."""
    return sum(DTYPES[each.dtype].itemsize * torch.Size(each.shape).numel() for each in tensors)


def write(path: Path, header: wire.Header, message: Message, sync: bool = False) -> None:
    """Write a letter, and fill in the fields of its header that describe the tensors."""
    described = describe(message)
    del header.tensors[:]
    header.tensors.extend(described)
    header.bytes = size_of(described)
    pieces = [_bytes_of(value) for _, value in sorted(message.items())]
    hashed = hashlib.sha256()  # supported by processor instructions: half the time of BLAKE2
    for piece in pieces:
        hashed.update(piece)
    header.digest = hashed.digest()
    with Draft(path, header) as draft:
        for piece in pieces:
            draft.add(piece)
        draft.keep(sync)


class Draft:
    """A letter that is being written, under another name until `keep`; otherwise deleted."""

    def __init__(self, path: Path, header: wire.Header) -> None:
        self._path = path
        #: Its file until then.
        self.aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
        self._file: BinaryIO | None = None
        self._header = header

    def __enter__(self) -> "Draft":
        try:
            self._file = self.aside.open("wb", buffering=0)
            head = self._header.SerializeToString()
            start = len(head).to_bytes(4, "little") + head
            self._write(start + bytes(-len(start) % ALIGNED))
        except OSError as error:
            self.__exit__()
            raise cannot_write(self._path, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        with suppress(OSError):
            self.aside.unlink()

    def add(self, piece: bytes | memoryview) -> None:
        """Write the next bytes."""
        try:
            self._write(piece)
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def keep(self, sync: bool = False) -> None:
        """Give the complete letter its name."""
        assert self._file is not None
        try:
            if sync:
                os.fsync(self._file.fileno())
            self.aside.replace(self._path)
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def _write(self, piece: bytes | memoryview) -> None:
        assert self._file is not None
        left = memoryview(piece)
        while left:
            left = left[self._file.write(left) :]


class Letter:
    """A letter on disk."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            length = int.from_bytes(self._bytes[:4], "little")
            self.header = wire.Header.FromString(self._bytes[4 : 4 + length])
            self._start = 4 + length + -(4 + length) % ALIGNED
            described = size_of(list(self.header.tensors))
            whole = self._start + self.header.bytes == len(self._bytes) and described == self.header.bytes
        except (OSError, ValueError, KeyError, DecodeError) as error:
            raise DamagedFile(f"{path}: {error}") from error
        if not whole:
            raise DamagedFile(f"{path}: is cut short")
        self.path = path

    def verify(self) -> None:
        """Raise `DamagedFile` if the bytes of the tensors are not those that were written."""
        hashed = hashlib.sha256()
        for chunk in self.chunks():
            hashed.update(chunk)
        if hashed.digest() != self.header.digest:
            raise DamagedFile(f"{self.path}: does not match its digest")

    @property
    def message(self) -> Message:
        """Its tensors, mapped from the file."""
        found, at = {}, self._start
        for each in self.header.tensors:
            dtype, shape = DTYPES[each.dtype], torch.Size(each.shape)
            count = shape.numel()
            if count:
                found[each.name] = torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=at).view(shape)
            else:
                found[each.name] = torch.empty(shape, dtype=dtype)
            at += count * dtype.itemsize
        return found

    def chunks(self) -> Iterator[bytes]:
        """The bytes of the tensors, in pieces to be sent."""
        for start in range(self._start, len(self._bytes), CHUNK):
            yield self._bytes[start : start + CHUNK]
            self.release_memory()

    def release_memory(self) -> None:
        """Release the memory of the parts that were read; they are read from disk again when needed."""
        if hasattr(self._bytes, "madvise"):
            self._bytes.madvise(mmap.MADV_DONTNEED)


def _bytes_of(value: torch.Tensor) -> memoryview:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
