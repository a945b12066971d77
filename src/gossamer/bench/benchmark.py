"""`benchmark` measures an experiment on this machine; `gossamer bench` prints its report.

The engine is compared with an ordinary PyTorch loop over the same clients' batches, and with the processor's limit: the
fastest that any library in reach multiplies, divided by the matrix products that a step needs.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer.bench.engine import time_engine
from gossamer.bench.loop import LoopSpeed, plain_loop
from gossamer.bench.memory import data_bytes, memory_in_use, state_bytes
from gossamer.bench.processor import fastest_products, flops_per_sample, shapes_of_step
from gossamer.bench.report import BenchReport
from gossamer.data import Dataset
from gossamer.engines import StepMode
from gossamer.errors import ExperimentError
from gossamer.experiment import Experiment, prepare
from gossamer.simulation import check_options
from gossamer.system.machine import seconds_of_others, share_of_others, usable_cores
from gossamer.system.words import counted
from gossamer.training import Training, check_first_step, count_gradients
from gossamer.workers import can_fork

#: Times that each plain loop is measured, in turns.
TURNS = 3


def benchmark(
    experiment: Experiment,
    *,
    workers: int | None = None,
    data_dir: Path | None = None,
    seconds: float = 10.0,
    chunk: int | None = None,
    step: StepMode | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> BenchReport:
    """Measure an experiment on this machine, in about `seconds` plus the time of starting it twice.

    Everything is measured with one worker and with `workers` (default: one a core). `say` is called with the name of
    each measurement as it begins.
    """
    check_options({"workers": workers, "chunk": chunk, "step": step})
    share = seconds / 6  # of each of six measurements
    began, before = time.perf_counter(), seconds_of_others()
    held = memory_in_use()
    say("reading the experiment")
    training = prepare(experiment, data_dir).training
    check_first_step(training)
    steps = int(training.batches.steps.sum())
    if not steps:
        raise ExperimentError("local_steps: no client takes a local step, so there is nothing to measure")
    initial = training.model.initial
    most = workers or (usable_cores() if initial.device.type == "cpu" and can_fork() else 1)
    numbers = sorted({1, min(most, experiment.clients)})
    flops = flops_per_sample(training)
    gradients = max(1, count_gradients(training).step)

    say("the fastest matrix products")
    shapes = shapes_of_step(training)
    limit = fastest_products(share / 2, initial.dtype, initial.device, shapes)
    # Before any engine: an engine changes how the C library keeps memory, which would make this process's loop faster.
    turns: dict[int, list[float]] = {threads: [] for threads in numbers}
    for _ in range(TURNS):  # in turns, so that a slow moment of the machine falls on all of them
        for threads, rates in turns.items():
            say(f"a plain loop, {counted(threads, 'thread')}")
            rates.append(plain_loop(training, threads, share / TURNS))
    loops = [LoopSpeed(threads, statistics.median(rates)) for threads, rates in turns.items()]

    batch = float(training.batches.work().sum()) / steps
    own_data = data_bytes(training.dataset)
    facts: dict[str, Any] = {
        "clients": len(training.batches.client_rows), "parameters": training.model.size, "batch": batch,
        "gradients_per_step": gradients, "flops_per_gradient": flops * batch,
        "state_bytes": state_bytes(training), "data_bytes": own_data,
    }  # fmt: skip
    if isinstance(experiment.dataset, Dataset) and held is not None:
        held -= own_data  # was in memory before, but the run needs it
    seconds_per_step = gradients / (loops[0].gradients_per_second * numbers[-1])
    measured, shortened = _short_enough(experiment, training, seconds_per_step * steps, share)
    del training
    timed = []
    for number in numbers:
        say(f"Gossamer, {counted(number, 'worker')}")
        timed.append(time_engine(measured, number, share, chunk=chunk, step=step, data_dir=data_dir))
    # Noise only ever makes a processor look slower, so the limit is the best of two.
    limit = max(limit, fastest_products(share / 2, initial.dtype, initial.device, shapes))
    return BenchReport(
        **facts,
        steps_per_round=statistics.mean(timed[-1].steps),
        matrix_rate=limit.rate,
        fastest=limit.by,
        loops=tuple(loops),
        engines=tuple(timer.speed(number, held) for number, timer in zip(numbers, timed, strict=True)),
        shortened=shortened,
        others=_others_share(before, seconds_of_others(), time.perf_counter() - began),
    )


def _others_share(before: float | None, after: float | None, passed: float) -> float | None:
    """The share of this process's cores that other processes used; None if not known."""
    return None if before is None or after is None else share_of_others(before, after, passed)


def _short_enough(
    experiment: Experiment, training: Training, expected: float, seconds: float
) -> tuple[Experiment, int | None]:
    """The experiment, with fewer local steps if a round of it would take much longer than `seconds`."""
    own = experiment.traits.local_work is not None or training.traits.needs_equal_steps
    most = int(training.batches.steps.max())
    fewer = max(1, int(most * 3 * seconds / expected))
    if own or fewer >= most:
        return experiment, None
    return experiment.but(local_steps=fewer), fewer
