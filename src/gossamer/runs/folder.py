"""The run folder: the results of a run, and everything that is needed to resume it.

experiment.toml     the experiment, every key spelled out
environment.json    the version of this format, the versions of the packages, the commit, how the clients were run
partition.json      how many samples of each class every client held
metrics.jsonl       one line per round, appended as the run goes; the same bytes for the same experiment
timings.jsonl       one line per round: seconds of local work, waiting for others, mixing, evaluation
clients.jsonl       one line per round in which the clients' own models were measured: lists of every client's values
checkpoints/        the clients' state after some round, the newest two, each in one file per worker
best.safetensors    the averaged model of the best round so far, by its parameters' names
final.safetensors   the averaged model at the end; its presence says that the run has ended
stopped.json        how and why the run ended before its last round, if it did
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from gossamer.errors import RunFolderError
from gossamer.experiment import read_toml
from gossamer.runs.checkpoint import (
    DTYPES,
    CheckpointShard,
    DamagedCheckpoint,
    checkpoint_paths,
    drop_old,
    drop_round,
    load_rows,
    load_tensors,
    read_shards,
    save_shard,
    save_tensors,
    shapes_in,
)
from gossamer.runs.ending import Ending
from gossamer.runs.environment import environment
from gossamer.runs.files import append_line, cannot_write, make_folder, remove_asides, straight, sync, write_text
from gossamer.workers import ALONE, Group

#: Raised when a run folder changes so that an older version cannot read it.
FORMAT = 1
EXPERIMENT = "experiment.toml"
ENVIRONMENT = "environment.json"
FINAL = "final.safetensors"
BEST = "best.safetensors"
STOPPED = "stopped.json"


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.timings = path / "timings.jsonl"
        self.clients = path / "clients.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run against other processes; the system releases the lock if this process dies."""
        file = self.path / ".lock"
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunFolderError(f"{self.path}: another process is at work on this run. Wait until it ends.") from None
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
            lock.release()

    @classmethod
    def create(cls, path: Path, experiment_toml: str, engine: dict[str, Any] | None = None) -> "RunFolder":
        """Make a new run folder; a folder that holds a run is refused, never overwritten."""
        path = straight(path)
        folder = cls(path)
        try:
            (path / EXPERIMENT).exists()
        except OSError as error:  # for example a name that is too long
            raise cannot_write(path, error) from error
        if (path / EXPERIMENT).exists():
            finished = (path / FINAL).exists()
            raise RunFolderError(
                f"{path}: holds a run already ({'finished' if finished else 'unfinished'}). "
                f"Look at it with 'gossamer show {path}', "
                + ("" if finished else f"go on with it with {folder.how_to_go_on}, ")
                + "or choose another folder with --out."
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(f"{path}: exists and is not a run folder. Choose another folder with --out.")
        try:
            make_folder(folder.checkpoints)
            write_text(
                path / ENVIRONMENT, json.dumps({"format": FORMAT, **environment(), "engine": engine}, indent=2) + "\n"
            )
            write_text(path / EXPERIMENT, experiment_toml)  # last: its presence makes the folder a run
        except BaseException:
            if path.is_dir():  # it was empty before, and half a run folder would block the next run
                shutil.rmtree(path, ignore_errors=True)
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder."""
        if not (path / EXPERIMENT).is_file():
            if path.is_file():
                raise RunFolderError(f"{path}: is not a run folder but a file: 'gossamer run' or 'compare' takes it.")
            hint = "is not a run folder (it has no experiment.toml)" if path.exists() else "does not exist"
            raise RunFolderError(f"{path}: {hint}. Runs are made by 'gossamer run --out FOLDER'.")
        # An empty file would be the default experiment.
        if not isinstance(read_toml(path / EXPERIMENT).get("rounds"), int):
            raise RunFolderError(f"{path / EXPERIMENT}: does not say how many rounds: it is not the file of a run")
        folder = cls(path)
        found = folder.environment().get("format", FORMAT)
        if isinstance(found, int) and found > FORMAT:
            raise RunFolderError(f"{path}: has format {found}, of a newer Gossamer; this one reads format {FORMAT}.")
        return folder

    def environment(self) -> dict[str, Any]:
        """What computed the run; empty if that is not known."""
        try:
            said = json.loads((self.path / ENVIRONMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def engine(self) -> dict[str, Any]:
        """How the clients were run, as far as it is known."""
        said = self.environment().get("engine")
        return said if isinstance(said, dict) else {}

    @property
    def peer(self) -> str | None:
        """The name of the peer whose run this is; None for a simulation."""
        name = self.engine().get("peer")
        return name if isinstance(name, str) else None

    @property
    def how_to_go_on(self) -> str:
        """The command that continues an unfinished run."""
        if self.peer is not None:
            return f"'gossamer peer' with the kit of {self.peer}"
        return f"'gossamer resume {self.path}'"

    @property
    def finished(self) -> bool:
        """Whether the run has ended: after its last round, or on purpose."""
        return (self.path / FINAL).exists()

    def ending(self) -> Ending | None:
        """How the run ended before its last round, if it did."""
        try:
            return Ending.from_json((self.path / STOPPED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def ending_at(self, done: int, rounds: int) -> Ending | None:
        """How a run ended whose newest checkpoint is of round `done`; None if there are rounds left to do."""
        if done == rounds:
            return Ending("finished", done)
        ending = self.ending()
        return ending if ending is not None and (ending.kind, ending.round) == ("stopped", done) else None

    def rounds_until(self, done: int, start: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The metrics and timings of the first `done` rounds, with `start` also of round 0; all must be there."""
        metrics, timings = ([line for line in read_lines(path) if line["round"] <= done]
                            for path in (self.metrics, self.timings))  # fmt: skip
        expected = list(range(0 if start else 1, done + 1))
        if done and [line["round"] for line in metrics] != expected:
            whole = sum(line["round"] > 0 for line in metrics)
            raise RunFolderError(
                f"{self.metrics}: holds {whole} whole rounds, but the checkpoint is of round {done}. "
                "The file was cut or edited; delete the checkpoints folder to compute the run again from the start."
            )
        return metrics, timings

    def record(
        self, metrics: dict[str, Any], timings: dict[str, Any], clients: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Append a round to the metrics and the timings, and the values of every client, to six digits."""
        append_line(self.metrics, to_json(metrics))
        append_line(self.timings, to_json(timings))
        if clients:
            digits = {name: [_six_digits(value) for value in values.tolist()] for name, values in clients.items()}
            append_line(self.clients, json.dumps({"round": metrics["round"], **digits}))

    def save_state(
        self, round: int, digest: str, state: dict[str, Tensor], own: range, clients: int, group: Group = ALONE
    ) -> None:
        """Checkpoint the clients' state after `round` rounds; every worker writes its own clients."""
        if group.first:
            make_folder(self.checkpoints)
            drop_round(self.checkpoints, round)
            if self.metrics.exists():
                sync(self.metrics)  # first: a checkpoint cannot be resumed without the rounds before it
        group.barrier()
        save_shard(self.checkpoints, round, digest, own, clients, state)
        group.barrier()  # older checkpoints are deleted after every worker has written its shard
        if group.first:
            drop_old(self.checkpoints)

    def load_state(
        self,
        digest: str,
        state: dict[str, Tensor],
        own: range,
        clients: int,
        group: Group = ALONE,
        say: Callable[[str], None] = lambda message: None,
    ) -> int:
        """Load the state of a worker's own clients from the newest whole checkpoint; gives its round.

        A damaged checkpoint is reported with `say`, and the one before it is tried. Without any the round is 0, and the
        state may be half loaded.
        """
        checkpoints = checkpoint_paths(self.checkpoints)
        for paths in checkpoints:
            reason = ""
            try:
                shards = read_shards(paths, clients)
                self._check(shards, digest, state, clients)
                load_rows(shards, own, state)
            except DamagedCheckpoint as error:
                reason = str(error)
            if not group.any(bool(reason)):
                return shards[0].round
            reason = reason or f"{paths[0]}: another worker found it damaged"
            say(f"{reason}." + (" Going back to the checkpoint before it." if paths != checkpoints[-1] else ""))
        say(f"{self.path}: has no {'whole ' if checkpoints else ''}checkpoint: starting again from the beginning.")
        return 0

    def _check(self, shards: list[CheckpointShard], digest: str, state: dict[str, Tensor], clients: int) -> None:
        """Refuse a checkpoint of another experiment, or of other vectors: a user's code may have changed."""
        if any(shard.experiment != digest for shard in shards):
            raise RunFolderError(
                f"{shards[0].path}: is a checkpoint of another experiment than {self.path / EXPERIMENT}. "
                "Was the file edited? Start a new run for a changed experiment."
            )
        expected = {name: (tuple(rows.shape[1:]), DTYPES[rows.dtype]) for name, rows in state.items()}
        for shard in shards:
            if (found := shapes_in(shard)) != expected:
                raise RunFolderError(
                    f"{self.path}: its checkpoint holds {_describe(found, clients)}, but the experiment has "
                    f"{_describe(expected, clients)}. Has the model, the method or the data changed since?"
                )

    def rewind(self, round: int) -> None:
        """Delete all rounds after `round`, half-written lines and files, and those that say that the run has ended."""
        for name in (STOPPED, FINAL):
            (self.path / name).unlink(missing_ok=True)
        remove_asides(self.path)
        for path in (self.metrics, self.timings, self.clients):
            if not path.exists():
                continue
            kept = [line for line in read_lines(path) if line["round"] <= round]
            write_text(path, "".join(to_json(line) + "\n" for line in kept))

    def save_model(self, name: str, parameters: dict[str, Tensor], round: int) -> None:
        """Save the averaged model, by the names of its parameters."""
        tensors = {key: value.detach().cpu().contiguous().clone() for key, value in parameters.items()}
        save_tensors(self.path / name, tensors, {"round": str(round)})

    def stop(self, ending: Ending) -> None:
        """Record how and why the run ended before its last round."""
        write_text(self.path / STOPPED, ending.to_json() + "\n")

    def load_model(self, name: str) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What `save_model` wrote: the round, and the parameters."""
        return load_tensors(self.path / name)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file up to the first that is incomplete."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_bytes().split(b"\n"):
        try:
            values = json.loads(line)
        except ValueError:
            break
        if not isinstance(values, dict) or not isinstance(values.get("round"), int):
            break
        lines.append(values)
    return lines


def to_json(values: dict[str, Any]) -> str:
    """One line of JSON; numbers that are not finite become null."""
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(clean)


def _six_digits(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _describe(shapes: dict[str, tuple[tuple[int, ...], str]], clients: int) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, (clients, *shape)))}" for name, (shape, _) in sorted(shapes.items()))
