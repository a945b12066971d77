"""How workers forked from one process talk: through memory that all of them see, a board, and bells to ring.

Everyone writes what it has to say in its own place, then all wait until everyone has, then everyone reads. There are
two boards that take turns: who writes on one again knows that all have read it, for they have met once more meanwhile.
"""

import mmap
import os
import select
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from gossamer.workers.group import Group, WorkerLost

#: Bytes that a worker can say at once; what is longer is said in pieces.
PLACE = 1 << 20
#: Each ring is heard once, nobody waits for it without a poll, and programs that are started do not inherit it.
BELL = os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC if sys.platform == "linux" else 0


class Board:
    """What the workers share. Made before they are forked.

    `rooms`: bytes of what everyone writes its own rows to, and the first one keeps when the others have ended.
    """

    def __init__(self, workers: int, place: int = PLACE, rooms: Sequence[int] = ()) -> None:
        self.workers, self.place = workers, place
        self.rooms: list[Tensor] = []
        with suppress(OSError):  # where there is none, everyone has rows of its own, and they are sent at the end
            self.rooms = [torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8) for size in rooms]
        # The first numbers in a place say how many bytes are for each worker, and how many are still to come. What
        # follows starts with a line of the processor's cache.
        self.head = -(-8 * (workers + 1) // 64) * 64
        length = 2 * workers * (self.head + place)
        memory = torch.frombuffer(mmap.mmap(-1, length), dtype=torch.uint8)
        #: [board, worker, bytes]
        self.places = memory.view(2, workers, self.head + place)
        #: Rung by everyone who has written; and one for each worker, rung by the first one when all have.
        self.arrived, *self.go = (os.eventfd(0, BELL) for _ in range(workers + 1))

    def close(self) -> None:
        """Give the bells back."""
        for bell in (self.arrived, *self.go):
            os.close(bell)


class Forked(Group):
    """The workers that share a board. `others`: for the first one, what becomes readable when another ends."""

    def __init__(self, board: Board, rank: int, others: Sequence[int] = ()) -> None:
        self.rank, self.size, self.here = rank, board.workers, board.workers
        self._board, self._turn = board, 0
        self._shared: list[Tensor] = []
        self._bell, self._sleep = board.go[rank] if rank else board.arrived, select.poll()
        for each in (self._bell, *others):
            self._sleep.register(each, select.POLLIN)

    def all_sum(self, values: Tensor) -> Tensor:
        flat = values if values.is_contiguous() else values.contiguous()
        for piece in torch.split(flat.view(-1), self._board.place // values.element_size()):
            places = self._places()[:, self._board.head :][:, : piece.nbytes].view(values.dtype)
            places[self.rank] = piece
            self.barrier()
            piece.copy_(places[0])
            for other in places[1:]:  # in the same order for all: everyone gets the very same
                piece += other
        return values if flat is values else values.copy_(flat)

    def exchange(self, gives: Mapping[int, Tensor], takes: Mapping[int, Tensor]) -> None:
        leaving = {worker: _bytes(gives[worker]) for worker in sorted(gives)}
        coming = {worker: _bytes(tensor) for worker, tensor in takes.items()}
        more = True
        while more:
            places = self._places()
            heads = places[:, : 8 * (self.size + 1)].view(torch.int64)
            bodies = places[:, self._board.head :]
            start, head = 0, [0] * (self.size + 1)
            for worker, left in leaving.items():
                head[worker] = length = min(len(left), self._board.place - start)
                bodies[self.rank, start : start + length] = left[:length]
                leaving[worker] = left[length:]
                start += length
            head[-1] = sum(map(len, leaving.values()))
            heads[self.rank] = torch.tensor(head)
            self.barrier()
            said = heads.tolist()
            for worker, (*lengths, _) in enumerate(said):
                if length := lengths[self.rank]:
                    start = sum(lengths[: self.rank])
                    coming[worker][:length] = bodies[worker, start : start + length]
                    coming[worker] = coming[worker][length:]
            more = any(rest for *_, rest in said)
        assert not any(map(len, coming.values())), "everything that was waited for has come"

    def barrier(self) -> None:
        """Wait until everyone is here."""
        self._turn += 1
        if self.rank:
            os.eventfd_write(self._board.arrived, 1)
            self._wait()
            return
        for _ in range(self.size - 1):
            self._wait()
        for bell in self._board.go[1:]:
            os.eventfd_write(bell, 1)

    def room(self, like: Tensor, own: range, total: int) -> Tensor:
        for number, room in enumerate(self._board.rooms):
            if room.nbytes == total * like.nbytes:  # each is for one of those who ask, in the same order in all workers
                del self._board.rooms[number]
                self._shared.append(room.view(like.dtype).view(total, *like.shape))
                return self._shared[-1][own.start : own.stop]
        return super().room(like, own, total)

    def everyone(self, own: Tensor) -> Tensor | None:
        for rows in self._shared:
            if own.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr() and own.stride() == rows.stride():
                self.barrier()  # they are whole when all have written theirs
                return rows
        return None

    def _places(self) -> Tensor:
        """Everyone's places on the board whose turn it is."""
        return self._board.places[self._turn % 2]

    def _wait(self) -> None:
        """Until our bell rings."""
        gone = False
        while True:
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)
                return
            if gone:  # and has not come before it went
                raise WorkerLost(f"worker {self.rank} of {self.size} lost touch with another worker.")
            gone = any(each != self._bell for each, _ in self._sleep.poll())


def _bytes(tensor: Tensor) -> Tensor:
    assert tensor.is_contiguous(), "what crosses lies in one piece"
    return tensor.detach().view(-1).view(torch.uint8)
