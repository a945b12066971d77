"""Ways to run clients, tried and timed on the real model, method and data."""

import os
import shutil
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gossamer.engines.stacked import initial_rows
from gossamer.engines.steps.chunk import MOST_AT_ONCE, RECORD_AT, ChunkRunner, ExecutionPlan, StepMode
from gossamer.training import Training

#: Seconds of local work from which a compiler pays. It takes a quarter of a minute for each number of clients tried.
WORTH_COMPILING = 120.0
#: How much longer counts as about the same: of fewer clients at a time, and of a simpler way to take a step.
ABOUT, NEARLY = 1.15, 1.05
#: How much longer may still be the noise of one turn.
NOISE = 1.4
#: How much longer fewer clients at a time may take for a compiler to make up for it.
A_FEW = 2.0
#: A step that takes this many seconds is mostly work that many at a time do not save, so that is not tried; from the
#: other on, what recording saves does not show either.
LONG_STEP, VERY_LONG_STEP = 0.02, 0.1
#: Seconds of a turn, and how many of them those take that come into question.
TURN, TURNS = 0.15, 4


class Candidates(NamedTuple):
    """What comes into question."""

    chunks: list[int]
    layouts: list[bool]
    #: How a step is taken, if that is not to be found out.
    step: StepMode | None
    #: Client-steps that lie ahead of a worker: what takes long to prepare pays for many.
    steps: float


class Trial:
    """A plan that is tried, on clients that have work to do, for so many steps of a round at most.

    All steps of a round are taken in one piece, if the run will take them so.
    """

    def __init__(self, training: Training, plan: ExecutionPlan, most: int = 1) -> None:
        self.plan = plan
        #: Seconds per client and step, in the fastest turn so far: others may use the machine too.
        self.seconds = float("inf")
        self._runner = ChunkRunner(training, plan)
        order = np.argsort(-training.batches.steps, kind="stable")
        clients = np.sort(order[: plan.chunk])
        self._state = initial_rows(training, len(clients))
        self._prepared = self._runner.prepare(clients, 0)
        steps = int(training.batches.steps.max())
        whole = self._runner.at_once(steps)
        self._most = None if whole else most
        self._steps = len(clients) * (steps if whole else min(most, steps))
        training.model.template.train()

    def run(self, times: int = 1) -> float:
        """Run it so often; seconds per client and step. Once, or until its steps are recorded, is for nothing."""
        started = time.perf_counter()
        for _ in range(times):
            self._runner.run(self._state, self._prepared, 0, self._most)
        return (time.perf_counter() - started) / (times * self._steps)

    def turn(self) -> float:
        """Run it for a moment; the seconds of its fastest turn so far."""
        once = self.run()
        often = int(TURN / (once * self._steps))
        self.seconds = min(self.seconds, self.run(often) if often else once)
        return self.seconds

    def __str__(self) -> str:
        layout = " channels last" if self.plan.channels_last else ""
        return f"{self.plan.chunk} {self.plan.step}{layout} {self.seconds * 1e3:.3g} ms"


def measure(training: Training, which: Candidates) -> ExecutionPlan:
    """Try what comes into question, and take the fastest; its reason is what was measured."""
    first = Trial(training, ExecutionPlan(which.chunks[0], "eager"))
    first.run()
    seconds = first.turn()

    def tried(plan: ExecutionPlan) -> Trial:
        trial = Trial(training, plan, 1 if seconds > LONG_STEP else MOST_AT_ONCE)
        trial.run(1 if seconds > VERY_LONG_STEP and plan.step != "compiled" else RECORD_AT + 1)
        trial.turn()
        return trial

    trials: list[Trial] = []
    for layout in which.layouts:
        best: Trial | None = None
        # Under vmap a convolution arranges its inputs itself.
        alone = seconds > LONG_STEP or (layout and len(which.layouts) > 1)
        for chunk in which.chunks[:1] if alone else which.chunks:
            trial = tried(ExecutionPlan(chunk, "eager" if which.step == "eager" else "traced", layout))
            trials.append(trial)
            if best is not None and ABOUT * trial.seconds > best.seconds and ABOUT * trial.turn() > best.turn():
                break  # still more at a time would not help either
            best = trial
    _take_turns(trials)
    chosen = fewest(trials)
    ways = [chosen]
    if which.step is None and chosen.plan.chunk == 1:
        ways.insert(0, tried(chosen.plan._replace(step="eager")))
    pays = chosen.seconds * which.steps > WORTH_COMPILING and has_compiler()
    if which.step == "compiled" or (which.step is None and pays):
        # What many at a time save, a compiler mostly saves too: a few less may now be as fast.
        close = {trial.plan.chunk for trial in trials if trial.seconds < A_FEW * chosen.seconds}
        fewer = max((chunk for chunk in close if chunk < chosen.plan.chunk), default=chosen.plan.chunk)
        compiled = [
            tried(chosen.plan._replace(step="compiled", chunk=chunk)) for chunk in sorted({chosen.plan.chunk, fewer})
        ]
        ways = compiled if which.step == "compiled" else [*ways, *compiled]
    _take_turns(ways)
    plan = simplest(ways).plan
    said = ", ".join(map(str, [*(trial for trial in trials if trial not in ways), *ways]))
    return plan._replace(reason=f"measured, per client and step: {said}")


def _take_turns(trials: Sequence[Trial]) -> None:
    """Let those that may be the fastest take turns, so that a slow moment of the machine falls on all of them."""
    fastest = min(trial.seconds for trial in trials)
    close = [trial for trial in trials if trial.seconds <= NOISE * fastest]
    for _ in range(TURNS if len(close) > 1 else 0):
        for trial in close:
            trial.turn()


def fewest(trials: Sequence[Trial]) -> Trial:
    """The one with the fewest clients at a time among those that take about as long as the fastest: it takes the
    least memory, and what it touches stays in the cache, which workers share."""
    fastest = min(trial.seconds for trial in trials)
    few = min(trial.plan.chunk for trial in trials if trial.seconds <= ABOUT * fastest)
    return min((trial for trial in trials if trial.plan.chunk == few), key=lambda trial: trial.seconds)


def simplest(ways: Sequence[Trial]) -> Trial:
    """The first of some ways, from the simplest on, unless a later one is noticeably faster."""
    chosen = ways[0]
    for way in ways[1:]:
        if way.seconds * NEARLY < chosen.seconds:
            chosen = way
    return chosen


def has_compiler() -> bool:
    """Whether there is a C++ compiler for torch to use."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))
