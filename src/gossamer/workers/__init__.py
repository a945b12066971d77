"""The worker processes of a run: who they are, which clients each owns, and how they talk."""

from gossamer.workers.forks import FailedApart, apart, can_fork
from gossamer.workers.group import ALONE, Group, WorkerLost
from gossamer.workers.launch import as_group, first_process, launched_from_outside, machines, restarted
from gossamer.workers.shares import shares

__all__ = [
    "ALONE",
    "FailedApart",
    "Group",
    "WorkerLost",
    "apart",
    "as_group",
    "can_fork",
    "first_process",
    "launched_from_outside",
    "machines",
    "restarted",
    "shares",
]
