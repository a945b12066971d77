"""Collective operations of the workers of a run.

Every worker runs the same program on its own clients; `Group` is all that it knows of the others. One worker alone is a
group of one, whose operations cost nothing. Workers that a launcher has started, on one or many machines, communicate
through `torch.distributed`; those that were forked from one process, through shared memory (`board.py`).
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gossamer.errors import GossamerError

#: The longest wait for a worker that does not answer but whose connection stands.
GROUP_TIMEOUT = timedelta(minutes=30)


class WorkerLost(GossamerError):
    """A worker died, or cannot be reached. Not a mistake of the user, so not exit code 2."""

    exit_code = 1


class Group:
    """The workers of a run, as one of them sees it; this base class is a group of one."""

    rank = 0
    size = 1
    #: How many of the workers share this one's machine.
    local_size = 1
    device = torch.device("cpu")

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum of all workers' tensors, in place."""
        return values

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        """Send tensors to some workers, and fill tensors from some. All workers call it together."""

    def barrier(self) -> None:
        """Wait until all workers are here."""
        self.all_sum(torch.zeros(1, device=self.device))

    def any(self, flag: bool) -> bool:
        """Whether the flag of any worker is set."""
        return bool(self.all_sum(torch.tensor([float(flag)], device=self.device)) > 0)

    def ranks_where(self, flag: bool) -> list[int]:
        """The workers whose flag is set."""
        flags = torch.zeros(self.size, device=self.device)
        flags[self.rank] = float(flag)
        return [rank for rank, value in enumerate(self.all_sum(flags).tolist()) if value]

    def broadcast(self, text: str, source: int = 0) -> str:
        """The text of one worker, in all."""
        # As a sum of bytes, to which the others add zeros: torch's own way to send objects is to pickle them.
        sends = self.rank == source
        content = torch.tensor(list(text.encode()) if sends else [], dtype=torch.uint8, device=self.device)
        length = int(self.all_sum(torch.tensor([len(content)], device=self.device)))
        if not sends:
            content = torch.zeros(length, dtype=torch.uint8, device=self.device)
        return bytes(self.all_sum(content).cpu().numpy()).decode()

    def gather_clients(self, own: Tensor, clients: range, total: int) -> Tensor:
        """Values of all clients, from those of the clients that each worker owns."""
        if self.size == 1:
            return own
        # Every worker adds its own to zeros: a value plus zeros is that value, NaN and infinity included.
        values = own.new_zeros((total, *own.shape[1:]))
        values[clients.start : clients.stop] = own
        return self.all_sum(values)

    def shared_memory(self, size: int) -> Tensor | None:
        """So many bytes that all workers see, if they were reserved before the fork."""
        return None

    @property
    def first(self) -> bool:
        """Whether this is the worker that writes the record and speaks to the user."""
        return self.rank == 0


ALONE = Group()


class Distributed(Group):
    """Processes that a launcher has started, on one or many machines: gloo on CPUs, nccl on GPUs."""

    def __init__(self, rank: int, size: int, device: torch.device, **options: Any) -> None:
        self.rank, self.size, self.local_size, self.device = rank, size, size, device
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, rank=rank, world_size=size, timeout=GROUP_TIMEOUT, **options)
        except (RuntimeError, ValueError) as error:
            raise WorkerLost(f"worker {rank} of {size} cannot join the others: {_cause(error)}") from error

    def all_sum(self, values: Tensor) -> Tensor:
        self._communicate(lambda: dist.all_reduce(values))
        return values

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        operations = [dist.P2POp(dist.isend, tensor, worker) for worker, tensor in sends.items() if tensor.numel()]
        operations += [dist.P2POp(dist.irecv, tensor, worker) for worker, tensor in receives.items() if tensor.numel()]
        if operations:
            for pending in self._communicate(lambda: dist.batch_isend_irecv(operations)):
                self._communicate(pending.wait)

    def close(self) -> None:
        """Leave the group, so that this process may join another one later."""
        dist.destroy_process_group()

    def _communicate(self, operation: Callable[[], Any]) -> Any:
        """Run an operation; an error means that another worker is lost."""
        try:
            return operation()
        except RuntimeError as error:
            raise WorkerLost(
                f"worker {self.rank} of {self.size} lost touch with another worker: {_cause(error)}"
            ) from error


def _cause(error: Exception) -> str:
    """The first line of a long message, without the place in torch's sources."""
    line = str(error).strip().split("\n")[0]
    return line.split("] ", 1)[-1] if line.startswith("[") else line
