"""A peer's history on disk: the trace of the letters it mixed, and its state after the last complete round.

A line of the trace is written before anything that depends on it is sent. So a peer that is killed in the middle of a
round repeats it from the same state with the same letters, and sends the same messages.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from gossamer.errors import GossamerError, RunFolderError
from gossamer.peers.identity.code import different_parts
from gossamer.peers.identity.kit import Kit
from gossamer.peers.store.letters import DamagedFile
from gossamer.runs.checkpoint import checkpoint_paths, drop_old, load_tensors, save_tensors
from gossamer.runs.files import append_line, cannot_write, make_folder, write_text
from gossamer.runs.folder import EXPERIMENT

#: The file that names the peer and the network of a run folder.
OWNER = "peer.json"
#: Present when no other peer needs this one any longer.
OVER = "over"
#: More starts than any peer has.
MOST_STARTS = 1 << 60
#: What was mixed at a gossip step, or rounds that were skipped, or shares that were held back.
TraceLine = dict[str, Any]


#: The kinds of lines in a trace, and the types of their values.
LINES = {"step": int, "skip": list, "hold": list}


class TwoProcesses(GossamerError):
    """Two processes run with the same kit."""


def take_folder(folder: Path, kit: Kit, version: str, code: dict[str, str]) -> FileLock:
    """Create and lock a peer's run folder; refuse one of another peer or network.

    A new one keeps the version of Gossamer and the digests of the user's code that the run begins with.
    """
    make_folder(folder)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TwoProcesses(f"{folder}: another process runs this peer. One kit is for one process.") from None
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        if (folder / EXPERIMENT).exists() or (folder / OWNER).exists():
            check_owner(folder, kit.name, kit.roster.digest)
        else:
            write_text(folder / OWNER, json.dumps(_owner(kit) | {"version": version, "code": code}) + "\n")
            write_text(folder / "environment.json", json.dumps({"engine": {"peer": kit.name}}) + "\n")
            write_text(folder / EXPERIMENT, kit.roster.experiment.to_toml())
    except BaseException:
        lock.release()
        raise
    return lock


def _owner(kit: Kit) -> dict[str, str]:
    return {"peer": kit.name, "network": kit.roster.digest}


def check_owner(folder: Path, name: str, digest: str) -> None:
    """Refuse a run folder that this peer of this network did not begin."""
    try:
        found = json.loads((folder / OWNER).read_bytes())
        peer, network = str(found["peer"]), str(found["network"])
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(
            f"{folder}: is not the run of a peer, or its {OWNER} is missing or damaged. Start with another --out, or "
            "put back a copy of this folder."
        ) from None
    if network != digest:
        raise RunFolderError(
            f"{folder}: is the run of another network than that of this kit (its experiment, peers or policy differ). "
            "Start with another --out, or with the kit that this run was begun with."
        )
    if peer != name:
        raise RunFolderError(
            f"{folder}: is the run of peer '{peer}', not of '{name}'. Put each run folder back in its place."
        )


def changed_since_begun(folder: Path, version: str, code: dict[str, str]) -> list[str]:
    """The version of Gossamer, and the parts of the user's code, that differ from those that a run was begun with."""
    found = json.loads((folder / OWNER).read_bytes())
    begun, parts = found.get("version"), found.get("code", {})
    changed = [f"version {begun} of Gossamer, now {version}"] if begun != version else []
    return changed + [f"other code of '{part}'" for part in different_parts(code, parts)]


def next_process_number(folder: Path) -> int:
    """The number of times that this peer has been started, including this one."""
    path = folder / "starts"
    try:
        number = int(path.read_bytes()) + 1 if path.exists() else 1
        if not 0 < number < MOST_STARTS:
            raise ValueError
    except (OSError, ValueError):
        raise RunFolderError(
            f"{path}: should hold how often this peer was started, a whole number. Write a number into it that is not "
            "smaller than the last 'process' in log.jsonl."
        ) from None
    write_process_number(folder, number)
    return number


def write_process_number(folder: Path, number: int) -> None:
    """Keep the number of this process, for the next one."""
    write_text(folder / "starts", str(number))


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names have this prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def holds_in(lines: Iterable[Mapping[str, Any]]) -> dict[int, dict[int, float]]:
    """The receivers that got a fraction of their share, by gossip step; JSON has turned their numbers into strings."""
    held = (line["hold"] for line in lines if "hold" in line)
    return {step: {int(receiver): part for receiver, part in parts.items()} for step, parts in held}


class Journal:
    """The trace and the checkpoints of a peer. Nothing is written before `begin`."""

    def __init__(self, folder: Path) -> None:
        self._over = folder / OVER
        self._trace = folder / "trace.jsonl"
        self._checkpoints = folder / "checkpoints"
        text = self._trace.read_bytes() if self._trace.exists() else b""
        #: Whether the trace ends with a complete line. A kill may cut the last line short; it is then ignored.
        self.whole = text.endswith(b"\n") or not text
        self.lines: list[TraceLine] = [self._read(*line) for line in enumerate(text.split(b"\n")[:-1], 1)]
        self._mixed = {line["step"]: line for line in self.lines if "step" in line}
        #: After an absence: the round to which the peer jumped, by the round before it.
        self.skips: dict[int, int] = dict(line["skip"] for line in self.lines if "skip" in line)
        #: The receivers that got a fraction of their share, by gossip step.
        self.holds = holds_in(self.lines)

    def _read(self, number: int, line: bytes) -> TraceLine:
        try:
            found: TraceLine = json.loads(line)
            if not any(kind in found and isinstance(found[kind], type) for kind, type in LINES.items()):
                raise ValueError
        except (ValueError, TypeError):
            raise DamagedFile(f"{self._trace}: line {number} is damaged") from None
        return found

    def begin(self) -> None:
        """Prepare for writing."""
        make_folder(self._checkpoints)
        if not self.whole:
            write_text(self._trace, "".join(json.dumps(line) + "\n" for line in self.lines))

    def mixed(self, step: int) -> TraceLine | None:
        """The line of a gossip step, if an earlier process has written it."""
        return self._mixed.get(step)

    @property
    def ends(self) -> int:
        """The gossip step after the last one in the trace."""
        return max(self._mixed, default=-1) + 1

    def begun_round(self, steps: int) -> int:
        """The least round that a checkpoint must have for this trace to go on from, with so many steps in a round."""
        last = max(self.ends - 1, 0) // steps
        return min((start for start, end in self.skips.items() if end == last), default=last)

    def write(self, line: TraceLine) -> None:
        """Write a line of the trace."""
        append_line(self._trace, json.dumps(line))
        self.lines.append(line)

    @property
    def over(self) -> bool:
        """Whether this peer has finished, and no other one needs it any longer."""
        return self._over.exists()

    def end(self) -> None:
        """Keep that no other peer needs this one any longer: it ends at once if it is started again."""
        write_text(self._over, "")

    def commit(self, round: int, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Save the state after `round` rounds."""
        path = self._checkpoints / f"round-{round:06d}.safetensors"
        save_tensors(path, dict(tensors), {"round": str(round), "about": json.dumps(about)})
        drop_old(self._checkpoints)

    def last(self, digest: str) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """The newest state: its round, its tensors and the other values of its `commit`."""
        for path, *_ in checkpoint_paths(self._checkpoints)[:1]:  # an older one is of no use: its letters are gone
            try:
                about, tensors = load_tensors(path)
            except RunFolderError as error:
                raise DamagedFile(str(error)) from None
            said = json.loads(about["about"])
            if said["network"] != digest:
                raise RunFolderError(
                    f"{path}: is the state of another network than that of this kit. Start with another --out, or "
                    "with the kit that this run was begun with."
                )
            return int(about["round"]), tensors, said
        return None
