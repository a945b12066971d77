"""One run that may go on at this moment: how far it is, how long it will take, how it ended."""

import json
import os
import statistics
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.experiment import Experiment
from gossamer.measure import SCORES
from gossamer.pages.live.reading import last_lines, small_text
from gossamer.pages.live.series import Series, number
from gossamer.pages.report_data import CLIENT_VALUES
from gossamer.runs.ending import Ending
from gossamer.runs.folder import ENVIRONMENT, EXPERIMENT, FINAL, FORMAT, STOPPED, RunFolder

#: Seconds without a sign of a run after which it counts as interrupted, where nobody is seen to hold its lock.
QUIET = 30.0
#: Rounds over which the pace is measured.
RECENT = 10
#: The most clients whose values are shown.
CLIENTS = 500
#: The most bytes of a line with the values of every client.
LONGEST = 1 << 20


@dataclass(frozen=True)
class Planned:
    """A run as its comparison plans it."""

    name: str
    #: The label of its variant, and the variant's place among them.
    label: str
    variant: int
    seed: int | None
    rounds: int


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    #: waiting, running, finished, stopped, diverged, interrupted or unreadable
    state: str
    round: int = 0
    rounds: int = 0
    #: Why it ended, or cannot be read.
    why: str = ""
    #: Seconds of a round.
    pace: float | None = None
    #: The metric by which it is judged, in words, how it is written, and its newest value.
    score: tuple[str, str, float] | None = None

    @property
    def left(self) -> float | None:
        """Seconds until the last round."""
        return None if self.pace is None else self.pace * max(0, self.rounds - self.round)


class WatchedRun:
    """A run folder, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = RunFolder(path)
        self.experiment: dict[str, Any] = {}
        self.progress = Progress("running")
        #: When anything of it last changed, in seconds since 1970.
        self.changed = 0.0
        #: Of a peer: its name and its network.
        self.peer: tuple[str, str] | None = None
        self.series: Series | None = None
        self._seen: tuple[Any, ...] = ()
        self._held = False
        self._clients: tuple[tuple[float, int], dict[str, Any] | None] = ((0.0, 0), None)
        self._refused = self._open()

    def _open(self) -> str:
        """Read what stays as it is; gives why it cannot be read."""
        try:
            self.experiment = tomllib.loads(small_text(self.path / EXPERIMENT))
        except (OSError, ValueError) as error:
            return f"experiment.toml cannot be read: {getattr(error, 'strerror', None) or error}"
        if not isinstance(self.experiment.get("rounds"), int):
            return "experiment.toml does not say how many rounds: it is not the file of a run"
        about = _object(self.path / ENVIRONMENT)
        if isinstance(about.get("format"), int) and about["format"] > FORMAT:
            return f"it has format {about['format']}, of a newer Gossamer; this one reads format {FORMAT}"
        owner = _object(self.path / "peer.json")
        if isinstance(owner.get("peer"), str):
            self.peer = (owner["peer"], str(owner.get("network")))
        return ""

    @property
    def described(self) -> str:
        """The experiment in a few words."""
        from gossamer.studies import value_label

        words = [value_label(self.experiment[key]) for key in ("method", "graph", "dataset") if key in self.experiment]
        count = self.experiment.get("clients")
        return " · ".join([*words, f"{count} clients"] if isinstance(count, int) else words)

    def look(self, locks: set[int] | None) -> None:
        """Bring `progress` up to date; a run of which nothing has changed costs a few calls of the system."""
        if self._refused:
            self.changed = self.changed or _changed(self.path)[0]
            self.progress = Progress("unreadable", why=self._refused)
            return
        files = [_changed(path) for path in (self.path, self.folder.metrics, self.folder.timings)]
        self.changed = max(when for when, _ in files)
        held = self._is_held(locks)
        if (*files, held) == self._seen and (self.progress.state != "running" or held):
            return
        self._seen = (*files, held)
        self.progress = self._progress(held)

    def _progress(self, held: bool) -> Progress:
        lines, rounds = last_lines(self.folder.metrics), int(self.experiment["rounds"])
        done = int(lines[-1]["round"]) if lines else 0
        state, why = self._state(held)
        timings = last_lines(self.folder.timings, 8 << 10)[-RECENT:]
        paces = [
            sum(v for k, v in line.items() if k.startswith("seconds_") and isinstance(v, float)) for line in timings
        ]
        pace = statistics.median(paces) if paces else None
        return Progress(state, done, rounds, why, pace, _score(lines))

    def _state(self, held: bool) -> tuple[str, str]:
        ending = None
        with suppress(OSError, ValueError):
            ending = Ending.from_json(small_text(self.path / STOPPED))
        if held:
            return "running", ""
        if ending is not None:
            return ending.kind, str(ending)
        if (self.path / FINAL).exists():
            return "finished", ""
        if not self._held and time.time() - self.changed < QUIET:
            return "running", ""
        return "interrupted", f"{self.folder.how_to_go_on} goes on with it"

    def _is_held(self, locks: set[int] | None) -> bool:
        """Whether a process of this machine is at work on it."""
        try:
            inode = os.stat(self.path / ".lock", follow_symlinks=False).st_ino
        except OSError:
            return False
        held = locks is not None and inode in locks
        self._held = self._held or held
        return held

    def clients(self) -> dict[str, Any] | None:
        """The newest values of every client; None if there are none, or too many to show."""
        changed = _changed(self.folder.clients)
        if changed != self._clients[0]:
            self._clients = (changed, self._newest_clients())
        return self._clients[1]

    def _newest_clients(self) -> dict[str, Any] | None:
        count = self.experiment.get("clients")
        if not isinstance(count, int) or not 0 < count <= CLIENTS:
            return None
        for line in reversed(last_lines(self.folder.clients, LONGEST)):
            values = [
                {**value._asdict(), "row": [number(each) for each in line[value.key]]}
                for value in CLIENT_VALUES
                if isinstance(line.get(value.key), list) and len(line[value.key]) == count
            ]
            if values:
                return {"round": line["round"], "values": values}
        return None


def _changed(path: Path) -> tuple[float, int]:
    """When a file last changed, and its size."""
    try:
        about = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0.0, 0
    return about.st_mtime, about.st_size


def _object(path: Path) -> dict[str, Any]:
    """A small JSON object; empty if there is none."""
    try:
        found = json.loads(small_text(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _score(lines: list[dict[str, Any]]) -> tuple[str, str, float] | None:
    """The newest value of the metric by which runs are judged."""
    for score in SCORES:
        values = [value for line in lines if (value := number(line.get(score.key))) is not None]
        if values:
            return score.words, "percent" if "accuracy" in score.key else "number", values[-1]
    return None


def default(key: str) -> Any:
    """The value of a key of an experiment that its file leaves out."""
    return Experiment.model_fields[key].default
