"""Runs read back from their folders: the experiment and the numbers, without computing anything."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.experiment import read_toml
from gossamer.measure import METRICS, SCORES, Score
from gossamer.runs.folder import EXPERIMENT, RunFolder, read_lines
from gossamer.system.notebook import Displayed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class RunRecord(Displayed):
    """The numbers of one run, with a label to tell it from others."""

    label: str
    experiment: dict[str, Any]
    metrics: "pd.DataFrame"
    timings: "pd.DataFrame"
    #: Why it ended before its last round, or has not all of its rounds.
    stopped: str | None = None
    #: The run folder; None for a run without one.
    folder: Path | None = None

    @property
    def rounds(self) -> int:
        """The last round that is recorded."""
        return int(self.metrics["round"].max()) if len(self.metrics) else 0

    @property
    def diverged(self) -> bool:
        """Whether it left the finite numbers, and ended or went on without them."""
        if self.stopped:
            return self.stopped.startswith("diverged")
        last = self.metrics.tail(1)
        return any(key in last and bool(last[key].isna().any()) for key in ("local_loss", "consensus"))

    @property
    def remark(self) -> str | None:
        """Why its numbers are not those of a whole run; None if they are."""
        return self.stopped or ("diverged, and went on without finite numbers" if self.diverged else None)

    def last(self, key: str) -> float:
        """The newest value of a metric; NaN if it was never measured."""
        if key not in self.metrics or not len(known := self.metrics[key].dropna()):
            return float("nan")
        return float(known.iloc[-1])

    def best(self, key: str) -> float:
        """The highest value of a metric, or the lowest of one that falls; NaN if it was never measured."""
        if key not in self.metrics:
            return float("nan")
        return float(self.metrics[key].min() if METRICS[key].direction == "down" else self.metrics[key].max())

    @property
    def client_bytes(self) -> float:
        """Bytes that a client sent in all rounds, the mean over all clients."""
        return float(self.metrics["client_bytes_round"].sum()) if len(self.metrics) else 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all rounds together."""
        return self.seconds_until(self.rounds)

    def seconds_until(self, round: int) -> float:
        """Seconds of all rounds up to this one; NaN if they were not recorded."""
        parts = [c for c in self.timings.columns if c.startswith("seconds_")]
        if not parts:
            return float("nan")
        return float(self.timings.loc[self.timings["round"] <= round, parts].sum().sum())


def score_of(records: Iterable[RunRecord]) -> Score:
    """The metric by which runs are judged: accuracy, or a loss where accuracy has no meaning."""
    records = list(records)

    def has_numbers(key: str) -> bool:
        return any(key in record.metrics and record.metrics[key].notna().any() for record in records)

    return next((score for score in SCORES if has_numbers(score.key)), SCORES[-1])


def read_run(path: Path | str, label: str | None = None) -> RunRecord:
    """The record of a run folder: its experiment and its numbers so far. Nothing is run."""
    import pandas as pd  # takes a third of a second, which no run should wait for before its first round

    path = Path(path)
    folder = RunFolder.open(path)
    experiment = read_toml(path / EXPERIMENT)
    metrics = pd.DataFrame(read_lines(folder.metrics))
    timings = pd.DataFrame(read_lines(folder.timings))
    record = RunRecord(label or path.name, experiment, metrics, timings, folder=path)
    if (ending := folder.ending()) is not None:
        return replace(record, stopped=str(ending))
    if not folder.finished:
        return replace(record, stopped=f"unfinished: {folder.how_to_go_on} goes on with it")
    if record.rounds < experiment["rounds"]:
        done = f"{record.rounds} of {experiment['rounds']} rounds"
        return replace(record, stopped=f"damaged: {folder.metrics} has {done}, though the run has ended")
    return record


def read_clients(path: Path) -> "pd.DataFrame":
    """The values of every client over the rounds in which they were measured: one row for each round and client."""
    import pandas as pd

    rounds = [pd.DataFrame(line).rename_axis("client") for line in read_lines(RunFolder.open(path).clients)]
    if not rounds:
        return pd.DataFrame(columns=["client", "round"])
    return pd.concat(rounds).reset_index()


def read_runs(paths: list[Path]) -> list[RunRecord]:
    """The records of run folders; a folder of a comparison stands for all runs inside it."""
    found: list[Path] = []
    for path in dict.fromkeys(paths):
        inside = sorted(p.parent for p in path.glob(f"*/{EXPERIMENT}")) if path.is_dir() else []
        if (path / EXPERIMENT).exists() or not inside:
            found.append(path)
        else:
            found += inside
    names = [path.resolve().name for path in found]
    # Runs of the same name in different places are told apart by their paths.
    return [read_run(p, name if names.count(name) == 1 else str(p)) for p, name in zip(found, names, strict=True)]
