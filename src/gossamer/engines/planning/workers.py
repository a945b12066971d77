"""How many workers a run has."""

import os
from collections.abc import Callable

from gossamer.errors import ExperimentError
from gossamer.system.machine import usable_cores
from gossamer.training import Training
from gossamer.workers import can_fork, launched_from_outside

#: Work that a round must have for each worker, or a second one hardly helps: see `workers_kept_busy`. Two workers were
#: 1.26 times as fast as one on W2 of docs/benchmarks.md (1.7e7), and 1.45 times with 100 clients of the curve in
#: docs/scaling.md (2.4e7).
WORTH_A_WORKER = 8e6


def number_of_workers(
    wanted: int | None,
    training: Training,
    note: Callable[[str], None] = lambda message: None,
    cores: int | None = None,
) -> int:
    """The number of processes that share the clients: as wanted, or one for each core that has enough to do."""
    clients, on_cpu = training.network.clients, training.model.initial.device.type == "cpu"
    if launched_from_outside():
        size = int(os.environ["WORLD_SIZE"])
        if wanted is not None and wanted != size:
            raise ExperimentError(f"workers: the launcher started {size} of them; leave --workers out (got {wanted})")
        if training.in_turn and size > 1:
            raise ExperimentError(f"order: clients that take turns need one worker; the launcher started {size}")
        if size > clients:
            raise ExperimentError(f"workers: {size} for {clients} clients; start at most one for each client")
        return size
    number = wanted if wanted is not None else _workers_of_environment()
    if training.in_turn:
        if wanted is not None and wanted > 1:
            note(f"{wanted} workers: the clients take turns, so one has all of them")
        return 1
    if number is None:
        if not on_cpu or not can_fork():
            return 1
        return min(cores or usable_cores(), clients, workers_kept_busy(training))
    if number > clients:
        note(f"{number} workers for {clients} clients: {clients} will do")
        number = clients
    if number > 1 and not on_cpu:
        raise ExperimentError("workers: on a GPU start one process for each with torchrun (see docs/scaling.md)")
    if number > 1 and not can_fork():
        raise ExperimentError(
            "workers: they cannot be forked here (only on Linux, and not in a process of another pool); leave "
            "--workers out, or start them with torchrun (see docs/scaling.md)"
        )
    return number


def workers_kept_busy(training: Training) -> int:
    """The number of workers that a round keeps busy, at least one: by how often a parameter meets a sample."""
    meetings = float(training.batches.work().sum()) * training.model.initial.numel()
    return max(1, int(meetings / WORTH_A_WORKER))


def _workers_of_environment() -> int | None:
    """The number of workers in GOSSAMER_WORKERS."""
    value = os.environ.get("GOSSAMER_WORKERS", "")
    if value and not (value.isdecimal() and int(value)):
        raise ExperimentError(f"GOSSAMER_WORKERS: should be a whole number, at least 1 (got {value})")
    return int(value) if value else None
