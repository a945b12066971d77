"""What a peer has done, on disk: the trace of what it mixed, and its state after the last whole round.

The trace is written before what follows from it is told to anybody. So a peer that is killed in the middle of a round
does that round again from the same state with the same letters, and says the same things.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from gossamer.errors import GossamerError, RunFolderError
from gossamer.peers.identity.kit import Kit
from gossamer.peers.store.letters import Damaged
from gossamer.runs.checkpoint import checkpoint_paths, drop_old, load_tensors, save_tensors
from gossamer.runs.files import append_line, make_folder, write_text
from gossamer.runs.folder import EXPERIMENT

Line = dict[str, Any]


class TwoProcesses(GossamerError):
    """Another process speaks for this peer."""


def take_folder(folder: Path, kit: Kit) -> FileLock:
    """Make a peer's folder this process's own for as long as the lock is held."""
    make_folder(folder)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TwoProcesses(f"{folder}: another process runs this peer. One kit is for one process.") from None
    if not (folder / EXPERIMENT).exists():
        write_text(folder / "environment.json", json.dumps({"engine": {"peer": kit.name}}) + "\n")
        write_text(folder / EXPERIMENT, kit.roster.experiment.to_toml())
    return lock


def next_life(folder: Path) -> int:
    """How often this peer has been started, this time included."""
    path = folder / "lives"
    number = int(path.read_text()) + 1 if path.exists() else 1
    write_text(path, str(number))
    return number


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint whose names begin like this, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


class Journal:
    """The trace and the checkpoints of a peer, as they are in its folder; nothing is written before it is begun."""

    def __init__(self, folder: Path) -> None:
        self._trace = folder / "trace.jsonl"
        self._checkpoints = folder / "checkpoints"
        text = self._trace.read_text(encoding="utf-8") if self._trace.exists() else ""
        #: Whether the trace ends with a whole line: a kill may cut the last one short, which then does not count.
        self.whole = text.endswith("\n") or not text
        self.lines: list[Line] = [self._read(number, line) for number, line in enumerate(text.split("\n")[:-1], 1)]
        self._mixed = {line["step"]: line for line in self.lines if "step" in line}
        #: Where the peer went on after an absence, by the round that it had come back to.
        self.skips: dict[int, int] = dict(line["skip"] for line in self.lines if "skip" in line)
        #: Whose share of the mass was held back, by the gossip step.
        self.holds: dict[int, list[int]] = dict(line["hold"] for line in self.lines if "hold" in line)

    def _read(self, number: int, line: str) -> Line:
        try:
            found: Line = json.loads(line)
        except ValueError:
            raise Damaged(f"{self._trace}: line {number} is damaged") from None
        return found

    def begin(self) -> None:
        """Make ready for writing."""
        make_folder(self._checkpoints)
        if not self.whole:
            write_text(self._trace, "".join(json.dumps(line) + "\n" for line in self.lines))

    def mixed(self, step: int) -> Line | None:
        """What was mixed at a gossip step, if that was written down by an earlier process."""
        return self._mixed.get(step)

    @property
    def ends(self) -> int:
        """The gossip step after the last that was written down."""
        return max(self._mixed, default=-1) + 1

    def write(self, line: Line) -> None:
        """Write a line of the trace."""
        append_line(self._trace, json.dumps(line))
        self.lines.append(line)

    def commit(self, round: int, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Keep the state after `round` rounds."""
        path = self._checkpoints / f"round-{round:06d}.safetensors"
        save_tensors(path, dict(tensors), {"round": str(round), "about": json.dumps(about)})
        drop_old(self._checkpoints)

    def last(self, digest: str) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """The newest state: its round, its tensors and what is said about them."""
        for path, *_ in checkpoint_paths(self._checkpoints)[:1]:  # an older one is of no use: letters are gone
            try:
                about, tensors = load_tensors(path)
            except RunFolderError as error:
                raise Damaged(str(error)) from None
            said = json.loads(about["about"])
            if said["network"] != digest:
                raise RunFolderError(
                    f"{path}: is the state of another network than that of this kit. Start with another --out, or "
                    "with the kit that this run was begun with."
                )
            return int(about["round"]), tensors, said
        return None
