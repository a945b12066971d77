"""The table of benchmarks: client-steps per second of Gossamer against the clean loop, and the processor's limit.

    python -m benchmarks                         everything, in ten minutes
    python -m benchmarks --only W1,W2 --quick
    python -m benchmarks --out docs/tables/benchmarks.md

All contenders of a workload take turns, again and again. A number is the median over the turns; a ratio is the median
of the ratios within one round of turns, so that a slow minute of the machine falls on both sides of it.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.contender import THREADED, Contender, options_of
from benchmarks.environments import PACKAGES, CannotMake, make, python_of
from benchmarks.workloads import WORKLOADS, Workload
from gossamer.bench.processor import Limit, machine
from gossamer.system.cache import cache_file
from gossamer.system.machine import usable_cores
from gossamer.system.words import counted

LOOP_1, LOOP_ALL, ENGINE_1, ENGINE_ALL = "loop 1", "loop all", "engine 1", "engine all"
#: The loop with the fastest products there are, and the one in JAX.
PRODUCTS, JAX = "products 1", "JAX"
#: Contenders that find out how to run when they start: nothing may disturb them then.
CHOOSING = ("engine", "jax", "products")
#: Simulators that can be measured too, on W1.
OTHERS = ("flower", "gossipy", "fluke", "pfl")

console = Console(highlight=False)
progress = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Outcome:
    """What the turns of one workload gave: client-steps per second of each contender, turn by turn."""

    workload: Workload
    rates: dict[str, list[float]]
    #: The client-steps that one core could do at most in the same turns, all cores being busy; and by which product.
    limit: list[float]
    fastest: str
    #: How the engine ran with all workers, and JAX, if it is there.
    how: str
    jax: str
    #: Operations of a client-step.
    flops: float

    def rate(self, who: str) -> float:
        """Client-steps per second."""
        return statistics.median(self.rates[who])

    def ratios(self, who: str, to: str) -> list[float]:
        """How many times faster, turn by turn."""
        return [a / b for a, b in zip(self.rates[who], self.rates[to], strict=True)]

    def ratio(self, who: str, to: str) -> float:
        """How many times faster."""
        return statistics.median(self.ratios(who, to))

    def share(self, who: str, workers: int) -> float:
        """The share of what so many cores could do at most."""
        return statistics.median(a / (b * workers) for a, b in zip(self.rates[who], self.limit, strict=True))

    @property
    def spread(self) -> float:
        """Half the range of the ratio to the loop, relative to it: how far to trust the last digits."""
        ratios = self.ratios(ENGINE_ALL, LOOP_1)
        return (max(ratios) - min(ratios)) / 2 / statistics.median(ratios)


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Let engines find out anew how to run: what one found on a busier day must not decide. What was compiled stays."""
    steps = cache_file("steps").parent
    steps.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "gossamer").mkdir()
        (Path(folder) / "gossamer" / "steps").symlink_to(steps)
        os.environ["XDG_CACHE_HOME"] = folder
        yield


@contextmanager
def contending(who: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Contender]]:
    """Contenders, warm and waiting."""
    there: dict[str, Contender] = {}
    try:
        for choosing, group in groupby(who.items(), key=lambda item: item[1][1] in CHOOSING):
            for name, what in group:
                progress.print(f"[dim]  starting {name}[/]")
                there[name] = Contender(*what)
                if choosing:
                    there[name].ready()
            for contender in there.values():
                contender.ready()
        yield there
    finally:
        for contender in there.values():
            contender.close()


def take_turns(workload: Workload, cores: int, repeats: int, seconds: float) -> Outcome:
    """Measure one workload."""
    name = workload.name
    who: dict[str, tuple[Any, ...]] = {LOOP_1: (name, "loop", 1)}
    who |= {LOOP_ALL: (name, "loop", cores)} if cores > 1 else {}
    who |= {PRODUCTS: (name, "products", 1), ENGINE_ALL: (name, "engine", cores)}
    who |= {JAX: (name, "jax", cores)} if python_of("jax") else {}
    limits: list[Limit] = []
    with ExitStack() as stack:
        multiplying = stack.enter_context(contending({f"core {i + 1}": (name, "limit", 1) for i in range(cores)}))
        there = stack.enter_context(contending(who))
        steps, flops = there[LOOP_1].facts["steps"], there[LOOP_1].facts["flops"]
        facts, jax = there[ENGINE_ALL].facts, there[JAX].facts["how"] if JAX in there else ""
        if cores > 1:  # measured once: one worker runs its clients as each of several does
            there = there | stack.enter_context(contending({ENGINE_1: (name, "engine", 1, options_of(facts["how"]))}))
        rates: dict[str, list[float]] = {key: [] for key in there}
        for repeat in range(repeats):
            limits.append(all_at_once(multiplying, min(1.0, seconds)))
            for key, contender in there.items():
                rates[key].append(steps / statistics.median(contender.turn(seconds)))
            told = ", ".join(f"{key} {values[-1]:,.0f}" for key, values in rates.items())
            progress.print(f"[dim]  turn {repeat + 1} of {repeats}: {told}[/]")
    if cores == 1:
        rates |= {LOOP_ALL: rates[LOOP_1], ENGINE_1: rates[ENGINE_ALL]}
    how = facts["how"].partition(" (")[0]
    usually = "" if facts["usual"] == cores else f"; it takes {counted(facts['usual'], 'worker')} if not told otherwise"
    possible = [limit.rate / flops for limit in limits]
    return Outcome(workload, rates, possible, max(limits).by, how + usually, jax, flops)


def measure_others(cores: int, repeats: int, seconds: float) -> dict[str, float | None]:
    """Other simulators relative to the loop with one thread, in turns of their own: some never sit quite still.

    One that works with threads is given one and all of them, and the better counts.
    """
    found: dict[str, float | None] = {}
    for other in OTHERS:
        if python_of(other) is None:
            found[other] = None
            continue
        progress.print(f"[bold]{other}[/]")
        numbers = {1, cores} if other in THREADED else {cores}
        who = {f"{other} {number}": ("W1", other, number) for number in sorted(numbers)}
        with contending({LOOP_1: ("W1", "loop", 1)} | who) as there:
            turns = [
                {name: statistics.median(contender.turn(seconds)) for name, contender in there.items()}
                for _ in range(repeats)
            ]
        found[other] = max(statistics.median(turn[LOOP_1] / turn[name] for turn in turns) for name in who)
    return found


def all_at_once(multiplying: dict[str, Contender], seconds: float) -> Limit:
    """The fastest products of one core while all cores multiply: the mean over them."""
    for contender in multiplying.values():
        contender.start_turn(seconds)
    found = [Limit(*contender.end_turn()) for contender in multiplying.values()]
    return Limit(statistics.mean(limit.rate for limit in found), max(found).by)


def titles(cores: int) -> list[str]:
    """The names of the measures; what a ratio relates to stands behind the ×."""
    threads, workers = (f"{cores} {thing}" if cores > 1 else f"1 {thing[:-1]}" for thing in ("threads", "workers"))
    return [
        "loop, 1 thread: client-steps/s", f"loop, {threads}: × loop", "loop, fastest products: × loop", "JAX: × loop",
        "Gossamer, 1 worker: × loop", f"Gossamer, {workers}: × loop", f"Gossamer, {workers}: × loop, {threads}",
        f"Gossamer, {workers}: × loop, fastest products", f"Gossamer, {workers}: × JAX",
        f"Gossamer, {workers}: × 1 worker", f"Gossamer, {workers}: of limit", "±",
    ]  # fmt: skip


def cells(outcome: Outcome, cores: int) -> list[str]:
    """The measures of one workload."""
    pairs = [(who, LOOP_1) for who in (LOOP_ALL, PRODUCTS, JAX, ENGINE_1, ENGINE_ALL)]
    pairs += [(ENGINE_ALL, to) for to in (LOOP_ALL, PRODUCTS, JAX, ENGINE_1)]
    return [
        f"{outcome.rate(LOOP_1):,.0f}",
        *(f"{outcome.ratio(who, to):.2f}" if {who, to} <= set(outcome.rates) else "–" for who, to in pairs),
        f"{100 * outcome.share(ENGINE_ALL, cores):.0f} %",
        f"{100 * outcome.spread:.0f} %",
    ]


def lines_of(outcomes: Sequence[Outcome], cores: int) -> list[list[str]]:
    """The table: its head, then a line for each measure with a column for each workload."""
    columns = [cells(outcome, cores) for outcome in outcomes]
    head = ["", *(outcome.workload.name for outcome in outcomes)]
    return [head, *(list(line) for line in zip(titles(cores), *columns, strict=True))]


def table(outcomes: Sequence[Outcome], cores: int) -> Table:
    """The table for a terminal."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    head, *lines = lines_of(outcomes, cores)
    for index, name in enumerate(head):
        shown.add_column(name, justify="right" if index else "left", no_wrap=index > 0)
    for line in lines:
        shown.add_row(*line)
    return shown


def measured_by(command: str) -> str:
    """When and where a table was measured, and how to do it again."""
    here = machine()
    return (
        f"Measured {date.today()} by `{command}` on {here['processor']} ({counted(usable_cores(), 'core')}, "
        f"{here['instructions']}), {here['system']}, Python {here['python']}, torch {here['torch']}, {here['blas']}."
    )


def notes(
    command: str,
    outcomes: Sequence[Outcome],
    others: dict[str, float | None],
) -> list[str]:
    """What a reader must know to judge the table, in lines."""
    # In the turns that the shares were measured in: a processor is not as fast at every time.
    limits = "; ".join(
        f"{o.workload.name} {statistics.median(o.limit) * o.flops / 1e9:.0f} ({o.fastest})" for o in outcomes
    )
    lines = [
        *(f"{o.workload.name}: {o.workload.title}. Gossamer ran {o.how}." for o in outcomes),
        measured_by(command),
        "Steps are client-steps. A ratio is the median over turns that follow each other; ± is half the "
        "range of the ratio to the loop.",
        "The limit is the fastest float32 product, of two 1024 × 1024 matrices or of the workload's own shapes, that "
        "torch.mm, oneDNN, numpy's OpenBLAS or Gossamer's kernel does on one core while all cores multiply, times the "
        f"workers, over the products of a client-step, turn by turn. In GFLOP/s a core: {limits}.",
    ]
    if any(o.jax for o in outcomes):
        how = "; ".join(f"{o.workload.name} by {o.jax}" for o in outcomes)
        lines.append(f"The loop in JAX ({PACKAGES['jax']}) has all cores, and runs in the fastest of its ways: {how}.")
    else:
        lines.append(f"JAX ({PACKAGES['jax']}): {not_made('jax')}.")
    for other, ratio in others.items():
        told = not_made(other) if ratio is None else f"{ratio:.2f} times the loop with one thread"
        lines.append(f"{other} ({PACKAGES[other]}) on the work of W1: {told}.")
    return lines


def not_made(name: str) -> str:
    """What to do for a contender that is not there."""
    return f"not installed; `python -m benchmarks.environments {name}` makes an environment for it"


def markdown(outcomes: Sequence[Outcome], cores: int, lines: Sequence[str]) -> str:
    """The table for a page, with its notes."""
    head, *rows = (f"| {' | '.join(line)} |" for line in lines_of(outcomes, cores))
    page = [head, "|---" + "|---:" * len(outcomes) + "|", *rows, "", *(f"- {line}" for line in lines)]
    return "\n".join(page) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write down if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Gossamer against the loop by hand.")
    parser.add_argument("--only", default=",".join(WORKLOADS), metavar="W1,W2,...", help="some workloads")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contender (default: 3)")
    parser.add_argument("--quick", action="store_true", help="two short turns: an impression, not a measurement")
    parser.add_argument("--out", type=Path, help="also write the table there, as Markdown")
    given = parser.parse_args(arguments)
    chosen = given.only.split(",")
    if unknown := [name for name in chosen if name not in WORKLOADS]:
        parser.error(f"--only: there is no {unknown[0]}, but {', '.join(WORKLOADS)}")
    repeats, cores = 2 if given.quick else given.repeats, usable_cores()
    try:
        progress.print("[dim]JAX, in an environment of its own[/]")
        make("jax")
    except CannotMake as error:
        progress.print(f"without JAX: {error}", markup=False)
    outcomes, others = [], {}
    with nothing_kept():
        for name in chosen:
            workload = WORKLOADS[name]
            progress.print(f"[bold]{name}[/] {workload.title}")
            seconds = 0.3 if given.quick else workload.seconds
            turns = min(repeats, workload.repeats or repeats)
            outcomes.append(take_turns(workload, cores, turns, seconds))
    if "W1" in chosen:
        others = measure_others(cores, repeats, 0.3 if given.quick else 1.0)
    command = " ".join(["python -m benchmarks", *(sys.argv[1:] if arguments is None else arguments)])
    lines = notes(command, outcomes, others)
    console.print(table(outcomes, cores))
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(markdown(outcomes, cores, lines), encoding="utf-8")
        progress.print(f"written to {given.out}")


if __name__ == "__main__":
    main()
