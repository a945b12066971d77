"""One contender, in a process of its own, that works only when it is its turn.

A process each keeps threads, memory and compiled code of one from helping or hurting another. Taking turns of about a
second lets the noise of a machine fall on all of them alike.

    python -m benchmarks.contender W1 loop 2      is what `Contender("W1", "loop", 2)` starts

The two talk in lines of JSON over standard input and output: ready, then a turn's seconds in, its rounds' seconds out.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.environments import PACKAGES, python_of
from gossamer.engines.steps.chunk import PRODUCERS
from gossamer.simulation import Observer, RoundRecord, RunStart

ROOT = Path(__file__).parents[1]
#: Where child processes find the benchmarks and this copy of the package.
PATH = os.pathsep.join([str(ROOT), str(ROOT / "src")])

#: Contenders that work with as many threads as they are told.
THREADED = ("loop", "products", "gossipy", "fluke", "pfl")


class Contender:
    """The measuring side. `number`: threads of a loop, or workers of the engine, where 0 is as many as by default.

    An engine finds out how to run, unless `options` say it: those of `gossamer.simulate`. Other packages than Gossamer
    run in environments of their own.
    """

    def __init__(self, workload: str, role: str, number: int = 1, options: dict[str, Any] | None = None) -> None:
        self.name = f"{workload} {role} {number}"
        # Set before the process starts, so that no library makes more threads than it may use.
        threads = {"OMP_NUM_THREADS": str(number if role in THREADED else 1), "PYTHONPATH": PATH}
        if role == "jax":
            threads |= {"XLA_FLAGS": f"--xla_force_host_platform_device_count={number}", "JAX_PLATFORMS": "cpu"}
        python = python_of(role) if role in PACKAGES else sys.executable
        assert python is not None, f"no environment for {role}"
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # it stays open as long as the process
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.contender", workload, role, str(number), json.dumps(options or {})],
            cwd=ROOT, env=os.environ | threads, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        #: What it says of itself once it is warm.
        self.facts: dict[str, Any] = {}
        self._warm = False

    def ready(self) -> "Contender":
        """Wait until it is warm."""
        if not self._warm:
            self.facts, self._warm = self._hear(), True
        return self

    def turn(self, seconds: float) -> Any:
        """Let it work for about so long, at least one round; the seconds of each round, or what else it measures."""
        self.start_turn(seconds)
        return self.end_turn()

    def start_turn(self, seconds: float) -> None:
        """Let it work without waiting for it; `end_turn` waits."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def end_turn(self) -> Any:
        """What a started turn gave."""
        return self._hear()

    def close(self) -> None:
        """End it. It ends by itself when nobody talks to it any more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"{self.name} ended early:\n{self._errors.read()[-3000:]}")
        return json.loads(line)


class Turns:
    """The contender's side. `over` is called after every round: it times the round, and waits for the next turn."""

    def __init__(self, warm_up: int) -> None:
        self._tells = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever else this process prints must not get in between
        self._left = warm_up
        self._rounds: list[float] = []
        self._seconds = 0.0
        self.facts: dict[str, Any] = {}
        self._began = time.perf_counter()

    def over(self) -> None:
        """A round is over."""
        self._rounds.append(time.perf_counter() - self._began)
        if self._left:
            self._left -= 1
            if not self._left:
                self._next(self.facts)
        elif sum(self._rounds) >= self._seconds:
            self._next(self._rounds)
        self._began = time.perf_counter()

    @property
    def warming(self) -> bool:
        """Whether rounds are not timed yet."""
        return self._left > 0

    def tell(self, words: Any) -> None:
        """Say something to the measuring side."""
        self._tells.write(json.dumps(words) + "\n")
        self._tells.flush()

    def hear(self) -> float:
        """The seconds of the next turn."""
        line = sys.stdin.readline()
        if not line:  # nobody is there any more
            raise SystemExit
        return float(line)

    def _next(self, words: Any) -> None:
        self.tell(words)
        self._seconds, self._rounds = self.hear(), []


class Watched(Observer):
    """Tells the turns of the rounds of a run, and the memory that it took when it is warm."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def start(self, run: RunStart) -> None:
        from gossamer.bench.memory import data_bytes, state_bytes
        from gossamer.engines import number_of_workers

        work, usual = run.training, number_of_workers(None, run.training)
        self._turns.facts |= {"how": run.how, "usual": usual, "needed": state_bytes(work) + data_bytes(work.dataset)}

    def round(self, record: RoundRecord) -> bool:
        if self._turns.warming:
            self._turns.facts |= memory()
        self._turns.over()
        return False

    def note(self, message: str) -> None:
        print(message, file=sys.stderr)


def options_of(how: str) -> dict[str, Any]:
    """The options that make another engine run clients as this one says that it does.

    >>> options_of("on 2 workers, 16 at a time, traced steps, channels last, products by MKL (as asked)")
    {'chunk': 16, 'step': 'traced', 'channels_last': True, 'products': 'mkl'}
    """
    found = re.search(r"(\d+) at a time, (\w+) steps(, channels last)?(?:, products by ([^(]+\w))?", how)
    assert found is not None, how
    libraries = {words: name for name, words in PRODUCERS.items()}
    options = {"chunk": int(found[1]), "step": found[2], "channels_last": bool(found[3])}
    return options | ({"products": libraries[found[4]]} if found[4] else {})


def memory() -> dict[str, Any]:
    """The most memory that this process held so far, and that it and its workers did, shared pages counted once."""
    import resource

    from gossamer.bench.memory import memory_peak

    unit = 1 if sys.platform == "darwin" else 1024
    return {"alone": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "together": memory_peak()}


def main(name: str, role: str, number: int, options: str) -> None:
    """Be a contender until there are no more turns."""
    from benchmarks.workloads import find, loop_of
    from gossamer.bench.processor import fastest_products, shapes_of_step

    if role == "limit":
        from gossamer.experiment import prepare

        turns = Turns(0)
        shapes = shapes_of_step(prepare(find(name).experiment()).training) if name else []
        turns.tell(memory())  # what importing everything takes
        while True:
            turns.tell(fastest_products(turns.hear(), shapes=shapes))
    workload = find(name)
    turns = Turns(workload.warm_up)
    if role == "engine":
        from gossamer import simulate

        how = {"workers": number or None, "keep_vectors": False, **json.loads(options)}
        simulate(workload.experiment(), observers=[Watched(turns)], **how)
    elif role == "jax":
        import torch

        from benchmarks.jax_loops import fastest_loop
        from gossamer.experiment import prepare

        torch.set_num_threads(1)
        loop = fastest_loop(workload.method, prepare(workload.experiment()).training)
        turns.facts |= {"how": str(loop.way)}
        while True:
            loop.round()
            turns.over()
    elif role in ("loop", "products"):
        import torch

        from gossamer.bench.engine import steps_of_round
        from gossamer.bench.processor import flops_per_sample
        from gossamer.experiment import prepare
        from gossamer.training import count_gradients

        torch.set_num_threads(number)
        training = prepare(workload.experiment()).training
        steps = steps_of_round(training, 0)
        per_step = training.batches.work().sum() / steps * count_gradients(training).step
        turns.facts |= {"steps": steps, "flops": flops_per_sample(training) * per_step}
        loop = loop_of(workload.method, training, workload.channels_last, fastest_products=role == "products")
        while True:
            loop.round()
            turns.over()
    else:
        from benchmarks.others import RUNS

        RUNS[role](turns.over)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
