"""Groups of workers for tests of what they do together."""

import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gossamer.workers import Group, as_group, can_fork
from gossamer.workers.group import Distributed

CPU = torch.device("cpu")
over_each_transport = pytest.mark.parametrize("transport", ["board", "sockets"])
needs_forks = pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux only")


def in_group(workers: int, work: Callable[[Group], Any], transport: str = "board") -> Any:
    """What work gives in a group that communicates as forked workers do, or as those of a launcher."""
    if transport == "board":
        return as_group(workers, CPU, work)
    with tempfile.TemporaryDirectory() as folder:

        def over_sockets(forked: Group) -> Any:
            group = Distributed(forked.rank, workers, CPU, init_method=f"file://{folder}/meeting")
            try:
                return work(group)
            finally:
                forked.barrier()  # before any worker closes its connections
                group.close()

        return as_group(workers, CPU, over_sockets)
