"""The engine: an observer that times its rounds and stops it after a while."""

import statistics
import time
from dataclasses import astuple, dataclass
from typing import Any

from gossamer.bench.memory import memory_peak, settle_memory
from gossamer.experiment import Experiment
from gossamer.simulation import Observer, RoundRecord, RunStart, simulate
from gossamer.training import Training

#: Rounds that are not timed: memory is fetched and steps are recorded or compiled in them.
WARM_UP = 2
#: Seconds after which a run is stopped, even if too few of its rounds were timed.
LONGEST = 30.0


@dataclass(frozen=True)
class RoundSeconds:
    """The seconds of a mean round by kind of work."""

    local: float
    mixing: float
    waiting: float
    evaluation: float

    @property
    def total(self) -> float:
        """Seconds of a round."""
        return self.local + self.mixing + self.waiting + self.evaluation


@dataclass(frozen=True)
class EngineSpeed:
    """The engine with some number of workers. Its speed counts local work, mixing and waiting, but not evaluation."""

    workers: int
    #: How many clients were run at once, and how a step was run.
    how: str
    client_steps_per_second: float
    #: The mean round of those that were timed, and how many there were.
    seconds: RoundSeconds
    rounds: int
    #: Seconds from the call to the first round.
    start_up: float
    #: Peak memory of all processes beyond what this process held before; None if not known.
    peak_bytes: int | None


class EngineTimer(Observer):
    """Times the rounds of an engine and stops it after a while. Time spent in the timer itself is not counted."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.called = time.perf_counter()
        self.began = self.called
        self.how = ""
        self.peak: int | None = None
        self.steps: list[int] = []
        self.rounds: list[RoundSeconds] = []

    def start(self, run: RunStart) -> None:
        self.training, self.how = run.training, run.how
        self.began = self.resumed = time.perf_counter()

    def round(self, record: RoundRecord) -> bool:
        passed = time.perf_counter() - self.resumed
        parts = {name: float(record.timings[f"seconds_{name}"]) for name in ("mixing", "waiting", "evaluation")}
        # Time between the timed parts of a round is counted as local work: it is overhead.
        self.rounds.append(RoundSeconds(local=max(passed - sum(parts.values()), 1e-9), **parts))
        self.steps.append(steps_of_round(self.training, record.round - 1))
        if len(self.rounds) <= WARM_UP:
            self.peak = memory_peak()  # every round does the same
        spent = sum(split.total for split in self.timed())
        if time.perf_counter() > self.began + LONGEST or (len(self.rounds) > WARM_UP and spent >= self.seconds):
            return True
        self.resumed = time.perf_counter()
        return False

    def timed(self) -> list[RoundSeconds]:
        """The rounds after the warm-up, or the last one if there are no others."""
        return self.rounds[min(WARM_UP, len(self.rounds) - 1) :]

    def speed(self, workers: int, held: int | None) -> EngineSpeed:
        """The speed of the timed rounds; `held` is the memory in use before the run."""
        timed = self.timed()
        steps = self.steps[-len(timed) :]
        rates = [n / (split.total - split.evaluation) for n, split in zip(steps, timed, strict=True)]

        means = (statistics.mean(part) for part in zip(*map(astuple, timed), strict=True))
        return EngineSpeed(
            workers=workers,
            how=self.how,
            client_steps_per_second=statistics.median(rates),
            seconds=RoundSeconds(*means),
            rounds=len(timed),
            start_up=self.began - self.called,
            peak_bytes=None if self.peak is None or held is None else max(0, self.peak - held),
        )


def time_engine(experiment: Experiment, workers: int, seconds: float, **options: Any) -> EngineTimer:
    """Run an experiment until enough rounds were timed."""
    settle_memory()
    timer = EngineTimer(seconds)
    experiment = experiment.but({"evaluate.start": False, "stop_at": None})
    simulate(experiment, workers=workers, observers=[timer], on_divergence="continue", keep_vectors=False, **options)
    return timer


def steps_of_round(training: Training, index: int) -> int:
    """Local steps of all clients that take part in a round."""
    working = training.network.participants(training.gossip_steps(index).start)
    return int(training.batches.steps[slice(None) if working is None else working].sum())
