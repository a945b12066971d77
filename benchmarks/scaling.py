"""How the time and the memory of a round grow with the clients: W4 with 100 to 10,000 of them.

    python -m benchmarks.scaling
    python -m benchmarks.scaling --out docs/tables/scaling.md --plot docs/images/scaling.png

All sizes take turns, as in the table of benchmarks. Time should grow with slope 1 in a double logarithmic plot; memory
should stay within 1.3 times what the clients' states and samples take. From the memory of a run, that of a process is
taken off which has imported the same and done nothing. One worker is one process, whose peak the system keeps; of
several, pages that they share are counted once.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.run import contending, nothing_kept, progress
from gossamer.bench import counted, machine
from gossamer.terminal import size
from gossamer.workers import usable_cores

SIZES = (100, 300, 1000, 3000, 10_000)
STEPS = 5


@dataclass(frozen=True)
class Point:
    """One number of clients with one number of workers."""

    clients: int
    workers: int
    seconds: float
    #: What the run took at most beyond its imports, and what its states and samples take.
    peak: int
    needed: int


def measure(sizes: Sequence[int], workers: Sequence[int], repeats: int, seconds: float) -> list[Point]:
    """All points, measured in turns; those of one number of workers at a time, so that all fit into memory."""
    with contending({"imports": ("", "limit", 1)}) as there:
        imports = there["imports"].facts
    points = []
    for number in workers:
        who = {f"{n} clients, {counted(number, 'worker')}": (f"N{n}", "engine", number) for n in sizes}
        with contending(who) as there:
            turns = [[statistics.median(c.turn(seconds)) for c in there.values()] for _ in range(repeats)]
        key = "alone" if number == 1 else "together"
        for n, contender, times in zip(sizes, there.values(), zip(*turns, strict=True), strict=True):
            peak = contender.facts[key] - imports[key]
            points.append(Point(n, number, statistics.median(times), peak, contender.facts["needed"]))
    return points


def slope(points: Sequence[Point]) -> float:
    """The power of n with which a round's seconds grow."""
    n, seconds = [p.clients for p in points], [p.seconds for p in points]
    return float(np.polyfit(np.log(n), np.log(seconds), 1)[0])


def growth(points: Sequence[Point]) -> float:
    """Bytes that one more client takes, relative to those of its state and samples."""
    per_client = np.polyfit([p.clients for p in points], [p.peak for p in points], 1)[0]
    return float(per_client * points[-1].clients / points[-1].needed)


HEADS = [
    "clients",
    "workers",
    "seconds a round",
    "µs a client-step",
    "memory",
    "state + data",
    "memory / (state + data)",
]


def cells(point: Point) -> list[str]:
    """One line of the table."""
    each = 1e6 * point.seconds / (point.clients * STEPS)
    ratio = f"{point.peak / point.needed:.2f}"
    return [
        f"{point.clients:,}", str(point.workers), f"{point.seconds:.4f}", f"{each:.1f}", size(max(point.peak, 0)),
        size(point.needed), ratio,
    ]  # fmt: skip


def notes(points: Sequence[Point], command: str) -> list[str]:
    """The slopes, and where they were measured."""
    lines = []
    for number in sorted({p.workers for p in points}):
        own = [p for p in points if p.workers == number]
        power = slope(own)
        lines.append(
            f"{counted(number, 'worker')}: seconds of a round grow as n^{power:.2f}, seconds of a client as "
            f"n^{power - 1:+.2f}; one more client takes {growth(own):.2f} times its state and samples in memory."
        )
    here = machine()
    lines.append(
        f"Measured {date.today()} by `{command}` on {here['processor']} ({here['cores']} cores, "
        f"{here['instructions']}), {here['system']}, Python {here['python']}, torch {here['torch']}, {here['blas']}."
    )
    return lines


def plot(points: Sequence[Point], path: Path) -> None:
    """The curves, beside a line of slope 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for number in sorted({p.workers for p in points}):
        own = [p for p in points if p.workers == number]
        label = f"{counted(number, 'worker')}: slope {slope(own):.2f}"
        axes.loglog([p.clients for p in own], [p.seconds for p in own], marker="o", label=label)
    last, sizes = points[-1], sorted({p.clients for p in points})
    axes.loglog(sizes, [last.seconds * n / last.clients for n in sizes], "k:", linewidth=1, label="slope 1")
    axes.set_xlabel("clients")
    axes.set_ylabel("seconds a round")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write down if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="A round against its clients.")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of clients")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each size (default: 3)")
    parser.add_argument("--out", type=Path, help="also write the table there, as Markdown")
    parser.add_argument("--plot", type=Path, help="draw the curves there, as PNG or SVG")
    given = parser.parse_args(arguments)
    sizes = [int(n) for n in given.sizes.split(",")]
    with nothing_kept():
        points = measure(sizes, sorted({1, usable_cores()}), given.repeats, seconds=1.0)
    command = " ".join(["python -m benchmarks.scaling", *(sys.argv[1:] if arguments is None else arguments)])
    lines = notes(points, command)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for head in HEADS:
        shown.add_column(head, justify="right")
    for point in points:
        shown.add_row(*cells(point))
    console = Console(highlight=False)
    console.print(shown)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    if given.out:
        rows = [f"| {' | '.join(HEADS)} |", "|---:" * len(HEADS) + "|"]
        rows += [f"| {' | '.join(cells(point))} |" for point in points]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("\n".join([*rows, "", *(f"- {line}" for line in lines)]) + "\n", encoding="utf-8")
        progress.print(f"written to {given.out}")
    if given.plot:
        plot(points, given.plot)
        progress.print(f"drawn to {given.plot}")


if __name__ == "__main__":
    main()
