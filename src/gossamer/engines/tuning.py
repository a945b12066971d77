"""How a worker should run its clients, found by a short measurement on the real model, method and data.

What is best differs by orders of magnitude: tiny models gain most from many clients at once, large ones from one at a
time, convolutions on a CPU from images with their channels last. The finding is kept for this model on this machine.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gossamer.allocator import keep_freed_memory
from gossamer.engines.built import can_build
from gossamer.engines.chunk import MOST_AT_ONCE, RECORD_AT, ChunkRunner, How, Outcome, Plan, gist
from gossamer.engines.client import Training, about_clients, this_round
from gossamer.engines.processor import processor
from gossamer.engines.stacked import default_plan, initial_rows
from gossamer.engines.threads import on_threads
from gossamer.errors import ExperimentError
from gossamer.methods import State, mixes
from gossamer.workers import FailedApart, apart

#: Seconds of local work from which a measurement pays. It takes a few, most of them to import torch's tracer.
WORTH_MEASURING = 30.0
#: Seconds of local work from which a compiler pays. It takes a quarter of a minute the first time, a few seconds later.
WORTH_COMPILING = 60.0
#: Clients at a time that are tried. Larger chunks are not tried where smaller ones did not help.
CHUNKS = (1, 4, 16, 32, 64, 256)
#: How much longer counts as about the same: of recorded steps, which are quick to try, and of compiled ones.
ABOUT, NEARLY = 1.15, 1.05
#: A step that takes this many seconds is one of a large model, for which `vmap` is not tried.
LONG_STEP = 0.1
#: Raise it when the engine changes, so that what was found before is measured again.
EDITION = 2


class Wanted(NamedTuple):
    """What the user asks for; None leaves the choice to a measurement."""

    chunk: int | None = None
    step: How | None = None
    channels_last: bool | None = None


def choose_plan(
    training: Training,
    wanted: Wanted = Wanted(),
    workers: int = 1,
    say: Callable[[str], None] = lambda what: None,
) -> Plan:
    """The plan for a run; `say` is told if that takes a while. What fails on the first step is refused here."""
    check_first_step(training)
    model = training.model
    if model.draws_randomness:
        return default_plan(training)
    convolves = model.initial.device.type == "cpu" and has_convolutions(model.template)
    layouts = [wanted.channels_last] if wanted.channels_last is not None else [False, True] if convolves else [False]
    share = -(-len(training.batches.parts) // workers)
    reason = "as asked"
    most = min(share, CHUNKS[-1])
    chunks = [min(wanted.chunk, share)] if wanted.chunk is not None else [c for c in CHUNKS if c < most] + [most]
    if (wanted.chunk or 2) > 1 and (failure := try_step(training, trainable(training)[:2])):
        chunks, reason = [1], f"vmap cannot run this model or method: {gist(failure)}"
        wanted = wanted._replace(chunk=1)
    plain = default_plan(training)
    plain = plain._replace(
        chunk=min(plain.chunk, share) if wanted.chunk is None else chunks[0],
        step=wanted.step or "eager",
        channels_last=layouts[0],
        reason=plain.reason if wanted.chunk is None else reason,
    )
    if len(trainable(training)) == 0 or (None not in wanted[:2] and len(layouts) == 1):
        return plain
    keep_freed_memory()
    with on_threads(1):
        if found := found_before(training, wanted, workers):
            return found
        steps = training.rounds * int(training.batches.steps.sum()) / workers
        if trial(training, plain._replace(step="eager"), 1, 1) * steps < WORTH_MEASURING:
            return plain
        say("measuring how to run the clients fastest, once for this model and machine")
        try:
            plan = measured_apart(training, wanted, chunks, layouts, steps, reason)
        except FailedApart as error:
            return plain._replace(reason=f"{plain.reason}; measuring what is best failed: {gist(error)}")
        return keep(training, wanted, workers, plan)


def measured_apart(training: Training, *question: Any) -> Plan:
    """What `measure` finds, where that is possible in a process of its own, so that nothing of it stays here."""
    if not can_build(training.model.initial.device):
        return measure(training, *question)
    return Plan.from_json(apart(lambda: measure(training, *question).to_json()))


def measure(
    training: Training, wanted: Wanted, chunks: list[int], layouts: list[bool], steps: float, reason: str
) -> Plan:
    """Try what comes into question, and take the fastest."""
    tried: dict[Plan, float] = {}
    seconds = trial(training, Plan(chunks[0], "eager"), 1, 1)
    if seconds > LONG_STEP:
        chunks = chunks if wanted.chunk else [1]
    # As the run will do it, all steps in one piece, if they are few.
    whole = seconds < LONG_STEP and int(training.batches.steps.max()) <= MOST_AT_ONCE
    for layout in layouts:
        best = float("inf")
        for chunk in chunks:
            if layout and chunk > 1:
                break  # under vmap a convolution arranges its inputs itself
            plan = Plan(chunk, "eager" if wanted.step == "eager" else "traced", layout)
            seconds = trial(training, plan, *((RECORD_AT + 1, 4) if seconds < LONG_STEP else (0, 1)), whole)
            tried[plan] = seconds
            if seconds > best:
                break
            best = seconds
    plan = fewest(tried, ABOUT)
    if wanted.step == "compiled" or (wanted.step is None and tried[plan] * steps > WORTH_COMPILING and has_compiler()):
        # What many at a time save, a compiler mostly saves too: fewer may now be as fast.
        fewer = max((chunk for chunk in chunks if chunk < plan.chunk), default=plan.chunk)
        fused = {
            compiled: trial(training, compiled, RECORD_AT + 1, 4, whole)
            for compiled in (plan._replace(step="compiled", chunk=chunk) for chunk in {plan.chunk, fewer})
        }
        if wanted.step == "compiled" or min(fused.values()) < tried[plan]:
            plan = fewest(fused, NEARLY)
        tried |= fused
    said = ", ".join(
        f"{p.chunk} {p.step}{' channels last' if p.channels_last else ''} {s * 1e3:.3g} ms" for p, s in tried.items()
    )
    words = f"{reason}; " if reason != "as asked" else ""
    return plan._replace(reason=f"{words}measured, per client and step: {said}")


def fewest(tried: dict[Plan, float], about: float) -> Plan:
    """The plan with the fewest clients at a time among those that take about as long as the fastest: it takes the
    least memory, and what it touches stays in the cache, which workers share."""
    few = min(plan.chunk for plan in tried if tried[plan] <= about * min(tried.values()))
    return min((plan for plan in tried if plan.chunk == few), key=lambda plan: tried[plan])


def trial(training: Training, plan: Plan, warm: int, timed: int, whole: bool = False) -> float:
    """Seconds per client and step: the fastest of three tries, since others may use the machine too.

    It takes so many single steps, or with `whole` so many times all steps of a round, as the run will take them.
    """
    runner = ChunkRunner(training, plan)
    order = np.argsort(-training.batches.steps, kind="stable")  # clients that do have work to do
    clients = np.sort(order[: plan.chunk])
    state = initial_rows(training, len(clients))
    training.model.template.train()
    steps = int(training.batches.steps.max()) if whole else 1

    def times(number: int) -> float:
        started = time.perf_counter()
        for _ in range(number):
            run_once(runner, state, clients, None if whole else 1)
        return (time.perf_counter() - started) / (number * steps * len(clients))

    if warm:
        times(warm)
    return min(times(timed) for _ in range(3 if timed > 1 else 1))


def run_once(runner: ChunkRunner, state: State, clients: np.ndarray, most: int | None) -> Outcome:
    """These clients' first round, or the first few steps of it."""
    return runner.run(state, runner.prepare(clients, 0), 0, most)


def check_first_step(training: Training) -> None:
    """Refuse what cannot even do one step."""
    if failure := try_step(training, trainable(training)[:1]):
        shape = "x".join(map(str, training.dataset.shape))
        what = f"{type(failure).__name__}: {failure}"
        raise ExperimentError(
            f"the model, the loss or the method fails on samples of shape {shape}: {what}"
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
            after, message, _ = run_once(ChunkRunner(training, Plan(len(clients))), state, clients, 1)
            about = about_clients(training, clients, 0)
            # Nobody to talk to here: each hears itself, which has the shapes of what it will hear.
            mixed = {key: message[name] for key, (name, _) in mixes(method.sends, message).items()}
            received = each(lambda s, m, a: method.receive(s, m, this_round(training, 0, a)))(after, mixed, about)
            _same_shapes(state, received)
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


def has_compiler() -> bool:
    """Whether there is a C++ compiler for torch to use."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def found_before(training: Training, wanted: Wanted, workers: int) -> Plan | None:
    """What an earlier measurement of the same thing on this machine found."""
    try:
        plan = Plan.from_json(_kept_in(training, wanted, workers).read_text(encoding="utf-8"))
        return plan._replace(reason=f"{plan.reason}; kept from an earlier run")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(training: Training, wanted: Wanted, workers: int, plan: Plan) -> Plan:
    """Keep a finding for the next time; without a place to keep it, it will be measured again."""
    path = _kept_in(training, wanted, workers)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(plan.to_json(), encoding="utf-8")
        aside.replace(path)
    except OSError:
        pass
    return plan


def _kept_in(training: Training, wanted: Wanted, workers: int) -> Path:
    from platformdirs import user_cache_path

    model, batches = training.model, training.batches
    sizes = [batches.batch_size, int(np.median(batches.sizes)), min(-(-len(batches.parts) // workers), max(CHUNKS))]
    about = [
        EDITION, torch.__version__, processor(), str(model.initial.device), str(model.initial.dtype),
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


def _same_shapes(kept: State, received: State) -> None:
    """Refuse a method that forgets a part of its state, or changes its shape."""
    for name, rows in kept.items():
        if name not in received or received[name].shape != rows.shape:
            found = tuple(received[name].shape[1:]) if name in received else "nothing"
            raise ValueError(f"after receive, '{name}' of the state is {found}, not {tuple(rows.shape[1:])}")
