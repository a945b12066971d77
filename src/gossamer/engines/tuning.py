"""How a worker should run its clients, found by a short measurement on the real model, method and data.

What is best differs by orders of magnitude: tiny models gain most from many clients at once, large ones from one at a
time, convolutions on a CPU from images with their channels last. The finding is kept for this model on this machine.
"""

import hashlib
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gossamer.allocator import keep_freed_memory
from gossamer.engines.chunk import COMPILE_AT, ChunkRunner, How, Outcome, Plan, gist
from gossamer.engines.client import Training, about_clients, this_round
from gossamer.engines.stacked import default_plan
from gossamer.engines.threads import on_threads
from gossamer.errors import ExperimentError
from gossamer.methods import State, mixes

#: Seconds of local work from which a measurement pays. It takes a few, most of them to import torch's tracer.
WORTH_MEASURING = 30.0
#: Seconds of local work from which a compiler pays. It takes a quarter of a minute the first time, a few seconds later.
WORTH_COMPILING = 60.0
#: Clients at a time that are tried. Larger chunks are not tried where smaller ones did not help.
CHUNKS = (1, 4, 16, 64, 256)
#: How much longer counts as about the same.
ABOUT = 1.15
#: A step that takes this many seconds is one of a large model, for which `vmap` is not tried.
LONG_STEP = 0.1
#: Raise it when the engine changes, so that what was found before is measured again.
EDITION = 1


class Wanted(NamedTuple):
    """What the user asks for; None leaves the choice to a measurement."""

    chunk: int | None = None
    step: How | None = None
    channels_last: bool | None = None


def choose_plan(training: Training, wanted: Wanted = Wanted(), workers: int = 1) -> Plan:
    """The plan for a run. A model, loss or method that fails on the first step is refused here."""
    check_first_step(training)
    model = training.model
    if model.draws_randomness:
        return default_plan(training)
    convolves = model.initial.device.type == "cpu" and has_convolutions(model.template)
    layouts = [wanted.channels_last] if wanted.channels_last is not None else [False, True] if convolves else [False]
    share = -(-len(training.batches.parts) // workers)
    reason = "as asked"
    chunks = [min(wanted.chunk, share)] if wanted.chunk is not None else [c for c in CHUNKS if c <= share]
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
        return keep(training, wanted, workers, measure(training, wanted, chunks, layouts, steps, reason))


def measure(
    training: Training, wanted: Wanted, chunks: list[int], layouts: list[bool], steps: float, reason: str
) -> Plan:
    """Try what comes into question, and take the fastest."""
    tried: dict[Plan, float] = {}
    seconds = trial(training, Plan(chunks[0], "eager"), 1, 1)
    if seconds > LONG_STEP:
        chunks = chunks if wanted.chunk else [1]
    for layout in layouts:
        best = float("inf")
        for chunk in chunks:
            if layout and chunk > 1:
                break  # under vmap a convolution arranges its inputs itself
            plan = Plan(chunk, "eager" if wanted.step == "eager" else "traced", layout)
            seconds = trial(training, plan, *((4, 4) if seconds < LONG_STEP else (0, 1)))
            tried[plan] = seconds
            if seconds > 1.2 * best:
                break
            best = min(best, seconds)
    # The fewest at a time among those that are about as fast: what they touch stays in the cache, which workers share.
    few = min(p.chunk for p in tried if tried[p] <= ABOUT * min(tried.values()))
    plan = min((p for p in tried if p.chunk == few), key=lambda p: tried[p])
    if wanted.step == "compiled" or (wanted.step is None and tried[plan] * steps > WORTH_COMPILING and has_compiler()):
        fused = plan._replace(step="compiled")
        tried[fused] = trial(training, fused, COMPILE_AT + 1, 4)
        if wanted.step == "compiled" or tried[fused] < tried[plan]:
            plan = fused
    said = ", ".join(
        f"{p.chunk} {p.step}{' channels last' if p.channels_last else ''} {s * 1e3:.3g} ms" for p, s in tried.items()
    )
    words = f"{reason}; " if reason != "as asked" else ""
    return plan._replace(reason=f"{words}measured, per client and step: {said}")


def trial(training: Training, plan: Plan, warm: int, timed: int) -> float:
    """Seconds per client and step: the fastest of three tries, since others may use the machine too."""
    runner = ChunkRunner(training, plan)
    order = np.argsort(-training.batches.steps, kind="stable")  # clients that do have work to do
    clients = np.sort(order[: plan.chunk])
    state = initial_rows(training, len(clients))
    training.model.template.train()
    longest = int(training.batches.steps.max())
    done = 0
    while done < warm:
        run_once(runner, state, clients, warm - done)
        done += min(longest, warm)
    took = []
    for _ in range(3 if timed > 1 else 1):
        steps, started = 0, time.perf_counter()
        while steps < timed:
            run_once(runner, state, clients, timed - steps)
            steps += min(longest, timed)
        took.append((time.perf_counter() - started) / (steps * len(clients)))
    return min(took)


def run_once(runner: ChunkRunner, state: State, clients: np.ndarray, most: int) -> Outcome:
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


def initial_rows(training: Training, clients: int) -> State:
    """The state of some clients before the first round."""
    initial = training.method.init(training.model.initial)
    return {name: value.expand(clients, *value.shape).clone() for name, value in initial.items()}


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
        EDITION, torch.__version__, cpu_name(), str(model.initial.device), str(model.initial.dtype),
        repr(model.template), repr(training.method), repr(training.loss), training.dataset.shape, sizes, wanted,
        workers, training.rounds, training.clip is None, training.weight_decay > 0,
    ]  # fmt: skip
    digest = hashlib.blake2b(repr(about).encode(), digest_size=12).hexdigest()
    return user_cache_path("gossamer") / "plans" / f"{digest}.json"


def cpu_name() -> str:
    """The processor by name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


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
