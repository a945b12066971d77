"""What the workers of a run say to each other, all of it through `torch.distributed`.

Every worker runs the same program on its own clients; `Group` is all that it knows of the others. Alone, there is
nobody to talk to, and every word is free.
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

    def sum(self, values: Tensor) -> Tensor:
        """The sum of everyone's tensor, in place."""
        return values

    def swap(self, gives: Mapping[int, Tensor], takes: Mapping[int, Tensor]) -> Callable[[], None]:
        """Start to send tensors to some workers and to fill tensors from some; call what is returned to wait."""
        return _nothing_to_wait_for

    def tell(self, words: str) -> str:
        """The words of the first worker, heard by all."""
        return words

    def any(self, flag: bool) -> bool:
        """Whether any worker says yes."""
        return flag

    def meet(self) -> None:
        """Wait until everyone is here."""

    @property
    def first(self) -> bool:
        """Whether this is the worker that writes the record and speaks to the user."""
        return self.rank == 0

    def collect(self, own: Tensor, place: range, total: int) -> Tensor:
        """One value of each client, gathered from the workers that own them."""
        if self.size == 1:
            return own
        # Everyone adds its own into zeros: a value plus zeros is that value, NaN and infinity included.
        everyone = own.new_zeros((total, *own.shape[1:]))
        everyone[place.start : place.stop] = own
        return self.sum(everyone)


ALONE = Group()


class Distributed(Group):
    """A group of processes on one or many machines: gloo on CPUs, nccl on GPUs."""

    def __init__(self, rank: int, size: int, device: torch.device, **how: Any) -> None:
        self.rank, self.size, self.here, self.device = rank, size, size, device
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, rank=rank, world_size=size, timeout=PATIENCE, **how)
        except (RuntimeError, ValueError) as error:
            raise WorkerLost(f"worker {rank} of {size} cannot join the others: {_gist(error)}") from error

    def sum(self, values: Tensor) -> Tensor:
        self._say(lambda: dist.all_reduce(values))
        return values

    def swap(self, gives: Mapping[int, Tensor], takes: Mapping[int, Tensor]) -> Callable[[], None]:
        talk = [dist.P2POp(dist.isend, tensor, worker) for worker, tensor in gives.items() if tensor.numel()]
        talk += [dist.P2POp(dist.irecv, tensor, worker) for worker, tensor in takes.items() if tensor.numel()]
        if not talk:
            return _nothing_to_wait_for
        waits = self._say(lambda: dist.batch_isend_irecv(talk))

        def wait() -> None:
            for each in waits:
                self._say(each.wait)

        return wait

    def tell(self, words: str) -> str:
        # Sent as bytes: the library's own way to send objects is to pickle them.
        said = torch.frombuffer(bytearray(words.encode() or b" "), dtype=torch.uint8).to(self.device)
        length = torch.tensor([len(said)], device=self.device)
        self._say(lambda: dist.broadcast(length, 0))
        if self.rank:
            said = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        self._say(lambda: dist.broadcast(said, 0))
        return bytes(said.cpu().numpy()).decode()

    def any(self, flag: bool) -> bool:
        return bool(self.sum(torch.tensor([float(flag)], device=self.device)) > 0)

    def meet(self) -> None:
        self.sum(torch.zeros(1, device=self.device))

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


def _nothing_to_wait_for() -> None: ...


def _gist(error: Exception) -> str:
    """The one line of a long message that says what happened."""
    line = str(error).strip().split("\n")[0]
    return line.split("] ", 1)[-1] if line.startswith("[") else line
