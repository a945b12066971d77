"""The worker processes of a run: how they start, which clients each owns, and how they communicate."""

from gossamer.workers.forks import ForkFailed, can_fork, run_in_fork
from gossamer.workers.group import ALONE, Group, WorkerLost
from gossamer.workers.launch import as_group, first_process, launched_from_outside, machines, restarted
from gossamer.workers.ranges import balanced_ranges

__all__ = [
    "ALONE",
    "ForkFailed",
    "Group",
    "WorkerLost",
    "as_group",
    "balanced_ranges",
    "can_fork",
    "first_process",
    "launched_from_outside",
    "machines",
    "restarted",
    "run_in_fork",
]
