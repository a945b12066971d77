"""Runs side by side, each in a process of its own, where a single run does not keep all cores busy.

A run has the same number of workers as if it ran alone, so it has the same numbers too.
"""

import gc
import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gossamer.errors import GossamerError
from gossamer.experiment import prepare
from gossamer.runs.ending import Ending
from gossamer.simulation import Observer, Options, Outcome, RoundRecord, RunStart
from gossamer.simulation.observer import Observers
from gossamer.simulation.signals import StopSignals
from gossamer.studies.results import StudyRun
from gossamer.system.machine import usable_cores
from gossamer.system.orphans import die_with_parent
from gossamer.workers import can_fork, launched_from_outside
from gossamer.workers.forks import forking
from gossamer.workers.launch import Relayed

#: Work of a run from which a process for it pays, as in `workers_kept_busy`: about half a second.
WORTH_A_PROCESS = 1e8
#: Seconds that processes have to write their checkpoints when the comparison ends early.
PATIENCE = 20.0


def runs_at_once(workers: int, least_work: float, options: Options) -> int:
    """How many runs with so many workers keep all idle cores busy; one, if the shortest is not worth a process.

    On a machine that others keep busy, two runs at once are slower than one after the other.
    """
    set_by_user = options.get("workers") is not None or bool(os.environ.get("GOSSAMER_WORKERS"))
    if set_by_user or launched_from_outside() or not can_fork() or least_work < WORTH_A_PROCESS:
        return 1
    idle = usable_cores() - round(os.getloadavg()[0])
    return max(1, idle // workers)


class Lane(NamedTuple):
    """A run in a process of its own, and the observers that are told of it in this one."""

    run: StudyRun
    process: ForkProcess
    observers: Observers


class Relay(Observer):
    """Sends what happens in a run to the process that started it."""

    def __init__(self, writer: Connection) -> None:
        self._writer = writer

    def send(self, *message: Any) -> None:
        """Send a message of plain values."""
        self._writer.send_bytes(json.dumps(message).encode())

    def start(self, run: RunStart) -> None:
        self.send("start", run.how, run.rounds_done)

    def round(self, record: RoundRecord) -> bool:
        self.send("round", record.metrics, record.timings)
        return False

    def note(self, message: str) -> None:
        self.send("note", message)

    def waiting(self, reason: str) -> None:
        self.send("waiting", reason)

    def end(self, outcome: Outcome) -> None:
        self.send("end", *outcome.ending)


def run_side_by_side(
    runs: Iterator[StudyRun],
    at_once: int,
    run_once: Callable[[StudyRun, Observer], object],
    observe: Callable[[StudyRun], Sequence[Observer]],
    data_dir: Path | None,
) -> None:
    """Run `run_once` for every run in a fork of this process, so many at once.

    Observers are called in this process; they cannot stop a run. `runs` may end early, when there is no time for more.
    """
    lanes: dict[Connection, Lane] = {}

    def ask_to_stop() -> None:
        for lane in lanes.values():
            lane.process.terminate()

    with StopSignals(ask_to_stop) as signals:
        try:
            while True:
                while len(lanes) < at_once and not signals.received and (following := next(runs, None)):
                    _start(lanes, following, run_once, observe)
                if not lanes:
                    break
                for reader in wait(list(lanes)):
                    _hear(lanes, reader, data_dir)  # type: ignore[arg-type]
        finally:
            ask_to_stop()
            for lane in lanes.values():
                lane.process.join(PATIENCE)
                lane.process.kill()
    if signals.received:
        raise KeyboardInterrupt


def _start(
    lanes: dict[Connection, Lane],
    run: StudyRun,
    run_once: Callable[[StudyRun, Observer], object],
    observe: Callable[[StudyRun], Sequence[Observer]],
) -> None:
    """Start the process of a run."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run_in_process, args=(run, run_once, writer, os.getpid()))
    observers = Observers(observe(run))
    with forking():
        process.start()
    writer.close()
    lanes[reader] = Lane(run, process, observers)


def _run_in_process(
    run: StudyRun, run_once: Callable[[StudyRun, Observer], object], writer: Connection, parent: int
) -> None:
    """The main function of a run's process."""
    os.setpgid(0, 0)  # Ctrl-C reaches the first process alone, which passes it on once
    die_with_parent(parent)
    gc.freeze()
    gc.enable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    torch.set_num_threads(1)
    relay = Relay(writer)
    try:
        run_once(run, relay)
    except KeyboardInterrupt:
        return
    except GossamerError as error:
        relay.send("error", str(error), error.exit_code)
    except BaseException:
        relay.send("error", traceback.format_exc(), None)


def _hear(lanes: dict[Connection, Lane], reader: Connection, data_dir: Path | None) -> None:
    """Tell the observers of a run what its process sends; a process that has ended is forgotten."""
    lane = lanes[reader]
    try:
        kind, *values = json.loads(reader.recv_bytes())
    except EOFError:
        del lanes[reader]
        lane.process.join()
        if lane.process.exitcode:
            raise Relayed(f"{lane.run}: its process ended with exit code {lane.process.exitcode}", 1) from None
        return
    if kind == "error":
        message, code = values
        if code is None:
            raise RuntimeError(f"{lane.run}: {message}")
        raise Relayed(message, code)
    if kind == "start":
        how, done = values
        prepared = prepare(lane.run.experiment, data_dir)
        start = RunStart(prepared.experiment, prepared.training, prepared.partition, how, done, lane.run.folder)
        lane.observers.start(start)
    elif kind == "round":
        metrics, timings = values
        lane.observers.round(RoundRecord(metrics, timings, clients={}))
    elif kind == "end":
        lane.observers.end(Outcome(Ending(*values)))
    else:
        getattr(lane.observers, kind)(*values)
