"""How fast an experiment runs on this machine, and what holds it back.

`measure` is what `gossamer bench` calls. The engine is set against two things: an ordinary PyTorch loop over the same
clients' batches, and the processor's limit, which is the fastest that it multiplies matrices, divided by the matrix
products that a step needs.
"""

import copy
import ctypes
import gc
import itertools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.data import Dataset
from gossamer.engines import StepMode
from gossamer.errors import ExperimentError
from gossamer.experiment import Experiment
from gossamer.experiment.preparation import Prepared, prepare
from gossamer.methods import gossip_steps, local_work
from gossamer.simulation import Metrics, check_options, simulate
from gossamer.system.machine import processor, seconds_of_others, usable_cores
from gossamer.system.threads import on_threads
from gossamer.system.words import counted
from gossamer.training import Training, count_gradients
from gossamer.workers import can_fork

#: What may hold a run back, and what a user can do about each.
LIMITS = {
    "matrix products": (
        "the processor is busy with the model itself. More cores, a GPU (device) or a smaller model would make it "
        "faster; another way to run it hardly would."
    ),
    "overhead of small operations": (
        "the model's matrices are too small to keep the processor busy. A larger batch_size makes them larger; "
        "--chunk runs more clients at once."
    ),
    "mixing": "more local_steps for each average, or a graph with fewer neighbours, would shift time to training.",
    "waiting for the slowest worker": (
        "the workers' shares of the work differ, or something else runs on this machine. Clients of similar size, "
        "or fewer --workers, would help."
    ),
    "evaluation": "evaluate less often: the keys every, clients and training of [evaluate].",
}

#: Side of the matrices whose product is the limit: large enough for the highest rate, small enough for a short test.
SIDE = 1024
#: Rounds that are not timed: memory is fetched and steps are recorded or compiled in them.
WARM_UP = 2
#: Turns of a loop.
TURNS = 3
#: The share of this process's cores that others may have used before a reader must be told.
DISTURBED = 0.1
#: Seconds after which a run whose rounds take that long is not watched any further.
PATIENCE = 30.0


@dataclass(frozen=True)
class LoopSpeed:
    """The plain loop with some number of threads. It trains and does nothing else: no mixing, no evaluation."""

    threads: int
    #: The median of its turns.
    gradients_per_second: float


@dataclass(frozen=True)
class Split:
    """Where the seconds of a mean round went."""

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
    #: How clients were run: how many at once, and how a step was taken.
    how: str
    client_steps_per_second: float
    #: The mean round of those that were timed, and how many there were.
    seconds: Split
    rounds: int
    #: Seconds from the call to the first round.
    start_up: float
    #: What the run took at most, in all its processes, beyond what this process held before; None if not known.
    peak_bytes: int | None


@dataclass(frozen=True)
class BenchReport:
    """What `measure` found."""

    clients: int
    parameters: int
    #: Samples in a mean mini-batch, and local steps of all clients in a mean round.
    batch: float
    steps_per_round: float
    #: Gradients that the method takes in one local step, two for SAM.
    gradients_per_step: int
    #: Floating-point operations in the matrix products of one gradient, and how many of them one core does in a second.
    flops_per_gradient: float
    matrix_rate: float
    loops: tuple[LoopSpeed, ...]
    engines: tuple[EngineSpeed, ...]
    #: What the clients' states and the samples take in memory.
    state_bytes: int
    data_bytes: int
    #: Local steps of each client that were measured in place of the experiment's own, where those would take too long.
    shortened: int | None
    #: The share of the cores that something else used meanwhile; None if not known.
    others: float | None

    @property
    def best(self) -> EngineSpeed:
        """The engine with all workers."""
        return self.engines[-1]

    def loop_steps(self, loop: LoopSpeed) -> float:
        """What the loop would do in client-steps per second if it took as many gradients in a step."""
        return loop.gradients_per_second / self.gradients_per_step

    def against(self, engine: EngineSpeed, loop: LoopSpeed) -> float:
        """How many times faster the engine is."""
        return engine.client_steps_per_second / self.loop_steps(loop)

    def share_of_limit(self, engine: EngineSpeed) -> float:
        """The share of the workers' matrix-product rate that the engine turns into gradients."""
        needed = engine.client_steps_per_second * self.gradients_per_step * self.flops_per_gradient
        return needed / (self.matrix_rate * engine.workers)

    def shares(self) -> dict[str, float]:
        """The share of a round's time that each limit accounts for, with all workers."""
        split, workers = self.best.seconds, self.best.workers
        flops = self.steps_per_round * self.gradients_per_step * self.flops_per_gradient
        products = min(split.local, flops / (self.matrix_rate * workers))
        seconds = (products, split.local - products, split.mixing, split.waiting, split.evaluation)
        return {limit: part / max(split.total, 1e-12) for limit, part in zip(LIMITS, seconds, strict=True)}

    @property
    def limit(self) -> str:
        """What takes most of the time: one of `LIMITS`."""
        shares = self.shares()
        return max(shares, key=lambda name: shares[name])

    @property
    def disturbed(self) -> bool:
        """Whether something else has used so much of the machine that the figures mean little."""
        return self.others is not None and self.others > DISTURBED

    @property
    def verdict(self) -> str:
        """One sentence on what limits the run, one on what to do about it."""
        share = self.shares()[self.limit]
        return f"Limited by {self.limit} ({100 * share:.0f} % of the time): {LIMITS[self.limit]}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, what follows from the measurements included."""
        engines = [
            asdict(engine)
            | {"share_of_limit": self.share_of_limit(engine), "against": [self.against(engine, x) for x in self.loops]}
            for engine in self.engines
        ]
        told = {"shares": self.shares(), "limit": self.limit, "verdict": self.verdict, "disturbed": self.disturbed}
        return asdict(self) | {"engines": engines, "machine": machine()} | told


def measure(
    experiment: Experiment,
    *,
    workers: int | None = None,
    data_dir: Path | None = None,
    seconds: float = 10.0,
    chunk: int | None = None,
    step: StepMode | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> BenchReport:
    """Measure an experiment on this machine, in about so many seconds and what starting it takes twice.

    `workers` is how many "all workers" are; `say` is told what is being measured.
    """
    check_options({"workers": workers, "chunk": chunk, "step": step})
    share = seconds / 6
    began, before = time.perf_counter(), seconds_of_others()
    held = memory_in_use()
    say("reading the experiment")
    training = prepare(experiment, data_dir).training
    steps = int(training.batches.steps.sum())
    if not steps:
        raise ExperimentError("local_steps: no client takes a local step, so there is nothing to measure")
    initial = training.model.initial
    most = workers or (usable_cores() if initial.device.type == "cpu" and can_fork() else 1)
    numbers = sorted({1, min(most, experiment.clients)})
    flops = flops_per_sample(training)
    gradients = max(1, count_gradients(training).step)

    say("the fastest matrix products")
    rate = matrix_rate(share / 2, initial.dtype, initial.device)
    # Before any engine: that one tells the C library how to keep memory, which would make this process's loop faster.
    turns: dict[int, list[float]] = {threads: [] for threads in numbers}
    for _ in range(TURNS):  # in turns, so that a slow moment of the machine falls on all of them
        for threads, rates in turns.items():
            say(f"a plain loop, {counted(threads, 'thread')}")
            rates.append(plain_loop(training, threads, share / TURNS))
    loops = [LoopSpeed(threads, statistics.median(rates)) for threads, rates in turns.items()]

    batch = float(training.batches.work().sum()) / steps
    own_data = data_bytes(training.dataset)
    facts: dict[str, Any] = {
        "clients": len(training.batches.parts), "parameters": training.model.size, "batch": batch,
        "gradients_per_step": gradients, "flops_per_gradient": flops * batch,
        "state_bytes": state_bytes(training), "data_bytes": own_data,
    }  # fmt: skip
    if isinstance(experiment.dataset, Dataset) and held is not None:
        held -= own_data  # it was there before, but the run needs it
    seconds_per_step = gradients / (loops[0].gradients_per_second * numbers[-1])
    measured, shortened = _short_enough(experiment, training, seconds_per_step * steps, share)
    del training
    watched = []
    for number in numbers:
        say(f"Gossamer, {counted(number, 'worker')}")
        watched.append(_watch(measured, number, share, chunk=chunk, step=step, data_dir=data_dir))
    # Noise only ever makes a processor look slower, so the limit is the best of two.
    rate = max(rate, matrix_rate(share / 2, initial.dtype, initial.device))
    return BenchReport(
        **facts,
        steps_per_round=statistics.mean(watched[-1].steps),
        matrix_rate=rate,
        loops=tuple(loops),
        engines=tuple(watch.speed(number, held) for number, watch in zip(numbers, watched, strict=True)),
        shortened=shortened,
        others=_others_share(before, seconds_of_others(), time.perf_counter() - began),
    )


def _others_share(before: float | None, after: float | None, passed: float) -> float | None:
    """The share of this process's cores that others used. Of a large machine, they may have cores of their own."""
    if before is None or after is None:
        return None
    theirs = (os.cpu_count() or 1) - usable_cores()
    return max(0.0, (after - before) / passed - theirs) / usable_cores()


def _short_enough(
    experiment: Experiment, training: Training, expected: float, seconds: float
) -> tuple[Experiment, int | None]:
    """The experiment, with fewer local steps where one round of it would take longer than can be waited for."""
    own = local_work(experiment.method) is not None or getattr(training.method, "needs_equal_steps", False)
    most = int(training.batches.steps.max())
    fewer = max(1, int(most * 3 * seconds / expected))
    if own or fewer >= most:
        return experiment, None
    return experiment.but(local_steps=fewer), fewer


class _Enough(Exception):
    """The run was watched for long enough."""


class _Watch:
    """Watches an engine and ends it after a while. The seconds between two calls are the engine's, the rest is not."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.called = time.perf_counter()
        self.began = self.called
        self.how = ""
        self.peak: int | None = None
        self.steps: list[int] = []
        self.rounds: list[Split] = []

    def start(self, prepared: Prepared, how: str, done: int) -> None:
        self.training, self.how = prepared.training, how
        self.began = self.resumed = time.perf_counter()

    def round(self, metrics: Metrics, timings: Metrics) -> None:
        passed = time.perf_counter() - self.resumed
        parts = {name: float(timings.get(f"seconds_{name}", 0.0)) for name in ("mixing", "waiting", "evaluation")}
        # What no timer has seen, between the parts of a round, is counted as local work: it is overhead.
        self.rounds.append(Split(local=max(passed - sum(parts.values()), 1e-9), **parts))
        self.steps.append(steps_of_round(self.training, metrics["round"] - 1))
        if len(self.rounds) <= WARM_UP:
            self.peak = memory_peak()  # every round does the same
        spent = sum(split.total for split in self.timed())
        if time.perf_counter() > self.began + PATIENCE or (len(self.rounds) > WARM_UP and spent >= self.seconds):
            raise _Enough
        self.resumed = time.perf_counter()

    def say(self, message: str) -> None: ...

    def timed(self) -> list[Split]:
        """The rounds that count: those after the first few, or the last one if there are no others."""
        return self.rounds[min(WARM_UP, len(self.rounds) - 1) :]

    def speed(self, workers: int, held: int | None) -> EngineSpeed:
        """What was seen."""
        timed = self.timed()
        steps = self.steps[-len(timed) :]
        rates = [n / (split.total - split.evaluation) for n, split in zip(steps, timed, strict=True)]

        means = (statistics.mean(part) for part in zip(*map(astuple, timed), strict=True))
        return EngineSpeed(
            workers=workers,
            how=self.how,
            client_steps_per_second=statistics.median(rates),
            seconds=Split(*means),
            rounds=len(timed),
            start_up=self.began - self.called,
            peak_bytes=None if self.peak is None or held is None else max(0, self.peak - held),
        )


def _watch(experiment: Experiment, workers: int, seconds: float, **options: Any) -> _Watch:
    """Run an experiment until enough of it was seen."""
    settle_memory()
    watch = _Watch(seconds)
    with suppress(_Enough):
        simulate(experiment, workers=workers, observer=watch, on_divergence="continue", keep_vectors=False, **options)
    return watch


def plain_loop(training: Training, threads: int, seconds: float) -> float:
    """Gradients per second of an ordinary loop: a module and an optimizer for each client, batch after batch.

    Clients are made as the loop comes to them, so what it needs does not depend on how many there are. Only the
    steps are timed: gathering a batch, the forward and the backward pass, the update.
    """
    dataset, batches, loss, dtype = training.dataset, training.batches, training.loss, training.model.initial.dtype
    clients = np.flatnonzero(batches.steps).tolist()
    learners: dict[int, tuple[nn.Module, torch.optim.SGD]] = {}

    def step(client: int, rows: Tensor) -> None:
        module, optimizer = learners[client]
        inputs = dataset.scaling.apply(dataset.train.inputs.index_select(0, rows), dtype)
        optimizer.zero_grad()
        losses = loss(module(inputs), dataset.train.targets.index_select(0, rows))
        losses.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def everyone() -> Iterator[tuple[int, Tensor]]:
        for round in itertools.count():
            for client in clients:
                if client not in learners:
                    module = copy.deepcopy(training.model.template).train()
                    decay = training.weight_decay
                    learners[client] = (
                        module,
                        torch.optim.SGD(module.parameters(), lr=training.lr, weight_decay=decay),
                    )
                for rows in batches.indices(client, round):
                    yield client, torch.as_tensor(rows, device=dataset.train.inputs.device)

    spent, timed = 0.0, 0
    with on_threads(threads), torch.random.fork_rng():  # dropout draws from torch's own stream
        for number, (client, rows) in enumerate(everyone()):
            started = time.perf_counter()
            step(client, rows)
            finish_work(rows.device)
            if number >= WARM_UP:
                spent, timed = spent + time.perf_counter() - started, timed + 1
                if spent >= seconds:
                    break
    return timed / spent


def flops_per_sample(training: Training) -> float:
    """Floating-point operations in the matrix products (and convolutions) of one sample's gradient."""
    from torch.utils.flop_counter import FlopCounterMode  # it takes a while to import

    dataset, client = training.dataset, int(np.flatnonzero(training.batches.steps)[0])
    rows = torch.as_tensor(training.batches.indices(client, 0)[0], device=dataset.train.inputs.device)
    inputs = dataset.scaling.apply(dataset.train.inputs[rows], training.model.initial.dtype)
    module = copy.deepcopy(training.model.template).train()
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(), counter:
        training.loss(module(inputs), dataset.train.targets[rows]).mean().backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / len(rows)


def matrix_rate(
    seconds: float = 0.5, dtype: torch.dtype = torch.float32, device: torch.device = torch.device("cpu")
) -> float:
    """The most floating-point operations per second that one core keeps up in large matrix products."""
    ones = torch.ones(SIDE, SIDE, dtype=dtype, device=device)
    product = torch.empty_like(ones)
    together = 5  # products timed at once: a single fast one is luck
    fastest, ends = float("inf"), time.perf_counter() + seconds
    with on_threads(1):
        torch.mm(ones, ones, out=product)
        while fastest == float("inf") or time.perf_counter() < ends:
            finish_work(device)
            started = time.perf_counter()
            for _ in range(together):
                torch.mm(ones, ones, out=product)
            finish_work(device)
            fastest = min(fastest, (time.perf_counter() - started) / together)
    return 2 * SIDE**3 / fastest


def steps_of_round(training: Training, index: int) -> int:
    """Local steps of all clients that take part in a round."""
    working = training.network.participants(index * gossip_steps(training.method))
    return int(training.batches.steps[slice(None) if working is None else working].sum())


def state_bytes(training: Training) -> int:
    """What all clients keep between rounds."""
    return len(training.batches.parts) * size_of(training.method.init(training.model.initial).values())


def data_bytes(dataset: Dataset) -> int:
    """What all samples take."""
    return size_of([dataset.train.inputs, dataset.train.targets, dataset.test.inputs, dataset.test.targets])


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def memory_in_use() -> int | None:
    """Bytes of memory that this process and its children hold now, shared pages counted once; None if not known."""
    settle_memory()
    return memory_peak()


def memory_peak() -> int | None:
    """The most that this process and its children held since `settle_memory`, shared pages counted once.

    The system keeps each process's own peak, but not which of its pages were shared then. So this is what all hold now,
    each page counted once, plus what each has given back since its peak.
    """
    total = 0
    try:
        for process in ["self", *_children("self")]:
            status = _numbers(Path(f"/proc/{process}/status"))
            total += _numbers(Path(f"/proc/{process}/smaps_rollup"))["Pss"] + status["VmHWM"] - status["VmRSS"]
    except (OSError, KeyError):
        return None
    return total * 1024


def settle_memory() -> None:
    """Give back what is not needed any more, and let the system forget this process's peak."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def _children(process: str) -> list[str]:
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [child, *_children(child)]
    return found


def _numbers(path: Path) -> dict[str, int]:
    """The lines of a file of the system that say `name: number kB`."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}


def finish_work(device: torch.device) -> None:
    """Wait for a GPU, which works on after a call has returned."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    blas = next((line for line in torch.__config__.parallel_info().splitlines() if "Math Kernel Library" in line), "")
    version = blas.partition("Version ")[2].split("-")[0].split(" ")[0]
    return {
        "processor": processor(),
        "cores": str(usable_cores()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "blas": f"MKL {version}" if version else "not MKL",
        "python": platform.python_version(),
        "system": f"{platform.system()} {os.uname().machine if hasattr(os, 'uname') else platform.machine()}",
    }
