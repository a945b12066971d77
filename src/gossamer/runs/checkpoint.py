"""Checkpoints: every client's state after a round, in a safetensors file that can tell whether it is whole."""

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gossamer.errors import RunFolderError
from gossamer.runs.files import replace_file

KEEP = 2
"""Checkpoints kept: the newest, and the one before it in case the newest turns out damaged."""


class Damaged(RunFolderError):
    """A checkpoint that cannot be used, with the reason."""


class Checkpoint(NamedTuple):
    """The state of all clients after `round` rounds, of the experiment with this digest."""

    round: int
    experiment: str
    state: dict[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint whole, then drop the ones that are no longer needed."""
    path = folder / f"round-{checkpoint.round:06d}.safetensors"
    tensors = {name: rows.detach().cpu().contiguous() for name, rows in checkpoint.state.items()}
    save_tensors(path, tensors, {"round": str(checkpoint.round), "experiment": checkpoint.experiment})
    for old in checkpoint_paths(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def save_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """A safetensors file that carries the digest of its own contents."""
    metadata = {**about, "digest": _digest(about, tensors)}

    def write(aside: Path) -> None:
        try:
            save_file(tensors, aside, metadata=metadata)
            aside.chmod(0o644)  # the library makes files that only their owner may read
        except SafetensorError as error:  # how the library reports a full disk: "... (os error 28)"
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(0, str(error)) from error

    replace_file(path, write)


def load_checkpoint(path: Path, device: torch.device) -> Checkpoint:
    """Read a checkpoint back; one that is not whole raises `Damaged`."""
    about, tensors = load_tensors(path)
    try:
        round, experiment = int(about["round"]), about["experiment"]
    except (KeyError, ValueError):
        raise Damaged(f"{path}: damaged: it does not say which round it holds") from None
    return Checkpoint(round, experiment, {name: value.to(device) for name, value in tensors.items()})


def load_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and tensors of a file written by `save_tensors`, after checking its digest."""
    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path}: damaged: {error}") from None
    if about.pop("digest", None) != _digest(about, tensors):
        raise Damaged(f"{path}: damaged: its contents do not match its digest")
    return about, tensors


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def _digest(about: dict[str, str], tensors: dict[str, Tensor]) -> str:
    hasher = hashlib.blake2b(repr(sorted(about.items())).encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        hasher.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()
