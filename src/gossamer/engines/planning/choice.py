"""How a worker should run its clients, found by a short measurement on the real model, method and data.

The best way differs by orders of magnitude: tiny models gain most from many clients at once, large ones from one at a
time, convolutions on a CPU from images with their channels last. The result is kept for this model on this machine.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import vmap

from gossamer.engines.memory import SMALL_STATE, state_size
from gossamer.engines.planning.trials import Candidates, Trial, measure
from gossamer.engines.rows import Rows
from gossamer.engines.stacked import default_plan, initial_rows, shape_mismatch, shapes
from gossamer.engines.steps.chunk import ChunkRunner, ExecutionPlan, StepMode, one_line
from gossamer.engines.steps.compiled import can_use_forks
from gossamer.engines.steps.lane_code import NotInLanes
from gossamer.engines.steps.lanes import check_lanes
from gossamer.engines.steps.products import Products, why_not
from gossamer.methods import mixes
from gossamer.system.allocator import keep_freed_memory
from gossamer.system.cache import cache_file, write_atomically
from gossamer.system.machine import BUSY, is_busy, seconds_of_others, share_of_others
from gossamer.system.threads import on_threads
from gossamer.system.torch_private import quiet_vmap
from gossamer.system.words import counted
from gossamer.training import Training
from gossamer.training.rounds import over_clients
from gossamer.workers import ForkFailed, run_in_fork

#: Seconds of local work from which a measurement pays. It takes a few, most of them to import torch's tracer.
WORTH_MEASURING = 30.0
#: Clients at a time that are tried.
CHUNKS = (1, 4, 16, 64, 256)
#: The least ratio between two sizes that are tried: the difference between nearer ones is lost in the noise.
LEAST_RATIO = 1.5
#: Clients at a time in the lanes of vectors, and the most bytes of their state: their vectors alone take memory.
MOST_LANES, LANES_STATE = 256, 8 << 20
#: A large state limits a chunk to this fraction of a worker's clients: while it runs, a chunk takes about a dozen times
#: the memory of its state.
LARGE_STATE_FRACTION = 1 / 256


class PlanOverrides(NamedTuple):
    """The parts of a plan that the user sets; None leaves the choice to a measurement."""

    chunk: int | None = None
    step: StepMode | None = None
    channels_last: bool | None = None
    products: Products | None = None


def choose_plan(
    training: Training,
    overrides: PlanOverrides = PlanOverrides(),
    workers: int = 1,
    notify: Callable[[str], None] = lambda what: None,
    small_state: int = SMALL_STATE,
) -> ExecutionPlan:
    """The plan for a run; `notify` is called if that takes a while."""
    model = training.model
    if model.draws_randomness:
        return default_plan(training)
    layouts, reason = _layouts(training, overrides)
    per_worker = -(-len(training.batches.client_rows) // workers)
    most = most_at_once(training, workers, small_state)
    if overrides.chunk is not None and overrides.chunk > per_worker:
        reason = f"a worker has {counted(per_worker, 'client')}"
    chunks = sizes_to_try(per_worker, most) if overrides.chunk is None else [min(overrides.chunk, per_worker)]
    if (overrides.chunk or 2) > 1 and (failure := try_step(training, trainable(training)[:2])):
        chunks, reason = [1], f"vmap cannot run this model or method: {one_line(failure)}"
        overrides = overrides._replace(chunk=1, step="traced" if overrides.step == "lanes" else overrides.step)
    plain = default_plan(training)
    plain = plain._replace(
        chunk=min(plain.chunk, most) if overrides.chunk is None else chunks[0],
        step=overrides.step or "eager",
        channels_last=layouts[0],
        products=library_for(training, overrides.products),
        reason=plain.reason if overrides.chunk is None and reason == "as asked" else reason,
    )
    lanes = (overrides.chunk or lanes_at_once(training, per_worker)) or plain.chunk
    if overrides.step == "lanes":
        return plain._replace(chunk=min(lanes, per_worker))
    if len(trainable(training)) == 0 or (None not in overrides[:2] and len(layouts) == 1):
        return plain
    keep_freed_memory()
    with on_threads(1):
        kept_in = _kept_in(training, overrides, workers, most)
        if found := _measured_earlier(kept_in):
            return found
        steps = training.rounds * int(training.batches.steps.sum()) / workers
        trial = Trial(training, plain._replace(step="eager"))
        trial.run()  # the first time takes longer
        if trial.run() * steps < WORTH_MEASURING:
            return plain
        before, began = seconds_of_others(), time.perf_counter()
        notify("measuring how to run the clients fastest, once for this model and machine")
        try:
            lanes = lanes if max(chunks) > 1 else 0
            plan = _measure_in_fork(training, Candidates(chunks, layouts, overrides.step, plain.products, steps, lanes))
        except ForkFailed as error:
            return plain._replace(reason=f"{plain.reason}; measuring what is best failed: {one_line(error)}")
        if reason != "as asked":
            plan = plan._replace(reason=f"{reason}; {plan.reason}")
        with suppress(OSError):  # a folder that cannot be written to: the next run measures again
            write_atomically(kept_in, json.dumps([plan.to_json(), _was_busy(before, began)]).encode())
        return plan


def _was_busy(before: float | None, began: float) -> bool:
    """Whether other processes disturbed a measurement; `before` is what they had used when it began."""
    after = seconds_of_others()
    if before is None or after is None:
        return False
    return share_of_others(before, after, time.perf_counter() - began) > BUSY


def library_for(training: Training, asked: Products | None) -> Products:
    """The library for matrix products: as asked, or the fastest one for each shape, where there is more than one."""
    initial, wanted = training.model.initial, asked or "auto"
    return "mkl" if why_not(wanted, initial.dtype, initial.device) else wanted


def _layouts(training: Training, overrides: PlanOverrides) -> tuple[list[bool], str]:
    """Whether images have their channels last: the choices, and the reason."""
    convolves = has_convolutions(training.model.template)
    if overrides.channels_last is None:
        return [False, True] if convolves and training.model.initial.device.type == "cpu" else [False], "as asked"
    if overrides.channels_last and not convolves:
        return [False], "the model has no convolution"
    return [overrides.channels_last], "as asked"


def most_at_once(training: Training, workers: int, small_state: int = SMALL_STATE) -> int:
    """The most clients that a worker should run at once: with a large state so few that they take little beside it."""
    clients = len(training.batches.client_rows)
    most = -(-clients // workers)
    if state_size(training.method.init(training.model.initial), clients) > small_state:
        most = max(1, int(most * LARGE_STATE_FRACTION))
    return min(most, CHUNKS[-1])


def lanes_at_once(training: Training, clients: int) -> int:
    """The number of clients that a worker runs at once in the lanes of vectors; 0 if it cannot."""
    try:
        check_lanes(training.model.size, training.model.initial)
    except NotInLanes:
        return 0
    state = state_size(training.method.init(training.model.initial), 1)
    most = max(1, min(MOST_LANES, LANES_STATE // state))
    return -(-clients // -(-clients // most))


def sizes_to_try(clients: int, most: int) -> list[int]:
    """Numbers of clients at a time, as they come when a worker's clients are cut into pieces of about the same size.

    >>> sizes_to_try(100, 100), sizes_to_try(5000, 19)
    ([1, 4, 15, 50, 100], [1, 4, 16])
    """
    sizes: list[int] = []
    for chunk in (*(chunk for chunk in CHUNKS if chunk < most), most):
        size = -(-clients // -(-clients // chunk))
        if not sizes or size >= LEAST_RATIO * sizes[-1]:
            sizes.append(size)
    return sizes


def _measure_in_fork(training: Training, candidates: Candidates) -> ExecutionPlan:
    """The best plan, measured in a fork where that is possible, so that its memory is not kept."""
    if not can_use_forks(training.model.initial.device):
        return measure(training, candidates)
    return ExecutionPlan.from_json(run_in_fork(lambda: measure(training, candidates).to_json()))


def try_step(training: Training, clients: np.ndarray) -> Exception | None:
    """The error, if any, of one local step of these clients and of receiving its message. The result is dropped."""
    if not len(clients):
        return None
    quiet_vmap()
    method, model, device = training.method, training.model, training.model.initial.device
    state = initial_rows(training, len(clients))
    buffers = {name: value.clone() for name, value in model.template.named_buffers()}
    each: Any = vmap if len(clients) > 1 else Rows(vectorises=False)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        before = torch.get_rng_state()
        model.template.train()
        try:
            runner = ChunkRunner(training, ExecutionPlan(len(clients)))
            inputs = runner.prepare(clients, 0)
            after, message, _ = runner.run(state, inputs, 1)
            # Each client receives its own message, which has the shapes of what it will receive.
            mixed = {key: message[name] for key, (name, _) in mixes(method.sends, message).items()}
            received = over_clients(each, method.receive, inputs.round)(after, mixed)
            if wrong := shape_mismatch("state", shapes(state), received):
                raise ValueError(f"after receive, {wrong}")
            each(method.model)(received)
        except Exception as error:  # a user's own code may raise anything
            return error
        model.draws_randomness |= not torch.equal(torch.get_rng_state(), before)
    for name, value in model.template.named_buffers():
        if not torch.equal(value, buffers[name]):
            return ValueError(f"the model changes its buffer '{name}' while it trains, which no client sends")
    return None


def trainable(training: Training) -> np.ndarray:
    """The clients that take local steps."""
    return np.flatnonzero(training.batches.steps)


def has_convolutions(module: nn.Module) -> bool:
    """Whether the memory format of images matters to a model."""
    return any(isinstance(layer, nn.Conv2d) for layer in module.modules())


def _kept_in(training: Training, overrides: PlanOverrides, workers: int, most: int) -> Path:
    """The file that keeps the measured plan."""
    model, batches = training.model, training.batches
    sizes = [batches.batch_size, int(np.median(batches.sizes)), most]
    parts = [repr(part) for part in (model.template, training.method, training.loss)]
    settings = [training.rounds, training.clip is None, training.weight_decay > 0]
    where = [str(model.initial.device), str(model.initial.dtype), training.dataset.shape]
    return cache_file("plans", *parts, *where, sizes, settings, overrides, workers).with_suffix(".json")


def _measured_earlier(kept_in: Path) -> ExecutionPlan | None:
    """The plan that an earlier run measured; one of a busy machine is measured again as soon as it is quiet."""
    try:
        text, busy = json.loads(kept_in.read_text(encoding="utf-8"))
        plan = ExecutionPlan.from_json(text)
        if busy:
            if not is_busy():
                return None
            plan = plan._replace(reason=f"{plan.reason}; on a busy machine")
        return plan._replace(reason=f"{plan.reason}; kept from an earlier run")
    except (OSError, ValueError, KeyError, TypeError):
        return None
