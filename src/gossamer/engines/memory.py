"""Where the states and messages of a worker's clients live, so that they take the memory of one state, or of two.

A message takes the place of a part of the state that nobody reads any more once it is sent: DFedAvg's new model is
mixed where the old one was. With two buffers the state before a round stays whole until the next one; a large state
has one only, and a round that is interrupted is computed again from the last checkpoint.
"""

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gossamer.errors import ExperimentError, GossamerError
from gossamer.methods import Message, Method, Round, State, mixes
from gossamer.parts import is_out_of_memory
from gossamer.system.machine import free_memory
from gossamer.system.words import counted, size
from gossamer.training import Training
from gossamer.workers import ALONE, Group, machines

#: Bytes of state on a machine up to which a second copy of it is kept.
SMALL_STATE = 128 << 20
#: What a round needs beside the state: so many models of each worker (gradients, what a step makes on its way,
#: sums in double precision), and so many bytes (activations, libraries).
MODELS_BESIDES, BYTES_BESIDES = 8, 256 << 20


class OutOfMemory(GossamerError):
    """There is not enough memory, and a message that says what would do."""


class Buffers:
    """The state of some clients, as rows, and the messages they send."""

    def __init__(self, initial: State, own: range, total: int, spill: Path | None = None, group: Group = ALONE) -> None:
        clients = len(own)
        # On a machine of several, the others own about as many; on one of one, all must come to the same.
        here = total if group.here == group.size else clients * group.here
        self.double = is_small(initial, here) and spill is None
        self._spill = spill
        self._initial = initial
        room = partial(group.room, own=own, total=total) if spill is None else partial(self._room, clients=clients)
        self.front: State = {name: room(value) for name, value in initial.items()}
        self.reset()
        self.back: State = {name: torch.empty_like(rows) for name, rows in self.front.items()} if self.double else {}
        self._clients = clients
        self._messages: dict[str, Tensor] = {}
        self._extra: dict[str, Tensor] = {}

    def reset(self) -> None:
        """Everyone starts from the same point."""
        for name, value in self._initial.items():
            self.front[name][:] = value

    def begin(self) -> None:
        """A round starts: what is written goes to `back`, which is another place than `front` if there are two."""
        self._messages = {}
        if not self.double:
            self.back = self.front

    def carry_over(self, rows: Tensor) -> None:
        """Clients that do not work in this round keep what they have."""
        if self.double:
            for name, value in self.front.items():
                self.back[name][rows] = value[rows]

    def keep(self, rows: Any, state: State, message: Message, aliases: dict[str, str]) -> None:
        """Write down what some clients keep, and what they send."""
        taken = set(aliases.values())
        self.expect(message, aliases)
        kept = [(self.back[name], value) for name, value in state.items() if name not in taken]
        _put(rows, kept + [(self._messages[name], value) for name, value in message.items()])

    def expect(self, message: Message, aliases: dict[str, str]) -> None:
        """Make room for messages like these."""
        for name, value in message.items():
            if name not in self._messages:
                self._messages[name] = self.back[aliases[name]] if name in aliases else self._place(name, value)

    def messages(self) -> Message:
        """What the clients send, as rows."""
        return dict(self._messages)

    def write(self, place: State, rows: Any, values: State) -> None:
        """Put rows of the state in their place."""
        _put(rows, [(place[name], value) for name, value in values.items()])

    def turn(self) -> None:
        """The round is over: what was written is the state."""
        if self.double:
            self.front, self.back = self.back, self.front

    def fitting(self, message: Message, unread: Sequence[str]) -> dict[str, str]:
        """For each message that can lie in an unread part of the state: which."""
        free = list(unread)
        aliases = {}
        for name, value in message.items():
            for part in free:
                rows = self.front[part]
                if rows.shape[1:] == value.shape[1:] and rows.dtype == value.dtype:
                    aliases[name] = part
                    free.remove(part)
                    break
        return aliases

    def _place(self, name: str, value: Tensor) -> Tensor:
        """Rows for a message that fits nowhere else. Kept for the next round; clients that send nothing send zeros."""
        if name not in self._extra or self._extra[name].shape[1:] != value.shape[1:]:
            self._extra[name] = self._room(value[0], self._clients)
        return self._extra[name].zero_()

    def _room(self, like: Tensor, clients: int) -> Tensor:
        shape = (clients, *like.shape)
        if self._spill is None:
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        return spilled(self._spill, shape, like.dtype)


def state_size(initial: State, clients: int) -> int:
    """Bytes of the state of so many clients."""
    return clients * sum(value.numel() * value.element_size() for value in initial.values())


def is_small(initial: State, clients: int) -> bool:
    """Whether the state of so many clients leaves room for other things."""
    return state_size(initial, clients) <= SMALL_STATE


def shared_sizes(training: Training, spill: Path | None) -> list[int]:
    """Bytes of each tensor of a large state, which forked workers share so that its vectors are not held twice."""
    initial, clients = _initial(training), len(training.batches.client_rows)
    if spill is not None or is_small(initial, clients):
        return []
    return [clients * value.nbytes for value in initial.values()]


def check_memory(training: Training, workers: int, spill: Path | None) -> None:
    """Refuse a run whose clients' state has no room on this machine, before anything else is done."""
    initial, clients = _initial(training), -(-len(training.batches.client_rows) // machines())
    needed, model = state_size(initial, clients), max(value.nbytes for value in initial.values())
    besides = -(-workers // machines()) * MODELS_BESIDES * model + BYTES_BESIDES
    takes = f"the clients' state takes {size(needed)} on this machine"
    if spill is not None:
        there = spill if spill.is_dir() else spill.absolute().parent
        if spill.exists() and not spill.is_dir():
            raise GossamerError(f"--spill {spill}: is not a folder")
        if not there.is_dir():
            raise GossamerError(f"--spill {spill}: there is no folder {there}. Make it first, if that is the place.")
        disk = shutil.disk_usage(there)
        if disk.total and needed > disk.free:  # what has no size at all is no disk: it is told when it is written to
            raise OutOfMemory(
                f"--spill {spill}: {takes}, and {size(disk.free)} are free there. A folder on a larger disk, "
                "fewer clients or more machines would help."
            )
    elif next(iter(initial.values())).device.type == "cpu" and needed + besides > (free := free_memory()):
        raise OutOfMemory(
            f"out of memory: {takes}, and a round about {size(besides)} more; {size(free)} are free. --spill FOLDER "
            "keeps the state in a file there instead."
        )


@contextmanager
def explain_lack_of_memory(training: Training, workers: int) -> Iterator[None]:
    """Turn a lack of memory into an `OutOfMemory` that says what takes it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        clients = len(training.batches.client_rows)
        raise OutOfMemory(
            f"out of memory: the state of {counted(clients, 'client')} takes "
            f"{size(state_size(_initial(training), clients))} over {counted(workers, 'worker')}, and a step needs more "
            "besides. A smaller chunk or batch_size, fewer clients, more machines, or --spill FOLDER would help."
        ) from error


def _initial(training: Training) -> State:
    return training.method.init(training.model.initial)


def _put(rows: Any, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Write rows of some tensors, unless they are there already.

    A value may itself lie where another one is to be written: two parts of a state that change places, say.
    """
    targets = {target.untyped_storage().data_ptr() for target, _ in pairs}
    moves = []
    for target, value in pairs:
        if isinstance(rows, slice) and value.data_ptr() == target[rows].data_ptr() and value.is_contiguous():
            continue
        moves.append((target, value.clone() if value.untyped_storage().data_ptr() in targets else value))
    for target, value in moves:
        target[rows] = value


def spilled(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in a file that has no name: it is gone when the process ends, however it ends."""
    try:
        folder.mkdir(exist_ok=True)
        length = max(1, torch.Size(shape).numel() * dtype.itemsize)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a place that is missing is told now, and not by a signal later
                os.posix_fallocate(file.fileno(), 0, length)
            file.truncate(length)
            memory = mmap.mmap(file.fileno(), length)
    except OSError as error:
        raise GossamerError(f"--spill {folder}: cannot be written: {error.strerror or error}") from error
    return torch.frombuffer(memory, dtype=dtype, count=torch.Size(shape).numel()).view(shape)


def unread_by_receive(method: Method, state: State, message: Message, round: Round) -> list[str]:
    """The parts of one client's state whose values the method's `receive` does not need, found by watching it."""
    mixed = {key: message[name] for key, (name, _) in mixes(method.sends, message).items()}
    given = {name: value.view_as(value) for name, value in state.items()}  # tensors of their own, to tell them apart
    with _Uses(given.values()) as uses:
        after = method.receive(dict(given), mixed, round)
    if not isinstance(after, dict):
        raise ExperimentError(f"round {round.number + 1}: the method's `receive` gives {after!r}, and no state")
    returned = {id(value) for value in after.values()}
    return [name for name, value in given.items() if id(value) not in uses.seen | returned]


class _Uses(TorchFunctionMode):
    """Remembers which of some tensors a function was applied to."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._watched = {id(tensor) for tensor in tensors}
        self.seen: set[int] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen |= self._watched & {id(value) for value in tree_leaves((args, kwargs))}
        return function(*args, **(kwargs or {}))
