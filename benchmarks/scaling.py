"""How the time and the memory of a round grow with the clients: W4 with 100 to 10,000 of them. And with the edges.

    python -m benchmarks.scaling
    python -m benchmarks.scaling --out docs/tables/scaling.md --plot docs/images/scaling.png
    python -m benchmarks.scaling --edges --out docs/tables/edges.md

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
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.run import contending, measured_by, nothing_kept, progress
from gossamer.system.words import size

SIZES = (100, 300, 1000, 3000, 10_000)
#: Neighbours of each client, and how many clients there are then.
DEGREES, CLIENTS = (2, 10, 20, 40, 80, 160), 3000
STEPS = 5

Rows = list[list[str]]
WORKERS = {True: "1 worker", False: "workers by default"}


@dataclass(frozen=True)
class Point:
    """One number of clients, in one worker or in as many as by default."""

    clients: int
    alone: bool
    workers: int
    seconds: float
    #: What the run took at most beyond its imports, and what its states and samples take.
    peak: int
    needed: int


def measure(sizes: Sequence[int], repeats: int, seconds: float) -> list[Point]:
    """All points, measured in turns; first those in one worker, so that all fit into memory."""
    with contending({"imports": ("", "limit", 1)}) as there:
        imports = there["imports"].facts
    points = []
    for alone in (True, False):
        who = {f"{n} clients, {WORKERS[alone]}": (f"N{n}", "engine", int(alone)) for n in sizes}
        with contending(who) as there:
            turns = [[statistics.median(c.turn(seconds)) for c in there.values()] for _ in range(repeats)]
        for n, contender, times in zip(sizes, there.values(), zip(*turns, strict=True), strict=True):
            facts, number = contender.facts, int(contender.facts["how"].split()[1])  # on 2 workers, ...
            key = "alone" if number == 1 else "together"
            points.append(Point(n, alone, number, statistics.median(times), facts[key] - imports[key], facts["needed"]))
    return points


def measure_edges(degrees: Sequence[int], clients: int, repeats: int, seconds: float) -> list[float]:
    """Seconds of a round with so many neighbours for each client, in one worker, measured in turns."""
    who = {f"{k} neighbours": (f"N{clients}E{k}", "engine", 1) for k in degrees}
    with contending(who) as there:
        turns = [[statistics.median(c.turn(seconds)) for c in there.values()] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*turns, strict=True)]


def slope(points: Sequence[Point]) -> float:
    """The power of n with which a round's seconds grow."""
    return float(np.polyfit(np.log([p.clients for p in points]), np.log([p.seconds for p in points]), 1)[0])


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
    for alone, words in WORKERS.items():
        own = [p for p in points if p.alone == alone]
        exponent = slope(own)
        lines.append(
            f"{words.capitalize()}: seconds of a round grow as n^{exponent:.2f}, seconds of a client as "
            f"n^{exponent - 1:+.2f}; one more client takes {growth(own):.2f} times its state and samples in memory."
        )
    return [*lines, measured_by(command)]


EDGE_HEADS = ["neighbours", "edges", "seconds a round", "beyond local steps", "ns an edge"]


def edge_page(degrees: Sequence[int], clients: int, seconds: Sequence[float], command: str) -> tuple[Rows, list[str]]:
    """The table of edges and what follows from it: a line through the points, whose start is what has no edges."""
    edges = [k * clients for k in degrees]
    each, local = np.polyfit(edges, seconds, 1)
    rows = [
        [str(k), f"{m:,}", f"{s:.4f}", f"{s - local:.4f}", f"{1e9 * (s - local) / m:.0f}"]
        for k, m, s in zip(degrees, edges, seconds, strict=True)
    ]
    off = max(abs(s - local - each * m) / s for m, s in zip(edges, seconds, strict=True))
    return rows, [
        f"{clients:,} clients, 1 worker. A round takes {local:.3f} s and {1e9 * each:.0f} ns for each edge, along "
        f"which a row of 7,850 numbers goes; no point is off that line by more than {100 * off:.0f} %.",
        measured_by(command),
    ]


def plot(points: Sequence[Point], path: Path) -> None:
    """The curves, beside a line of slope 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for alone, words in WORKERS.items():
        own = [p for p in points if p.alone == alone]
        label = f"{words}: slope {slope(own):.2f}"
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
    parser.add_argument("--edges", action="store_true", help="against the edges of a graph, not the clients")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each size (default: 3)")
    parser.add_argument("--out", type=Path, help="also write the table there, as Markdown")
    parser.add_argument("--plot", type=Path, help="draw the curves there, as PNG or SVG (not of edges)")
    given = parser.parse_args(arguments)
    command = " ".join(["python -m benchmarks.scaling", *(sys.argv[1:] if arguments is None else arguments)])
    points: list[Point] = []
    with nothing_kept():
        if given.edges:
            found = measure_edges(DEGREES, CLIENTS, given.repeats, seconds=1.0)
            heads, (rows, lines) = EDGE_HEADS, edge_page(DEGREES, CLIENTS, found, command)
        else:
            sizes = [int(n) for n in given.sizes.split(",")]
            points = measure(sizes, given.repeats, seconds=1.0)
            heads, rows, lines = HEADS, [cells(point) for point in points], notes(points, command)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for head in heads:
        shown.add_column(head, justify="right")
    for row in rows:
        shown.add_row(*row)
    console = Console(highlight=False)
    console.print(shown)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    if given.out:
        table = [f"| {' | '.join(heads)} |", "|---:" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("\n".join([*table, "", *(f"- {line}" for line in lines)]) + "\n", encoding="utf-8")
        progress.print(f"written to {given.out}")
    if given.plot and points:
        plot(points, given.plot)
        progress.print(f"drawn to {given.plot}")


if __name__ == "__main__":
    main()
