"""What the workers of a run say to each other.

Every worker runs the same program on its own clients; `Group` is all that it knows of the others. Alone, there is
nobody to talk to, and every word is free. Workers that a launcher has started, on one or many machines, talk through
`torch.distributed`; those that one process has forked, through the memory they share (`board.py`).
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gossamer.errors import GossamerError

#: How long to wait for a worker that is silent but whose connection stands.
PATIENCE = timedelta(minutes=30)


class WorkerLost(GossamerError):
    """A worker died, or cannot be reached. Nobody's mistake, so not exit code 2."""

    exit_code = 1


class Group:
    """The workers of a run, as one of them sees it; this base class is a group of one."""

    rank = 0
    size = 1
    #: How many of the workers share this one's machine.
    here = 1
    device = torch.device("cpu")

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum of everyone's tensor, in place."""
        return values

    def exchange(self, gives: Mapping[int, Tensor], takes: Mapping[int, Tensor]) -> None:
        """Send tensors to some workers, and fill tensors from some. All call it together."""

    def barrier(self) -> None:
        """Wait until everyone is here."""
        self.all_sum(torch.zeros(1, device=self.device))

    def any(self, flag: bool) -> bool:
        """Whether any worker says yes."""
        return bool(self.all_sum(torch.tensor([float(flag)], device=self.device)) > 0)

    def broadcast(self, words: str, source: int = 0) -> str:
        """The words of one worker, heard by all."""
        # Sent as bytes, to which the others add nothing: torch's own way to send objects is to pickle them.
        speaks = self.rank == source
        said = torch.tensor(list(words.encode()) if speaks else [], dtype=torch.uint8, device=self.device)
        length = int(self.all_sum(torch.tensor([len(said)], device=self.device)))
        if not speaks:
            said = torch.zeros(length, dtype=torch.uint8, device=self.device)
        return bytes(self.all_sum(said).cpu().numpy()).decode()

    def ranks_where(self, flag: bool) -> list[int]:
        """The workers that say yes."""
        flags = torch.zeros(self.size, device=self.device)
        flags[self.rank] = float(flag)
        return [rank for rank, said in enumerate(self.all_sum(flags).tolist()) if said]

    def room(self, like: Tensor, own: range, total: int) -> Tensor:
        """Memory for the rows of the own clients, each like the tensor that is given."""
        return like.new_empty((len(own), *like.shape))

    def everyone(self, own: Tensor) -> Tensor | None:
        """The rows of all clients, where this process sees them and `own` is a part of them."""
        return None

    @property
    def first(self) -> bool:
        """Whether this is the worker that writes the record and speaks to the user."""
        return self.rank == 0

    def gather_clients(self, own: Tensor, place: range, total: int) -> Tensor:
        """One value of each client, gathered from the workers that own them."""
        if self.size == 1:
            return own
        # Everyone adds its own into zeros: a value plus zeros is that value, NaN and infinity included.
        everyone = own.new_zeros((total, *own.shape[1:]))
        everyone[place.start : place.stop] = own
        return self.all_sum(everyone)


ALONE = Group()


class Distributed(Group):
    """Processes that a launcher has started, on one or many machines: gloo on CPUs, nccl on GPUs."""

    def __init__(self, rank: int, size: int, device: torch.device, **how: Any) -> None:
        self.rank, self.size, self.here, self.device = rank, size, size, device
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, rank=rank, world_size=size, timeout=PATIENCE, **how)
        except (RuntimeError, ValueError) as error:
            raise WorkerLost(f"worker {rank} of {size} cannot join the others: {_gist(error)}") from error

    def all_sum(self, values: Tensor) -> Tensor:
        self._say(lambda: dist.all_reduce(values))
        return values

    def exchange(self, gives: Mapping[int, Tensor], takes: Mapping[int, Tensor]) -> None:
        talk = [dist.P2POp(dist.isend, tensor, worker) for worker, tensor in gives.items() if tensor.numel()]
        talk += [dist.P2POp(dist.irecv, tensor, worker) for worker, tensor in takes.items() if tensor.numel()]
        if talk:
            for each in self._say(lambda: dist.batch_isend_irecv(talk)):
                self._say(each.wait)

    def close(self) -> None:
        """Leave the group, so that this process may join another one later."""
        dist.destroy_process_group()

    def _say(self, speak: Callable[[], Any]) -> Any:
        """Talk to the others; if one of them is gone, say so."""
        try:
            return speak()
        except RuntimeError as error:
            raise WorkerLost(
                f"worker {self.rank} of {self.size} lost touch with another worker: {_gist(error)}"
            ) from error


def _gist(error: Exception) -> str:
    """The one line of a long message that says what happened."""
    line = str(error).strip().split("\n")[0]
    return line.split("] ", 1)[-1] if line.startswith("[") else line
