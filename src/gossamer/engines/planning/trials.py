"""Execution plans, run and timed on the real model, method and data."""

import os
import shutil
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gossamer.engines.stacked import initial_rows
from gossamer.engines.steps.chunk import MOST_STEPS_AT_ONCE, TRACE_AT, ChunkRunner, ExecutionPlan, StepMode
from gossamer.engines.steps.products import Products
from gossamer.training import Training

#: Seconds of local work from which a compiler pays. It takes a quarter of a minute for each number of clients tried.
WORTH_COMPILING = 120.0
#: Fewer clients at a time are chosen unless more are faster by this factor.
CHUNK_TOLERANCE = 1.15
#: A simpler step mode is chosen unless another is faster by this factor.
MODE_TOLERANCE = 1.05
#: The factor between two measurements of the same plan that noise explains.
NOISE_FACTOR = 1.4
#: By this factor fewer clients at a time may be slower and still be the fastest once they are compiled.
COMPILER_GAIN = 2.0
#: Seconds of a step from which it is mostly work that many clients at a time do not save, so that they are not tried;
#: and from which the overhead that tracing saves does not show either.
LONG_STEP, VERY_LONG_STEP = 0.02, 0.1
#: Seconds of one measurement, and the number of measurements for plans that may be the fastest.
MEASUREMENT, REPEATS = 0.15, 4


class Candidates(NamedTuple):
    """The plans to try."""

    chunks: list[int]
    #: Values of `channels_last`.
    layouts: list[bool]
    #: The step mode, if it is given.
    step: StepMode | None
    #: The library that multiplies; for "auto", MKL throughout is tried as well.
    products: Products
    #: Client-steps of a worker in the whole run: compiling pays for many.
    steps: float
    #: Clients at a time in the lanes of vectors; 0 if they cannot be run so.
    lanes: int = 0


class Trial:
    """A plan that is timed on the clients with the most work, for so many steps of a round at most.

    All steps of a round run as one piece, if they will in the run.
    """

    def __init__(self, training: Training, plan: ExecutionPlan, most: int = 1) -> None:
        self.plan = plan
        #: Seconds per client and step in the fastest measurement so far: other processes may use the machine too.
        self.seconds = float("inf")
        self._runner = ChunkRunner(training, plan)
        order = np.argsort(-training.batches.steps, kind="stable")
        clients = np.sort(order[: plan.chunk])
        self._state = initial_rows(training, len(clients))
        self._inputs = self._runner.prepare(clients, 0)
        steps = int(training.batches.steps.max())
        whole = self._runner.at_once(steps)
        self._most = None if whole else most
        self._steps = len(clients) * (steps if whole else min(most, steps))
        training.model.template.train()

    @property
    def as_planned(self) -> bool:
        """Whether steps are really run as the plan says."""
        return self._runner.in_effect.step == self.plan.step

    def run(self, times: int = 1) -> float:
        """Run it so many times; gives the seconds per client and step. The first runs trace the steps."""
        started = time.perf_counter()
        for _ in range(times):
            self._runner.run(self._state, self._inputs, self._most)
        return (time.perf_counter() - started) / (times * self._steps)

    def measure(self) -> float:
        """Time it once more; gives the seconds of the fastest measurement so far."""
        once = self.run()
        times = int(MEASUREMENT / (once * self._steps))
        self.seconds = min(self.seconds, self.run(times) if times else once)
        return self.seconds

    def __str__(self) -> str:
        layout = " channels last" if self.plan.channels_last else ""
        library = "" if self.plan.step in ("eager", "lanes") else f" {self.plan.products}"
        return f"{self.plan.chunk} {self.plan.step}{layout}{library} {self.seconds * 1e3:.3g} ms"


def measure(training: Training, candidates: Candidates) -> ExecutionPlan:
    """The fastest of the candidates; its reason lists the measurements."""
    first = Trial(training, ExecutionPlan(candidates.chunks[0], "eager"))
    first.run()
    seconds = first.measure()

    def timed(plan: ExecutionPlan) -> Trial:
        trial = Trial(training, plan, 1 if seconds > LONG_STEP else MOST_STEPS_AT_ONCE)
        trial.run(1 if seconds > VERY_LONG_STEP and plan.step != "compiled" else TRACE_AT + 1)
        trial.measure()
        return trial

    trials: list[Trial] = []
    for layout in candidates.layouts:
        best: Trial | None = None
        # Under vmap a convolution arranges its inputs itself.
        alone = seconds > LONG_STEP or (layout and len(candidates.layouts) > 1)
        step: StepMode = "eager" if candidates.step == "eager" else "traced"
        for chunk in candidates.chunks[:1] if alone else candidates.chunks:
            trial = timed(ExecutionPlan(chunk, step, layout, candidates.products))
            trials.append(trial)
            if best is not None and _hardly_faster(trial, best):
                break  # still more at a time would not help either
            best = trial
    _repeat(trials)
    chosen = fewest(trials)
    modes = [chosen]
    if chosen.plan.products == "auto" and candidates.step != "eager" and seconds <= VERY_LONG_STEP:
        modes.insert(0, timed(chosen.plan._replace(products="mkl")))
        _repeat(modes)
        chosen = simplest(modes)
    if candidates.step is None and chosen.plan.chunk == 1:
        modes.insert(0, timed(chosen.plan._replace(step="eager")))
    if candidates.step is None and candidates.lanes:
        lanes = timed(ExecutionPlan(candidates.lanes, "lanes"))
        modes += [lanes] if lanes.as_planned else []
    fastest = min(mode.seconds for mode in modes)
    compiler_may_win = fastest * COMPILER_GAIN > chosen.seconds
    pays = compiler_may_win and fastest * candidates.steps > WORTH_COMPILING and has_compiler()
    if candidates.step == "compiled" or (candidates.step is None and pays):
        # A compiler saves most of the overhead that many clients share: fewer of them may now be as fast.
        close = {trial.plan.chunk for trial in trials if trial.seconds < COMPILER_GAIN * chosen.seconds}
        fewer = max((chunk for chunk in close if chunk < chosen.plan.chunk), default=chosen.plan.chunk)
        compiled = [
            timed(chosen.plan._replace(step="compiled", chunk=chunk)) for chunk in sorted({chosen.plan.chunk, fewer})
        ]
        modes = compiled if candidates.step == "compiled" else [*modes, *compiled]
    _repeat(modes)
    measured = ", ".join(map(str, [*(trial for trial in trials if trial not in modes), *modes]))
    return simplest(modes).plan._replace(reason=f"measured, per client and step: {measured}")


def _hardly_faster(trial: Trial, best: Trial) -> bool:
    """Whether more clients at a time gain nothing; measured once more before that is believed."""
    return CHUNK_TOLERANCE * trial.seconds > best.seconds and CHUNK_TOLERANCE * trial.measure() > best.measure()


def _repeat(trials: Sequence[Trial]) -> None:
    """Measure those that may be the fastest in turn, so that a slow moment of the machine falls on all of them."""
    fastest = min(trial.seconds for trial in trials)
    close = [trial for trial in trials if trial.seconds <= NOISE_FACTOR * fastest]
    for _ in range(REPEATS if len(close) > 1 else 0):
        for trial in close:
            trial.measure()


def fewest(trials: Sequence[Trial]) -> Trial:
    """The fewest clients at a time that are about as fast as the fastest: they take the least memory, and more of it
    stays in the cache, which workers share."""
    fastest = min(trial.seconds for trial in trials)
    few = min(trial.plan.chunk for trial in trials if trial.seconds <= CHUNK_TOLERANCE * fastest)
    return min((trial for trial in trials if trial.plan.chunk == few), key=lambda trial: trial.seconds)


def simplest(modes: Sequence[Trial]) -> Trial:
    """The first of some step modes, from the simplest on, unless a later one is noticeably faster."""
    chosen = modes[0]
    for mode in modes[1:]:
        if mode.seconds * MODE_TOLERANCE < chosen.seconds:
            chosen = mode
    return chosen


def has_compiler() -> bool:
    """Whether there is a C++ compiler for torch to use."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))
