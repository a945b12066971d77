"""Checkpoints: every client's state after a round, in safetensors files that carry a digest of their contents.

Each worker writes one shard, the rows of its own clients. A checkpoint is whole if its shards cover all clients; it can
be read by another number of workers than wrote it.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gossamer.errors import RunFolderError
from gossamer.runs.files import replace_file

#: Checkpoints kept: the newest, and the one before it in case the newest turns out damaged.
KEEP = 2

#: Rows are hashed and read in pieces of about this many bytes, so that a large file is not held in memory.
PIECE = 64 << 20

#: The names of safetensors for the types that a state may have.
DTYPES = {
    torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class DamagedCheckpoint(RunFolderError):
    """A checkpoint cannot be used; the message has the reason."""


class CheckpointShard(NamedTuple):
    """One file of a checkpoint: the state of some clients after a round."""

    path: Path
    round: int
    #: The digest of the experiment.
    experiment: str
    clients: range


def shard_path(folder: Path, round: int, clients: range, total: int) -> Path:
    """The file of the clients' rows of one worker."""
    some = "" if len(clients) == total else f"-clients-{clients.start}-{clients.stop - 1}"
    return folder / f"round-{round:06d}{some}.safetensors"


def save_shard(folder: Path, round: int, experiment: str, clients: range, total: int, state: dict[str, Tensor]) -> Path:
    """Write the state of some clients."""
    path = shard_path(folder, round, clients, total)
    about = {"round": str(round), "experiment": experiment, "clients": f"{clients.start}:{clients.stop}"}
    save_tensors(path, state, about)
    return path


def drop_round(folder: Path, round: int) -> None:
    """Delete the shards of a round from an earlier attempt, which may have had another number of workers."""
    for path in folder.glob(f"round-{round:06d}*.safetensors"):
        path.unlink(missing_ok=True)


def drop_old(folder: Path) -> None:
    """Delete all but the newest checkpoints."""
    for paths in checkpoint_paths(folder)[KEEP:]:
        for path in paths:
            path.unlink(missing_ok=True)


def checkpoint_paths(folder: Path) -> list[list[Path]]:
    """The files of each checkpoint in a folder, the newest checkpoint first."""
    rounds: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("round-*.safetensors")):
        rounds.setdefault(path.name[: len("round-000000")], []).append(path)
    return [rounds[name] for name in sorted(rounds, reverse=True)]


def read_shards(paths: list[Path], total: int) -> list[CheckpointShard]:
    """The shards of one checkpoint; raises `DamagedCheckpoint` unless they cover every client once."""
    shards = sorted((_read_head(path) for path in paths), key=lambda shard: shard.clients.start)
    covered = 0
    for shard in shards:
        if shard.clients.start != covered:
            break
        covered = shard.clients.stop
    if covered != total:
        raise DamagedCheckpoint(f"{paths[0]}: damaged: of its round, the state of client {covered} is missing")
    return shards


def load_rows(shards: list[CheckpointShard], own: range, state: dict[str, Tensor]) -> None:
    """Load the rows of some clients. The digest of each file that holds some of them is checked first."""
    for shard in shards:
        first, last = max(shard.clients.start, own.start), min(shard.clients.stop, own.stop)
        if first >= last:
            continue
        with _opened(shard.path) as file:
            check_digest(shard.path, file)
            for name, rows in state.items():
                stored = file.get_slice(name)
                for start, stop in _pieces(first, last, rows[0].numel() * rows.element_size()):
                    rows[start - own.start : stop - own.start] = stored[
                        start - shard.clients.start : stop - shard.clients.start
                    ].to(rows.device)


def shapes_in(shard: CheckpointShard) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor of one client in a shard."""
    with _opened(shard.path) as file:
        return {name: (tuple(file.get_slice(name).get_shape()[1:]), file.get_slice(name).get_dtype())
                for name in file.keys()}  # noqa: SIM118  # not a mapping  # fmt: skip


def save_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """Write a safetensors file with the digest of its contents.

    It is written straight from the tensors: the library's own writer first copies everything in memory.
    """
    ready = {name: value.detach().contiguous() for name, value in sorted(tensors.items())}
    header: dict[str, Any] = {"__metadata__": {**about, "digest": _digest(about, ready)}}
    offset = 0
    for name, value in ready.items():
        size = value.numel() * value.element_size()
        header[name] = {
            "dtype": DTYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)

    def write(aside: Path) -> None:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for value in ready.values():
                for piece in _bytes_of(value):
                    file.write(piece)

    replace_file(path, write)


def load_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and tensors of a file written by `save_tensors`, after checking its digest."""
    with _opened(path) as file:
        check_digest(path, file)
        about = dict(file.metadata() or {})
        about.pop("digest", None)
        return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping


def check_digest(path: Path, file: Any) -> None:
    """Raise `DamagedCheckpoint` if the contents of a file do not match its digest."""
    about = dict(file.metadata() or {})
    said = about.pop("digest", None)
    hasher = _hasher(about)
    for name in sorted(file.keys()):
        stored = file.get_slice(name)
        shape = tuple(stored.get_shape())
        whole = file.get_tensor(name) if not shape or not all(shape) else None
        first = whole if whole is not None else stored[0:1]
        hasher.update(f"{name} {first.dtype} {shape}".encode())
        if whole is not None:
            hasher.update(whole.reshape(-1).view(torch.uint8).numpy().data)
            continue
        for start, stop in _pieces(0, shape[0], first.numel() * first.element_size()):
            hasher.update(stored[start:stop].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    if said != hasher.hexdigest():
        raise DamagedCheckpoint(f"{path}: damaged: its contents do not match its digest")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; an error while it is read becomes a `DamagedCheckpoint`."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpoint(f"{path}: damaged: {error}") from None


def _read_head(path: Path) -> CheckpointShard:
    with _opened(path) as file:
        about = dict(file.metadata() or {})
        try:
            start, stop = re.fullmatch(r"(\d+):(\d+)", about["clients"]).groups()  # type: ignore[union-attr]
            return CheckpointShard(path, int(about["round"]), about["experiment"], range(int(start), int(stop)))
        except (KeyError, ValueError, AttributeError):
            raise DamagedCheckpoint(
                f"{path}: damaged: it does not say which round it holds, and of which clients"
            ) from None


def _digest(about: dict[str, str], tensors: dict[str, Tensor]) -> str:
    hasher = _hasher(about)
    for name in sorted(tensors):
        value = tensors[name]
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        for piece in _bytes_of(value):
            hasher.update(piece)
    return str(hasher.hexdigest())


def _hasher(about: dict[str, str]) -> Any:
    return hashlib.blake2b(repr(sorted(about.items())).encode(), digest_size=16)


def _bytes_of(value: Tensor) -> Iterator[memoryview]:
    """The bytes of a contiguous tensor on any device, in pieces."""
    flat = value.reshape(-1)
    length = max(1, PIECE // value.element_size())
    for start in range(0, flat.numel(), length):
        yield flat[start : start + length].cpu().view(torch.uint8).numpy().data


def _pieces(first: int, last: int, row: int) -> Iterator[tuple[int, int]]:
    length = max(1, PIECE // max(1, row))
    for start in range(first, last, length):
        yield start, min(start + length, last)
