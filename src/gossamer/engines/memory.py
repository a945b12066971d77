"""The memory of the states and messages of a worker's clients: that of one state, or of two.

A message is stored where a part of the state lies that is not read any more once the message is sent: DFedAvg's new
model is mixed where the old one was. With two buffers the state before a round is kept until the next one; a large
state has one buffer, and an interrupted round is computed again from the last checkpoint.
"""

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gossamer.engines.steps.inputs import AnyRound
from gossamer.errors import ExperimentError, GossamerError
from gossamer.methods import Message, Method, Round, State, mixes, probe
from gossamer.parts import is_out_of_memory
from gossamer.system.machine import free_memory
from gossamer.system.torch_private import tree_leaves
from gossamer.system.words import counted, size
from gossamer.training import Training, call
from gossamer.workers import ALONE, Group, machines

#: Bytes of state on a machine up to which a second copy of it is kept.
SMALL_STATE = 128 << 20
#: What a round needs besides the state: in each worker so many models (gradients, intermediate vectors, sums in double
#: precision), and so many bytes once (activations, libraries).
EXTRA_MODELS, EXTRA_BYTES = 8, 256 << 20
#: And in each worker, for each link and each client of the whole graph: its part of the matrix, and the columns mixed
#: at once.
LINK_BYTES, MIXED_BYTES = 48, 512

#: How a tensor is asked for its version, which `call` does of all that it passes on: no use of the values.
VERSION = Tensor._version.__get__  # type: ignore[attr-defined]  # torch's stubs call it a number


class OutOfMemory(GossamerError):
    """The memory does not suffice. The message says what would."""


class Buffers:
    """The state of a worker's clients, as rows, and the messages that they send."""

    def __init__(
        self,
        initial: State,
        message: Message,
        own: range,
        clients: int,
        double: bool = True,
        spill: Path | None = None,
        group: Group = ALONE,
    ) -> None:
        self.double = double
        self._initial = initial
        self._own = own
        self._spill = spill
        #: Rows of all clients, in memory that forked workers share. Each worker writes those of its own clients.
        self._shared: list[Tensor] = []
        self._clients, self._group = clients, group
        self.front: State = {name: self._rows(value) for name, value in initial.items()}
        self.reset()
        self.back: State = {name: self._rows(value) for name, value in initial.items()} if double else {}
        self._messages: Message = {}
        #: Memory for those that are not written over a part of the state; all that is shared was asked for before.
        shared = {name: self._shared_rows(value) for name, value in message.items()}
        self._message_rows: Message = {name: rows for name, rows in shared.items() if rows is not None}

    def reset(self) -> None:
        """Every client starts from the same point."""
        for name, value in self._initial.items():
            self.front[name][:] = value

    def begin(self) -> None:
        """Start a round, which is written to `back`: another buffer than `front` if there are two."""
        self._messages = {}
        if not self.double:
            self.back = self.front

    def carry_over(self, rows: Tensor) -> None:
        """Clients that do not take part in this round keep their state."""
        if self.double:
            for name, value in self.front.items():
                self.back[name][rows] = value[rows]

    def store(self, rows: Any, state: State, message: Message, aliases: dict[str, str]) -> None:
        """Store the states and messages of some clients after their local steps."""
        taken = set(aliases.values())
        self.expect(message, aliases)
        kept = [(self.back[name], value) for name, value in state.items() if name not in taken]
        _write(rows, kept + [(self._messages[name], value) for name, value in message.items()])

    def expect(self, message: Message, aliases: dict[str, str]) -> None:
        """Provide memory for messages like these: the part of the state that is their alias, or rows of their own."""
        for name, value in message.items():
            if name in self._messages:
                continue
            if name in aliases:
                self._messages[name] = self.back[aliases[name]]
                continue
            if name not in self._message_rows or self._message_rows[name].shape[1:] != value.shape[1:]:
                self._message_rows[name] = self._rows(value[0])
            self._messages[name] = self._message_rows[name].zero_()  # of clients that send nothing

    def messages(self) -> Message:
        """The messages of all own clients, as rows."""
        return dict(self._messages)

    def kept(self, aliases: dict[str, str]) -> State:
        """The rows of the state that is written in a round, without those that hold messages."""
        return {name: rows for name, rows in self.back.items() if name not in aliases.values()}

    def write(self, state: State, rows: Any, values: State) -> None:
        """Write some rows of a state."""
        _write(rows, [(state[name], value) for name, value in values.items()])

    def swap(self) -> None:
        """End a round, or undo one: the buffer that was written becomes the state."""
        if self.double:
            self.front, self.back = self.back, self.front

    def find_aliases(self, message: Message, unread: Sequence[str]) -> dict[str, str]:
        """For each message that fits into an unread part of the state: which part."""
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

    def all_clients(self, own: Tensor) -> Tensor | None:
        """The rows of all clients, where these rows of the own clients are a part of shared memory."""
        for rows in self._shared:
            if own.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr() and own.stride() == rows.stride():
                return rows
        return None

    def _rows(self, like: Tensor) -> Tensor:
        if (shared := self._shared_rows(like)) is not None:
            return shared
        shape = (len(self._own), *like.shape)
        return like.new_empty(shape) if self._spill is None else spilled(self._spill, shape, like.dtype)

    def _shared_rows(self, like: Tensor) -> Tensor | None:
        memory = self._group.shared_memory(self._clients * like.nbytes)
        if memory is None:
            return None
        self._shared.append(memory.view(like.dtype).view(self._clients, *like.shape))
        return self._shared[-1][self._own.start : self._own.stop]


def state_size(initial: State, clients: int) -> int:
    """Bytes of the state of so many clients."""
    return clients * sum(value.numel() * value.element_size() for value in initial.values())


def is_small(initial: State, clients: int, small_state: int) -> bool:
    """Whether the state of so many clients on a machine may be held twice."""
    return state_size(initial, clients) <= small_state


def shared_sizes(training: Training, spill: Path | None, small_state: int = SMALL_STATE) -> list[int]:
    """Bytes of each part of the state and of the messages, for forked workers to share; none for a state in a file.

    So a worker mixes what all clients send as it lies, and the first one sees all vectors at the end. To gather them,
    300 clients with 687 MB of state on two workers would take 1.7 GB instead of 1.0 GB.
    """
    if spill is not None:
        return []
    initial, clients = _initial(training), len(training.batches.client_rows)
    message = probe(training.method, training.model.initial).message
    twice = 2 if is_small(initial, clients, small_state) else 1
    parts = [*[*initial.values()] * twice, *message.values()]
    return [clients * part.nbytes for part in parts if part.nbytes]


def memory_needed(training: Training, workers: int) -> tuple[int, int]:
    """Bytes that a run takes at most on this machine beside its data and its graph: of the state, and of a round."""
    initial, clients = _initial(training), -(-len(training.batches.client_rows) // machines())
    model = max(value.nbytes for value in initial.values())
    here, links = -(-workers // machines()), 0 if training.network.has_server else training.network.matrix(0).nnz
    mixing = LINK_BYTES * links + MIXED_BYTES * len(training.batches.client_rows)
    return state_size(initial, clients), here * (EXTRA_MODELS * model + mixing) + EXTRA_BYTES


def check_memory(training: Training, workers: int, spill: Path | None) -> None:
    """Refuse a run whose state does not fit into the memory of this machine, before anything else is done."""
    initial, (needed, extra) = _initial(training), memory_needed(training, workers)
    takes = f"the clients' state takes {size(needed)} on this machine"
    if spill is not None:
        folder = spill if spill.is_dir() else spill.absolute().parent
        if spill.exists() and not spill.is_dir():
            raise GossamerError(f"--spill {spill}: is not a folder")
        if not folder.is_dir():
            raise GossamerError(f"--spill {spill}: there is no folder {folder}. Make it first, if that is the place.")
        disk = shutil.disk_usage(folder)
        if disk.total and needed > disk.free:  # a size of zero is no disk: writing to it gives the error
            raise OutOfMemory(
                f"--spill {spill}: {takes}, and {size(disk.free)} are free there. A folder on a larger disk, "
                "fewer clients or more machines would help."
            )
    elif next(iter(initial.values())).device.type == "cpu" and needed + extra > (free := free_memory()):
        raise OutOfMemory(
            f"out of memory: {takes}, and a round about {size(extra)} more; {size(free)} are free. --spill FOLDER "
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


def _write(rows: Any, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Write rows of some tensors, unless they are there already.

    A value may lie in the memory that another one is written to: two parts of a state that change places, say.
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
    """A tensor in a file without a name, which is gone when the process ends, however it ends."""
    try:
        folder.mkdir(exist_ok=True)
        length = max(1, torch.Size(shape).numel() * dtype.itemsize)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error now, and not a signal later
                os.posix_fallocate(file.fileno(), 0, length)
            file.truncate(length)
            memory = mmap.mmap(file.fileno(), length)
    except OSError as error:
        raise GossamerError(f"--spill {folder}: cannot be written: {error.strerror or error}") from error
    return torch.frombuffer(memory, dtype=dtype, count=torch.Size(shape).numel()).view(shape)


class Receiving(NamedTuple):
    """What a method's `receive` does with what it is given."""

    #: The parts of the state whose values it does not use.
    unread: list[str]
    #: Whether it does so in every round: it does not look at what differs between rounds.
    always: bool
    #: Where each part of the new state comes from, if it only takes over what it is given: from the state or from the
    #: mixed message (0 or 1), and from which part.
    takes: dict[str, tuple[int, str]] | None

    @classmethod
    def watch(cls, method: Method, state: State, message: Message, round: Round) -> "Receiving":
        """Watch one client receive."""
        mixed = {key: message[name] for key, (name, _) in mixes(method.sends, message).items()}
        # A tensor object each, to be identified by.
        given = [{name: value.view_as(value) for name, value in values.items()} for values in (state, mixed)]
        used, always = _UsedTensors(given[0].values()), True
        try:
            with used:
                after = call("receive", round.number, method.receive, *given, AnyRound(*round))
        except Exception:  # of a user's method; it is called again in this round
            used, always = _UsedTensors(given[0].values()), False
            with used:
                after = call("receive", round.number, method.receive, *given, round)
        if not isinstance(after, dict):
            raise ExperimentError(f"round {round.number + 1}: the method's `receive` gives {after!r}, and no state")
        returned = {id(value) for value in after.values()}
        unread = [name for name, value in given[0].items() if id(value) not in used.ids | returned]
        sources = {id(value): (which, name) for which, values in enumerate(given) for name, value in values.items()}
        only_takes = always and not used.called and returned <= sources.keys()
        return cls(unread, always, {name: sources[id(value)] for name, value in after.items()} if only_takes else None)


class _UsedTensors(TorchFunctionMode):
    """Collects which of some tensors are arguments of torch's functions."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._watched = {id(tensor) for tensor in tensors}
        self.ids: set[int] = set()
        #: Whether any of torch's functions was called.
        self.called = False

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function != VERSION:
            self.called = True
            self.ids |= self._watched & {id(value) for value in tree_leaves((args, kwargs))}
        return function(*args, **(kwargs or {}))
