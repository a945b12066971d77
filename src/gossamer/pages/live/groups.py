"""What belongs together below a folder: a comparison with its runs, the peers of a network, a run that stands alone."""

import hashlib
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerError
from gossamer.pages.live.reading import small_text
from gossamer.pages.live.run import Planned, Progress, WatchedRun, default
from gossamer.studies import COMPARISON
from gossamer.studies.variants import variants
from gossamer.system.words import counted

#: States of a run that has rounds to do.
UNFINISHED = ("waiting", "running", "interrupted")


class Group:
    """Runs that are shown together. `names` are those of its runs in the order of their file."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.id = hashlib.blake2b(str(path).encode(errors="surrogateescape"), digest_size=6).hexdigest()
        self.planned: dict[str, Planned] = {}
        self.runs: dict[str, WatchedRun] = {}
        self.described, self.problem = "", ""

    def __iter__(self) -> Iterator[tuple[Planned, Progress]]:
        for name, planned in self.planned.items():
            run = self.runs.get(name)
            yield planned, Progress("waiting", rounds=planned.rounds) if run is None else run.progress

    @property
    def of_peers(self) -> bool:
        """Whether these are runs of peers."""
        return any(run.peer is not None for run in self.runs.values())

    @property
    def labels(self) -> list[str]:
        """The labels of the variants, in their order."""
        return list(dict.fromkeys(planned.label for planned in self.planned.values()))

    @property
    def changed(self) -> float:
        """When anything of it last changed."""
        return max((run.changed for run in self.runs.values()), default=0.0)

    def summary(self) -> dict[str, Any]:
        """Its line in the list of all."""
        each = [progress for _, progress in self]
        states = [progress.state for progress in each]
        running = states.count("running")
        ended = sum(state not in UNFINISHED for state in states)
        scores = [progress.score for progress in each if progress.score is not None]
        state = self._state(states)
        return {
            "name": self.name, "described": self.described, "state": state,
            "problem": self.problem or (each[0].why if state == "unreadable" and each else ""),
            "runs": len(each), "ended": ended, "running": running, "changed": round(self.changed),
            "done": sum(_done(progress, alone=len(each) == 1) for progress in each),
            "rounds": sum(p.rounds for p in each),
            "left": self._left(each, running) if state == "running" else None,
            "score": max(scores, key=lambda score: score[2]) if scores and scores[0][1] == "percent" else None,
            "command": self._command(state),
        }  # fmt: skip

    def _state(self, states: list[str]) -> str:
        if self.problem:
            return "unreadable"
        if len(states) == 1:
            return states[0]
        if "running" in states:
            return "running"
        if any(state in UNFINISHED for state in states):
            return "interrupted"
        return "finished"

    def _command(self, state: str) -> str:
        """How it goes on, if it has been interrupted."""
        if state != "interrupted" or self.of_peers:
            return ""
        return f"gossamer resume {shlex.quote(str(self.path))}"

    def _left(self, each: Iterable[Progress], running: int) -> float | None:
        """Seconds until all have ended, by the pace of those that have begun."""
        by_variant: dict[int, list[float]] = {}
        for planned, progress in self:
            if progress.pace is not None:
                by_variant.setdefault(planned.variant, []).append(progress.pace)
        paces = [pace for some in by_variant.values() for pace in some]
        if not paces:
            return None
        usual, total, longest = sum(paces) / len(paces), 0.0, 0.0
        for planned, progress in self:
            if progress.state in ("waiting", "running"):
                own = by_variant.get(planned.variant, [usual])
                pace = progress.pace if progress.pace is not None else sum(own) / len(own)
                left = pace * max(0, progress.rounds - progress.round)
                total, longest = total + left, max(longest, left)
        return round(max(longest, total / max(1, running)), 1)


def groups(root: Path, runs: Mapping[Path, WatchedRun], comparisons: Iterable[Group]) -> dict[str, Group]:
    """All runs in their groups, by the groups' ids."""
    found: dict[str, Group] = {}
    taken: set[Path] = set()
    for group in comparisons:
        group.runs = {name: runs[group.path / name] for name in group.planned if group.path / name in runs}
        taken.update(run.path for run in group.runs.values())
        found[group.id] = group
    networks: dict[str, Group] = {}
    for path, run in runs.items():
        if path in taken:
            continue
        if run.peer is None:
            group = Group(path, name_in(root, path))
            found[group.id] = group
        else:
            parent = path.parent if path != root else path
            group = networks.setdefault(run.peer[1], Group(parent, name_in(root, parent)))
            found[group.id] = group
        label = run.peer[0] if run.peer is not None else group.name
        rounds = run.experiment.get("rounds")
        name = name_in(root, path)
        done_at = rounds if isinstance(rounds, int) else 0
        group.planned[name] = Planned(name, label, len(group.planned), None, done_at)
        group.runs[name] = run
        group.described = f"peers of a network · {run.described}" if run.peer is not None else run.described
    return found


def _done(progress: Progress, alone: bool) -> int:
    """The rounds that are behind a run: of one of several that has ended early, those that it will not do as well."""
    ended = progress.state not in UNFINISHED
    return progress.rounds if ended and not alone else min(progress.round, progress.rounds)


def comparison(path: Path, name: str) -> Group:
    """A comparison as its file plans it."""
    group = Group(path, name)
    try:
        study = tomllib.loads(small_text(path / COMPARISON))
        cells = variants(study.get("sweep", {}), study.get("variant", ()))
        for place, cell in enumerate(cells):
            values = {**study, **cell.changes}
            first, rounds = int(values.get("seed", default("seed"))), int(values.get("rounds", default("rounds")))
            seeds = study.get("seeds", 1)
            for seed in range(first, first + seeds) if isinstance(seeds, int) else seeds:
                run = f"{cell.folder}-seed{int(seed)}"
                group.planned[run] = Planned(run, cell.label, place, int(seed), rounds)
    except (OSError, ValueError, TypeError, AttributeError, GossamerError) as error:
        group.problem = f"{COMPARISON} cannot be read: {getattr(error, 'strerror', None) or error}"
        return group
    seeds_each = len(group.planned) // max(1, len(cells))
    swept = ", ".join(study.get("sweep", {}))
    words = f"{counted(len(cells), 'variant')}{f' of {swept}' if swept else ''}"
    group.described = f"{words}, {counted(seeds_each, 'seed')}" if seeds_each > 1 else words
    return group


def name_in(root: Path, path: Path) -> str:
    """The name of a folder as seen from the one that is shown."""
    return root.name if path == root else re.sub(r"^\./", "", str(path.relative_to(root)))
