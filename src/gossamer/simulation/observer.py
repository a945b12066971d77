"""Observers: the supported hook into a run, for displays, logs, early stopping and tests."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gossamer.data import PartitionSummary
from gossamer.errors import ExperimentError, did_you_mean
from gossamer.experiment import Experiment, StopAt
from gossamer.measure import CLIENT_VALUES, METRICS, Metrics
from gossamer.runs.ending import Ending
from gossamer.simulation.result import Run
from gossamer.training import Training


@dataclass(frozen=True)
class RunStart:
    """A run that is about to do its first round, or to continue after `rounds_done` of them."""

    experiment: Experiment
    #: The live parts of the experiment: method, model, data set, batches, network.
    training: Training
    #: How many samples of each class every client holds.
    partition: PartitionSummary
    #: How the clients are run, in words: workers, chunk size, how a step is taken.
    how: str
    rounds_done: int
    #: The run folder, if there is one.
    folder: Path | None


class RoundRecord(NamedTuple):
    """One round: its metrics and seconds as they are recorded, and the values of every client that observers want."""

    #: By name, "round" among them; a metric that was not measured in this round is absent.
    metrics: Metrics
    #: "seconds_local", "seconds_waiting", "seconds_mixing" and "seconds_evaluation" of the round.
    timings: Metrics
    #: One array with a value for each client, by the names in `Observer.wants`.
    clients: dict[str, np.ndarray]

    @property
    def round(self) -> int:
        """The round, counted from 1; 0 is the state before the first round."""
        return int(self.metrics["round"])


class Outcome(NamedTuple):
    """How a run ended: also one that diverged, was interrupted or failed."""

    ending: Ending
    #: The result, unless the run was interrupted or failed.
    run: Run | None = None
    #: The exception that ended the run, if one did.
    error: BaseException | None = None


class Observer:
    """The base of every observer. Override what you need: these methods do nothing.

    With several workers, only the first one calls its observers. `str(observer)` names the observer in the ending of a
    run that it stopped.
    """

    #: Per-client values that every round's record should hold: "client_accuracy", "client_loss" (of each client's own
    #: model on the test samples, which takes time), "client_local_loss", "client_bytes".
    wants: Collection[str] = ()

    def start(self, run: RunStart) -> None:
        """The first round is about to begin."""

    def round(self, record: RoundRecord) -> bool:
        """A round was recorded. True: the run ends on purpose after this round, in all workers."""
        return False

    def note(self, message: str) -> None:
        """The user should know this."""

    def waiting(self, reason: str) -> None:
        """Work that may take a while begins before the first round."""

    def end(self, outcome: Outcome) -> None:
        """The run is over. Always called, also after an error, and if there was no `start`."""

    def __str__(self) -> str:
        return type(self).__name__


class StopAtMetric(Observer):
    """Stops a run when a metric reaches a value: `stop_at` of an experiment."""

    def __init__(self, target: StopAt) -> None:
        self._metric, self._value = target.metric, target.value
        self._rises = METRICS[target.metric].direction == "up"

    def round(self, record: RoundRecord) -> bool:
        value = record.metrics.get(self._metric)
        return value is not None and (value >= self._value if self._rises else value <= self._value)

    def __str__(self) -> str:
        return f"stop_at: {self._metric} is {'at least' if self._rises else 'at most'} {self._value:g}"


@contextmanager
def _named(observer: Observer, when: str) -> Iterator[None]:
    """Around the call of an observer: its own exception passes, with a note that names the observer."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by the observer {observer}, {when}")
        raise


class Observers(Observer):
    """The observers of a run as one."""

    def __init__(self, each: Sequence[Observer] = ()) -> None:
        if isinstance(each, Observer) or not all(isinstance(observer, Observer) for observer in each):
            raise ExperimentError(f"observers: should be a list of gossamer.Observer objects (got {each!r})")
        self.each = list(each)
        self.wants = {name for observer in each for name in observer.wants}
        #: The observer that stopped the run.
        self.stopper: Observer | None = None
        for name in self.wants - CLIENT_VALUES.keys():
            raise ExperimentError(f"observers: unknown client value '{name}': {did_you_mean(name, CLIENT_VALUES)}")

    def heard_by(self, speaks: bool) -> "Observers":
        """These observers for the worker that calls them; for the others, what they want and no calls."""
        if speaks:
            return self
        silent = Observers()
        silent.wants = self.wants
        return silent

    def start(self, run: RunStart) -> None:
        for observer in self.each:
            with _named(observer, "at the start"):
                observer.start(run)

    def round(self, record: RoundRecord) -> bool:
        stops = []
        for observer in self.each:
            with _named(observer, f"after round {record.round}"):
                stops += [observer] if observer.round(record) else []
        self.stopper = next(iter(stops), None)
        return bool(stops)

    def note(self, message: str) -> None:
        for observer in self.each:
            with _named(observer, "at a note"):
                observer.note(message)

    def waiting(self, reason: str) -> None:
        for observer in self.each:
            with _named(observer, "while waiting"):
                observer.waiting(reason)

    def end(self, outcome: Outcome) -> None:
        with ExitStack() as stack:  # every observer is told, also if another one fails
            for observer in reversed(self.each):
                stack.callback(_named(observer, "at the end")(observer.end), outcome)

    def __str__(self) -> str:
        return str(self.stopper)
