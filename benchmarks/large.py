"""Runs that are large for one machine: a million clients, and 100 clients of ResNet-18 with a dual variable.

    python -m benchmarks.large
    python -m benchmarks.large --only small --sizes 10000,100000
    python -m benchmarks.large --out docs/tables/large.md

The small clients learn softmax regression on digits (650 parameters) with ten random neighbours each; four digits are
drawn for each of them, with repetition. Their time should grow as their number: the largest run finds out how to run
its clients, and the others run them in the same way. A run is stopped after some rounds; the first is not timed.

Memory is the most that all processes of a run took together, pages that they share counted once, looked up at least
twice a second; imports are in it. Reckoned is what a run is taken to need before it starts: one that does not fit is
refused.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.contender import options_of
from benchmarks.run import measured_by
from benchmarks.workloads import OFF, random_images
from gossamer import Experiment, simulate
from gossamer.data import Dataset, Samples, data_directory
from gossamer.data.catalog import DATASETS
from gossamer.data.inputs import input_tensors
from gossamer.engines.memory import memory_needed
from gossamer.simulation import Observer, RoundRecord, RunStart
from gossamer.system.machine import usable_cores
from gossamer.system.words import size

HEADS = ["run", "clients", "start", "local", "mixing", "a round", "µs a client", "state", "reckoned", "memory"]
SIZES = (1_000_000, 100_000, 10_000)
#: Samples of each small client.
HELD = 4
#: More rounds than are run: how clients are run is found out for a run of so many.
ROUNDS = 100


class Case(NamedTuple):
    """One large run."""

    title: str
    clients: int
    #: Rounds until it is stopped.
    rounds: int
    settings: dict[str, Any]
    make: Any


RESNET: dict[str, Any] = {
    "model": "resnet-18", "method": "dfedadmm", "graph": "ring", "batch_size": 8, "lr": 0.01, "local_steps": 1,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "model": "softmax", "method": "dfedavg", "graph": {"name": "k-regular", "k": 10}, "batch_size": HELD,
    "local_steps": 5,
}  # fmt: skip


def many_digits(clients: int) -> Dataset:
    """Digits drawn with repetition, so many that each client holds some; few test samples."""
    digits = DATASETS.build("digits").load(data_directory(None))
    drawn = torch.randint(len(digits.train), (HELD * clients,), generator=torch.Generator().manual_seed(0))
    train = Samples(digits.train.inputs[drawn], digits.train.targets[drawn])
    return replace(digits, train=train, test=Samples(digits.test.inputs[:64], digits.test.targets[:64]))


class Watch(Observer):
    """The times of a run, and the memory it takes; stops it after some rounds."""

    def __init__(self, most: int) -> None:
        self.began = time.perf_counter()
        self.start_seconds = 0.0
        self.rounds: list[dict[str, Any]] = []
        self.peak = 0
        self.how = ""
        self._most = most
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def start(self, run: RunStart) -> None:
        self.start_seconds = time.perf_counter() - self.began
        self.how = run.how
        self.state, self.extra = memory_needed(run.training, int(run.how.split()[1]))

    def round(self, record: RoundRecord) -> bool:
        self.rounds.append(record.timings)
        return len(self.rounds) == self._most

    def note(self, message: str) -> None:
        print(message, file=sys.stderr)

    def end(self, _outcome: Any) -> None:
        self._over.set()

    def seconds(self, what: str) -> float:
        """The median over the rounds after the first, if there are any."""
        return statistics.median(record[f"seconds_{what}"] for record in self.rounds[1:] or self.rounds)

    def _look(self) -> None:
        # Short runs are looked at often, and long ones, where a look takes longer, twice a second.
        while not self._over.wait(min(0.5, (time.perf_counter() - self.began) / 10)):
            self.peak = max(self.peak, _memory_together())


class Line(NamedTuple):
    """One line of the table."""

    clients: int
    seconds: float
    how: str
    cells: list[str]


def run(case: Case, workers: int, options: dict[str, Any]) -> Line:
    """Run a case, and give its line of the table."""
    before, dataset = _memory_together(), case.make(case.clients)
    watch = Watch(case.rounds)
    experiment = Experiment(
        clients=case.clients, dataset=dataset, evaluate=OFF, checkpoint_every=0, rounds=ROUNDS, partition="iid",
        **case.settings,
    )  # fmt: skip
    simulate(experiment, workers=workers, observers=[watch], keep_vectors=False, **options)
    local, mixing = watch.seconds("local"), watch.seconds("mixing")
    whole = local + mixing + watch.seconds("waiting")
    data = dataset.train.targets.nbytes + sum(values.nbytes for values in input_tensors(dataset.train.inputs))
    cells = [
        case.title, f"{case.clients:,}", f"{watch.start_seconds:.1f} s", f"{local:.2f} s", f"{mixing:.2f} s",
        f"{whole:.2f} s", f"{1e6 * whole / case.clients:,.1f}", size(watch.state),
        size(before + data + watch.state + watch.extra), size(watch.peak),
    ]  # fmt: skip
    return Line(case.clients, whole, watch.how, cells)


def slope(lines: Sequence[Line]) -> float:
    """The power of n with which a round's seconds grow."""
    return float(np.polyfit(np.log([x.clients for x in lines]), np.log([x.seconds for x in lines]), 1)[0])


def _memory_together() -> int:
    """Bytes that this process and those it has started take, shared pages once."""
    me, total = os.getpid(), 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if me in (int(path.name), parent):
                lines = (path / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except (OSError, ValueError, IndexError):  # it has just ended
            continue
    return total


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, and write down if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description="Large runs on one machine.")
    parser.add_argument("--only", default="small,resnet", help="which of them")
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="numbers of small clients, the largest first"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the small clients (default: 3)")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="processes (default: one a core)")
    parser.add_argument("--out", type=Path, help="also write the table there, as Markdown")
    given = parser.parse_args(arguments)
    names, lines, notes = given.only.split(","), list[Line](), list[str]()
    if unknown := [name for name in names if name not in ("small", "resnet")]:
        parser.error(f"unknown run '{unknown[0]}': known: small, resnet")
    if "small" in names:
        options: dict[str, Any] = {}
        for clients in map(int, given.sizes.split(",")):
            case = Case("softmax, DFedAvg", clients, given.rounds, SMALL, many_digits)
            lines.append(run(case, given.workers, options))
            options = options_of(lines[0].how)
        notes.append(f"Softmax regression ran {lines[0].how.partition(' (')[0]}.")
        if len(lines) > 1:
            notes.append(f"Seconds of a round of it grow as n^{slope(lines):.3f}.")
    if "resnet" in names:
        case = Case("ResNet-18, DFedADMM", 100, 1, RESNET, lambda clients: random_images((3, 32, 32), 8 * clients))
        lines.append(run(case, given.workers, {}))
    rows = [line.cells for line in lines]
    command = " ".join(["python -m benchmarks.large", *(sys.argv[1:] if arguments is None else arguments)])
    notes += ["Times are medians over the rounds after the first, if there are any.", measured_by(command)]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for head in HEADS:
        shown.add_column(head, justify="left" if head == "run" else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(shown)
    for note in notes:
        console.print(note, soft_wrap=True, markup=False)
    if given.out:
        table = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("\n".join([*table, "", *(f"- {note}" for note in notes)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
