"""How a worker should run its clients, found by a short measurement on the real model, method and data.

What is best differs by orders of magnitude: tiny models gain most from many clients at once, large ones from one at a
time, convolutions on a CPU from images with their channels last. The finding is kept for this model on this machine.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from platformdirs import user_cache_path
from torch import nn

from gossamer.engines.memory import is_small
from gossamer.engines.planning.trials import Candidates, Trial, measure
from gossamer.engines.stacked import default_plan, initial_rows, shape_mismatch, shapes
from gossamer.engines.steps.chunk import ChunkRunner, ExecutionPlan, StepMode, gist
from gossamer.engines.steps.compiled import can_build, put
from gossamer.errors import ExperimentError
from gossamer.methods import mixes
from gossamer.parts import describe_error
from gossamer.system.allocator import keep_freed_memory
from gossamer.system.machine import processor_and_features
from gossamer.system.threads import on_threads
from gossamer.system.words import counted
from gossamer.training import Training
from gossamer.training.steps import about_clients, this_round
from gossamer.workers import ForkFailed, run_in_fork

#: Seconds of local work from which a measurement pays. It takes a few, most of them to import torch's tracer.
WORTH_MEASURING = 30.0
#: Clients at a time that are tried.
CHUNKS = (1, 4, 16, 64, 256)
#: How many times larger the next one is at least: the difference between nearer ones is lost in the noise.
APART = 1.5
#: Of a large state, one client in so many runs at once: it needs a dozen times the memory of its state meanwhile.
BESIDE = 256
#: Raise it when the engine changes, so that what was found before is measured again.
EDITION = 5


class PlanOverrides(NamedTuple):
    """What the user asks for; None leaves the choice to a measurement."""

    chunk: int | None = None
    step: StepMode | None = None
    channels_last: bool | None = None


def choose_plan(
    training: Training,
    wanted: PlanOverrides = PlanOverrides(),
    workers: int = 1,
    say: Callable[[str], None] = lambda what: None,
) -> ExecutionPlan:
    """The plan for a run; `say` is told if that takes a while. What fails on the first step is refused here."""
    check_first_step(training)
    model = training.model
    if model.draws_randomness:
        return default_plan(training)
    convolves = model.initial.device.type == "cpu" and has_convolutions(model.template)
    layouts = [wanted.channels_last] if wanted.channels_last is not None else [False, True] if convolves else [False]
    reason = "as asked"
    if wanted.channels_last and not has_convolutions(model.template):
        layouts, reason = [False], "the model has no convolution"
    share, most = -(-len(training.batches.client_rows) // workers), most_at_once(training, workers)
    if wanted.chunk is not None and wanted.chunk > share:
        reason = f"a worker has {counted(share, 'client')}"
    chunks = [min(wanted.chunk, share)] if wanted.chunk is not None else sizes_to_try(share, most)
    if (wanted.chunk or 2) > 1 and (failure := try_step(training, trainable(training)[:2])):
        chunks, reason = [1], f"vmap cannot run this model or method: {gist(failure)}"
        wanted = wanted._replace(chunk=1)
    plain = default_plan(training)
    plain = plain._replace(
        chunk=min(plain.chunk, most) if wanted.chunk is None else chunks[0],
        step=wanted.step or "eager",
        channels_last=layouts[0],
        reason=plain.reason if wanted.chunk is None and reason == "as asked" else reason,
    )
    if len(trainable(training)) == 0 or (None not in wanted[:2] and len(layouts) == 1):
        return plain
    keep_freed_memory()
    with on_threads(1):
        if found := found_before(training, wanted, workers):
            return found
        steps = training.rounds * int(training.batches.steps.sum()) / workers
        once = Trial(training, plain._replace(step="eager"))
        once.run()  # the first time takes longer
        if once.run() * steps < WORTH_MEASURING:
            return plain
        say("measuring how to run the clients fastest, once for this model and machine")
        try:
            plan = measured_apart(training, Candidates(chunks, layouts, wanted.step, steps))
        except ForkFailed as error:
            return plain._replace(reason=f"{plain.reason}; measuring what is best failed: {gist(error)}")
        if reason != "as asked":
            plan = plan._replace(reason=f"{reason}; {plan.reason}")
        return keep(training, wanted, workers, plan)


def most_at_once(training: Training, workers: int) -> int:
    """The most clients that a worker should run at once: of a large state so few that they take little beside it."""
    clients = len(training.batches.client_rows)
    share = -(-clients // workers)
    if not is_small(training.method.init(training.model.initial), clients):
        share = max(1, share // BESIDE)
    return min(share, CHUNKS[-1])


def sizes_to_try(share: int, most: int) -> list[int]:
    """Numbers of clients at a time, as they come when a worker's clients are cut into pieces of about the same size.

    >>> sizes_to_try(100, 100), sizes_to_try(5000, 19)
    ([1, 4, 15, 50, 100], [1, 4, 16])
    """
    sizes: list[int] = []
    for chunk in (*(chunk for chunk in CHUNKS if chunk < most), most):
        size = -(-share // -(-share // chunk))
        if not sizes or size >= APART * sizes[-1]:
            sizes.append(size)
    return sizes


def measured_apart(training: Training, which: Candidates) -> ExecutionPlan:
    """What `measure` finds, where that is possible in a process of its own, so that nothing of it stays here."""
    if not can_build(training.model.initial.device):
        return measure(training, which)
    return ExecutionPlan.from_json(run_in_fork(lambda: measure(training, which).to_json()))


def check_first_step(training: Training) -> None:
    """Refuse what cannot even do one step."""
    if failure := try_step(training, trainable(training)[:1]):
        shape = "x".join(map(str, training.dataset.shape))
        raise ExperimentError(
            f"the model, the loss or the method fails on samples of shape {shape}: {describe_error(failure)}"
        ) from failure


def try_step(training: Training, clients: np.ndarray) -> Exception | None:
    """The error, if any, of one local step of these clients up to what they receive; nothing is kept of it."""
    if not len(clients):
        return None
    method, model, device = training.method, training.model, training.model.initial.device
    state = initial_rows(training, len(clients))
    buffers = {name: value.clone() for name, value in model.template.named_buffers()}
    each: Any = torch.func.vmap if len(clients) > 1 else _rowwise
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        before = torch.get_rng_state()
        model.template.train()
        try:
            runner = ChunkRunner(training, ExecutionPlan(len(clients)))
            after, message, _ = runner.run(state, runner.prepare(clients, 0), 0, 1)
            about = about_clients(training, clients, 0)
            # Nobody to talk to here: each hears itself, which has the shapes of what it will hear.
            mixed = {key: message[name] for key, (name, _) in mixes(method.sends, message).items()}
            received = each(lambda s, m, a: method.receive(s, m, this_round(training, 0, a)))(after, mixed, about)
            if wrong := shape_mismatch("state", shapes(state), received):
                raise ValueError(f"after receive, {wrong}")
            each(method.model)(received)
        except Exception as error:  # whatever a user's own code may raise
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


def found_before(training: Training, wanted: PlanOverrides, workers: int) -> ExecutionPlan | None:
    """What an earlier measurement of the same thing on this machine found."""
    try:
        plan = ExecutionPlan.from_json(_kept_in(training, wanted, workers).read_text(encoding="utf-8"))
        return plan._replace(reason=f"{plan.reason}; kept from an earlier run")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(training: Training, wanted: PlanOverrides, workers: int, plan: ExecutionPlan) -> ExecutionPlan:
    """Keep a finding for the next time; without a place to keep it, it will be measured again."""
    with suppress(OSError):
        put(_kept_in(training, wanted, workers), plan.to_json().encode())
    return plan


def _kept_in(training: Training, wanted: PlanOverrides, workers: int) -> Path:
    model, batches = training.model, training.batches
    sizes = [batches.batch_size, int(np.median(batches.sizes)), most_at_once(training, workers)]
    about = [
        EDITION, torch.__version__, processor_and_features(), str(model.initial.device), str(model.initial.dtype),
        repr(model.template), repr(training.method), repr(training.loss), training.dataset.shape, sizes, wanted,
        workers, training.rounds, training.clip is None, training.weight_decay > 0,
    ]  # fmt: skip
    digest = hashlib.blake2b(repr(about).encode(), digest_size=12).hexdigest()
    return user_cache_path("gossamer") / "plans" / f"{digest}.json"


def _rowwise(function: Any) -> Any:
    """`vmap` for one client, without its cost."""

    def call(*stacked: Any) -> Any:
        return torch.utils._pytree.tree_map(
            lambda t: t.unsqueeze(0), function(*torch.utils._pytree.tree_map(lambda t: t.squeeze(0), stacked))
        )

    return call
