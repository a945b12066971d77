"""Two runs that are large for one machine: 100 clients of ResNet-18 with a dual variable, and 100,000 small clients.

    python -m benchmarks.large
    python -m benchmarks.large --only small --clients 10000
    python -m benchmarks.large --out docs/tables/large.md

Memory is the most that all processes of a run took together, pages that they share counted once, looked up twice a
second; imports are in it.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.run import measured_by
from gossamer import Experiment, simulate
from gossamer.data import Dataset, Samples, Scaling
from gossamer.simulation import Observer, RoundRecord, RunStart
from gossamer.system.machine import usable_cores
from gossamer.system.words import size

HEADS = ["run", "clients", "model", "method", "workers", "start", "local", "mixing", "a round", "state", "memory"]


class Case(NamedTuple):
    """One large run."""

    title: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    settings: dict[str, Any]


def cases(clients: int | None) -> dict[str, Case]:
    """The runs by name; `clients` sets another number of them."""
    resnet = {"model": "resnet-18", "method": "dfedadmm", "graph": "ring", "batch_size": 8, "lr": 0.01, "rounds": 1}
    few = {"model": "softmax", "method": "dfedavg", "graph": {"name": "k-regular", "k": 10}, "rounds": 10}
    return {
        "resnet": Case("ResNet-18", clients or 100, 8, (3, 32, 32), {**resnet, "local_steps": 1}),
        "small": Case("small clients", clients or 100_000, 4, (1, 8, 8), {**few, "batch_size": 4, "local_steps": 5}),
    }


class Watch(Observer):
    """The times of a run, and the memory it takes."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.start_seconds = 0.0
        self.rounds: list[dict[str, Any]] = []
        self.peak = 0
        threading.Thread(target=self._look, daemon=True).start()

    def start(self, run: RunStart) -> None:
        self.start_seconds = time.perf_counter() - self.began

    def round(self, record: RoundRecord) -> bool:
        self.rounds.append(record.timings)
        return False

    def note(self, message: str) -> None:
        print(message, file=sys.stderr)

    def _look(self) -> None:
        while True:
            self.peak = max(self.peak, _memory_together())
            time.sleep(0.5)


def run(case: Case, workers: int) -> list[str]:
    """Run a case, and give its line of the table."""
    watch = Watch()
    generator = torch.Generator().manual_seed(0)
    number = case.clients * case.samples
    images = torch.randint(0, 256, (number, *case.shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (number,), generator=generator)
    owners = tuple(np.arange(i * case.samples, (i + 1) * case.samples) for i in range(case.clients))
    few = Samples(images[:64], labels[:64])
    dataset = Dataset("noise", Samples(images, labels), few, 10, case.shape, Scaling(), None, owners)
    nothing = {"every": 0, "clients": 0, "training": 0}
    experiment = Experiment(
        clients=case.clients, dataset=dataset, evaluate=nothing, checkpoint_every=0, **case.settings
    )
    finished = simulate(experiment, workers=workers, observers=[watch], keep_vectors=False)
    vector = sum(p.numel() * p.element_size() for p in finished.model.parameters())
    state = case.clients * vector * len(experiment.method.init(torch.zeros(1)))
    last = watch.rounds[-1]
    local, mixing = last["seconds_local"], last["seconds_mixing"]
    whole = local + mixing + last["seconds_waiting"]
    return [
        case.title, f"{case.clients:,}", str(case.settings["model"]), str(case.settings["method"]), str(workers),
        f"{watch.start_seconds:.1f} s", f"{local:.2f} s", f"{mixing:.2f} s", f"{whole:.2f} s", size(state),
        size(watch.peak),
    ]  # fmt: skip


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
    parser.add_argument("--only", default="resnet,small", help="which of them")
    parser.add_argument("--clients", type=int, help="another number of clients")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="processes (default: one a core)")
    parser.add_argument("--out", type=Path, help="also write the table there, as Markdown")
    given = parser.parse_args(arguments)
    known = cases(given.clients)
    names = given.only.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown run '{unknown[0]}': known: {', '.join(known)}")
    rows = [run(known[name], given.workers) for name in names]
    command = " ".join(["python -m benchmarks.large", *(sys.argv[1:] if arguments is None else arguments)])
    note = f"Times are of the last round. {measured_by(command)}"
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for head in HEADS:
        shown.add_column(head, justify="right" if head not in ("run", "model", "method") else "left")
    for row in rows:
        shown.add_row(*row)
    console = Console(highlight=False)
    console.print(shown)
    console.print(note, soft_wrap=True, markup=False)
    if given.out:
        lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("\n".join([*lines, "", f"- {note}"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
