"""What a benchmark found: speeds, ratios, shares, and what limits the run."""

from dataclasses import asdict, dataclass
from typing import Any

from gossamer.bench.engine import EngineSpeed
from gossamer.bench.loop import LoopSpeed
from gossamer.bench.processor import machine
from gossamer.system.machine import BUSY

#: What may limit a run, and what a user can do about each.
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


@dataclass(frozen=True)
class BenchReport:
    """The numbers of a benchmark, and what follows from them."""

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
    #: The library and the product that reached this rate.
    fastest: str
    loops: tuple[LoopSpeed, ...]
    engines: tuple[EngineSpeed, ...]
    #: Memory of the clients' states and of the samples.
    state_bytes: int
    data_bytes: int
    #: Local steps of each client that were measured in place of the experiment's own, where those would take too long.
    shortened: int | None
    #: The share of the cores that other processes used meanwhile; None if not known.
    others: float | None

    @property
    def best(self) -> EngineSpeed:
        """The engine with all workers."""
        return self.engines[-1]

    def loop_steps(self, loop: LoopSpeed) -> float:
        """Client-steps per second of the loop, if a step of it took as many gradients as the method's."""
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
        """The largest consumer of time: one of `LIMITS`."""
        shares = self.shares()
        return max(shares, key=lambda name: shares[name])

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much of the machine that the figures mean little."""
        return self.others is not None and self.others > BUSY

    @property
    def verdict(self) -> str:
        """One sentence on what limits the run, one on what to do about it."""
        share = self.shares()[self.limit]
        return f"Limited by {self.limit} ({100 * share:.0f} % of the time): {LIMITS[self.limit]}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, derived numbers included."""
        engines = [
            asdict(engine)
            | {"share_of_limit": self.share_of_limit(engine), "against": [self.against(engine, x) for x in self.loops]}
            for engine in self.engines
        ]
        derived = {"shares": self.shares(), "limit": self.limit, "verdict": self.verdict, "disturbed": self.disturbed}
        return asdict(self) | {"engines": engines, "machine": machine()} | derived
