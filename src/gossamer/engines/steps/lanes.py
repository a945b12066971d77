"""Rounds of small models with clients in the lanes of vectors: all of a round up to the message in one call of C++.

A product of a few dozen numbers is too small for a library to be fast. Here one instruction does the same to a number
of each of 16 clients (8 in float64). The recorded graphs of one client's round become C++ (`lane_code.py`), which g++
compiles in seconds; the library is kept and found again. It takes states and samples as they are stored, by their
rows, and writes states and messages where they belong. Mini-batches are padded to one size, and a client without
further steps keeps its local state.
"""

import ctypes
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.engines.steps.compiled import can_use_forks
from gossamer.engines.steps.fingerprint import fingerprint
from gossamer.engines.steps.lane_code import NotInLanes, RoundGraphs, lane_code
from gossamer.methods import Message, Round, State
from gossamer.system.cache import cache_file, write_atomically
from gossamer.system.cpp import REAL, check_compiler, cpp_library
from gossamer.training.rounds import tensors_of_round
from gossamer.workers import run_in_fork

#: The most parameters of a model whose clients are run in lanes: 16 of them should stay in a core's cache.
MOST_PARAMETERS = 12_000
HEADER = Path(__file__).with_name("lanes.h")


class LaneBatches(NamedTuple):
    """All steps of some clients."""

    #: All samples, as they are stored: the tensors of their inputs, and their targets.
    samples: Sequence[Tensor]
    #: [steps, clients, width]: the samples of each mini-batch, and their weights, which are 0 for padding.
    rows: Tensor
    weights: Tensor
    #: [steps, clients]: whether the client takes the step.
    active: Tensor


class Written(NamedTuple):
    """The C++ of a round, and the names and shapes of what it gives: the state, and the message."""

    code: str
    state: dict[str, list[int]]
    message: dict[str, list[int]]


class LaneRound:
    """A client's round up to its message, in a library."""

    def __init__(self, library: Path, written: Written, width: int) -> None:
        loaded = ctypes.CDLL(str(library))
        loaded.bytes_of_memory.restype = ctypes.c_int64
        self._run = loaded.run
        self._run.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
        self._run.restype = None
        self._shapes = {"state": written.state, "message": written.message}
        #: The number of samples of a mini-batch, padding included.
        self.width = width
        memory = torch.empty(loaded.bytes_of_memory() + 64, dtype=torch.uint8)
        self._memory = memory[-memory.data_ptr() % 64 :]  # vectors are aligned

    def __call__(
        self,
        state: State,
        places: Tensor,
        round: Round,
        lr: Tensor,
        batches: LaneBatches,
        after: State,
        messages: Message,
    ) -> tuple[Tensor, Tensor]:
        """Take the state of clients from these places of `state`, and write the new one and the message to the same
        places of `after` and `messages`; parts that are not there are dropped.

        The losses before each step, [steps, clients], and the sum of the numbers of each message.
        """
        steps, clients = batches.active.shape
        losses, sums = lr.new_empty((steps, clients)), lr.new_empty(clients)
        given = [*state.values(), *batches.samples, batches.weights, *tensors_of_round(round), lr]
        taken = [tensor.contiguous() for tensor in given]
        into = [*self._places("state", after), *self._places("message", messages), losses.data_ptr(), sums.data_ptr()]
        lists = [tensor.contiguous() for tensor in (places, batches.rows, batches.active)]
        self._run(
            _pointers([tensor.data_ptr() for tensor in taken]), _pointers(into),
            *[tensor.data_ptr() for tensor in lists], steps, clients, self._memory.data_ptr(),
        )  # fmt: skip
        return losses, sums

    def empty(self, clients: int, like: Tensor) -> tuple[State, Message]:
        """Memory for the results of so many clients."""
        state, message = (
            {name: like.new_empty((clients, *shape)) for name, shape in self._shapes[what].items()}
            for what in ("state", "message")
        )
        return state, message

    def _places(self, what: str, tensors: State) -> list[int | None]:
        for name, tensor in tensors.items():
            shape = tuple(self._shapes[what][name])
            assert tensor.shape[1:] == shape, f"'{name}' of the {what} is {shape}"
            assert tensor.is_contiguous(), f"the rows of '{name}' lie one after the other"
        return [tensors[name].data_ptr() if name in tensors else None for name in self._shapes[what]]


def _pointers(addresses: Sequence[int | None]) -> Any:
    return (ctypes.c_void_p * len(addresses))(*addresses)


def check_lanes(parameters: int, example: Tensor) -> None:
    """Refuse a model whose clients cannot be run in lanes: one that is not small, or where there is no compiler."""
    if not can_use_forks(example.device):
        raise NotInLanes("this needs Linux, and a CPU")
    if example.dtype not in REAL:
        raise NotInLanes(f"a model of {example.dtype}")
    if parameters > MOST_PARAMETERS:
        raise NotInLanes(f"a model of {parameters:,} parameters, of which {MOST_PARAMETERS:,} would stay in a cache")
    check_compiler()


def lanes_in_fork(
    make_graphs: Callable[[], RoundGraphs], example: tuple[State, Message], width: int, made_of: Sequence[Any]
) -> LaneRound:
    """The rounds of clients whose state and message are like those of the example, in this type.

    It is traced in a fork, where what it is `made_of` is not known from an earlier run.
    """
    state, message = example
    dtype = next(iter(message.values())).dtype
    layouts = [(name, value.shape, value.dtype) for each in example for name, value in each.items()]
    known = fingerprint(made_of, width, layouts)
    note = cache_file("steps", "lanes", known, HEADER.read_text("utf-8")).with_suffix(".json")
    written = _from_note(note) if known else None
    if written is None:
        shapes = ({name: list(value.shape) for name, value in each.items()} for each in example)

        def in_fork() -> str:
            graphs = make_graphs()
            if list(graphs.kept) != list(state):
                raise NotInLanes("its state gets or loses tensors")
            return lane_code(graphs, dtype)

        written = Written(run_in_fork(in_fork), *shapes)
        if known:
            with suppress(OSError):  # a folder that cannot be written to: the round is traced again in the next run
                write_atomically(note, json.dumps(written).encode())
    return LaneRound(cpp_library(written.code, dtype, [HEADER]), written, width)


def _from_note(note: Path) -> Written | None:
    """What an earlier run wrote."""
    try:
        return Written(*json.loads(note.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
