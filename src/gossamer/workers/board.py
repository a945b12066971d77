"""How workers forked from one process communicate: through memory that all of them see, and event counters.

Every worker writes to its own slot, then all wait at a barrier, then every worker reads. There are two boards, used in
turn: a worker that writes to one again knows that all have read it, since they have passed another barrier meanwhile.
"""

import mmap
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from gossamer.workers.group import Group, WorkerLost

#: Bytes of a slot. Longer messages are sent in pieces.
SLOT = 1 << 20
#: Seconds for which a worker waits without falling asleep: to wake up takes about as long.
AWAKE = 50e-6
#: A read takes one event and never blocks; programs that are started do not inherit the descriptor.
EVENT_FLAGS = os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC if sys.platform == "linux" else 0


class Board:
    """The memory that the workers share. Made before they are forked.

    `shared`: sizes, in bytes, of further memory that all see, and the first worker keeps when the others have ended.
    """

    def __init__(self, workers: int, slot: int = SLOT, shared: Sequence[int] = ()) -> None:
        self.workers, self.slot = workers, slot
        self.shared: list[Tensor] = []
        with suppress(OSError):  # without it, every worker has rows of its own, which are sent at the end
            self.shared = [torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8) for size in shared]
        # A slot starts with the number of bytes for each worker and of those still to come, padded to a cache line.
        self.header = -(-8 * (workers + 1) // 64) * 64
        length = 2 * workers * (self.header + slot)
        memory = torch.frombuffer(mmap.mmap(-1, length), dtype=torch.uint8)
        #: [board, worker, bytes]
        self.slots = memory.view(2, workers, self.header + slot)
        #: Signalled by every worker at a barrier; and one for each worker, signalled by the first when all are there.
        self.arrived, *self.released = (os.eventfd(0, EVENT_FLAGS) for _ in range(workers + 1))

    def close(self) -> None:
        """Close the event descriptors."""
        for event in (self.arrived, *self.released):
            os.close(event)


class Forked(Group):
    """The workers that share a board. `others`: for the first one, descriptors that become readable when others end."""

    def __init__(self, board: Board, rank: int, others: Sequence[int] = ()) -> None:
        self.rank, self.size, self.local_size = rank, board.workers, board.workers
        self._board, self._barriers = board, 0
        self._event, self._poll = board.released[rank] if rank else board.arrived, select.poll()
        for each in (self._event, *others):
            self._poll.register(each, select.POLLIN)

    def all_sum(self, values: Tensor) -> Tensor:
        flat = values if values.is_contiguous() else values.contiguous()
        for piece in torch.split(flat.view(-1), self._board.slot // values.element_size()):
            slots = self._slots()[:, self._board.header :][:, : piece.nbytes].view(values.dtype)
            slots[self.rank] = piece
            self.barrier()
            piece.copy_(slots[0])
            for other in slots[1:]:  # in the same order in all workers, so that all get the same bits
                piece += other
        return values if flat is values else values.copy_(flat)

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        leaving = {worker: _bytes(sends[worker]) for worker in sorted(sends)}
        coming = {worker: _bytes(tensor) for worker, tensor in receives.items()}
        more = True
        while more:
            slots = self._slots()
            headers = slots[:, : 8 * (self.size + 1)].view(torch.int64)
            contents = slots[:, self._board.header :]
            start, header = 0, [0] * (self.size + 1)
            for worker, left in leaving.items():
                header[worker] = length = min(len(left), self._board.slot - start)
                contents[self.rank, start : start + length] = left[:length]
                leaving[worker] = left[length:]
                start += length
            header[-1] = sum(map(len, leaving.values()))
            headers[self.rank] = torch.tensor(header)
            self.barrier()
            received = headers.tolist()
            for worker, (*lengths, _) in enumerate(received):
                if length := lengths[self.rank]:
                    start = sum(lengths[: self.rank])
                    coming[worker][:length] = contents[worker, start : start + length]
                    coming[worker] = coming[worker][length:]
            more = any(rest for *_, rest in received)
        assert not any(map(len, coming.values())), "everything that was expected has come"

    def barrier(self) -> None:
        self._barriers += 1
        if self.rank:
            os.eventfd_write(self._board.arrived, 1)
            self._wait()
            return
        for _ in range(self.size - 1):
            self._wait()
        for event in self._board.released[1:]:
            os.eventfd_write(event, 1)

    def shared_memory(self, size: int) -> Tensor | None:
        # All workers ask for the same sizes in the same order, so that each piece has one use.
        shared = self._board.shared
        return shared.pop(0) if shared and len(shared[0]) == size else None

    def _slots(self) -> Tensor:
        """The slots of the board that is written next."""
        return self._board.slots[self._barriers % 2]

    def _wait(self) -> None:
        """Wait for this worker's event."""
        ended, until = False, time.perf_counter() + AWAKE
        while True:
            with suppress(BlockingIOError):
                os.eventfd_read(self._event)
                return
            if time.perf_counter() < until:
                os.sched_yield()
                continue
            if ended:  # and has not signalled before
                raise WorkerLost(f"worker {self.rank} of {self.size} lost touch with another worker.")
            ended = any(each != self._event for each, _ in self._poll.poll())


def _bytes(tensor: Tensor) -> Tensor:
    assert tensor.is_contiguous(), "a tensor that is exchanged lies in one piece"
    return tensor.detach().view(-1).view(torch.uint8)
