"""Steps of small models with clients in the lanes of vectors: all steps of a round in one call of compiled C++.

A product of a few dozen numbers is too small for a library to be fast. Here one instruction does the same to a number
of each of 16 clients (8 in float64). The recorded graph of one client's step becomes C++ (`lane_code.py`), which g++
compiles in seconds; the library is kept and found again. It takes samples as they are stored, by their rows, and any
number of clients; mini-batches are padded to one size, and a client without further steps keeps its local state.
"""

import ctypes
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.engines.steps.compiled import can_use_forks
from gossamer.engines.steps.fingerprint import fingerprint
from gossamer.engines.steps.inputs import Step, StepInputs, same_result, tensors_of
from gossamer.engines.steps.lane_code import NotInLanes, Roles, lane_code
from gossamer.engines.steps.traced import StepGraph
from gossamer.methods import Local, Round, State
from gossamer.system.cache import cache_file, kept_library, write_atomically
from gossamer.training.rounds import tensors_of_round, with_tensors
from gossamer.workers import run_in_fork

#: The most parameters of a model whose clients are run in lanes: 16 of them should stay in a core's cache.
MOST_PARAMETERS = 12_000
HEADER = Path(__file__).with_name("lanes.h")
COMPILER = "g++"
REAL = {torch.float32: "float", torch.float64: "double"}
#: Without `errno` and traps, which nothing here looks at, functions of vectors can be used. NaN stays NaN.
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
#: Seconds that compiling may take: it takes one to five.
COMPILE_TIMEOUT = 60


class LaneBatches(NamedTuple):
    """All steps of some clients."""

    #: All samples, as they are stored: the tensors of their inputs, and their targets.
    samples: Sequence[Tensor]
    #: [steps, clients, width]: the samples of each mini-batch, and their weights, which are 0 for padding.
    rows: Tensor
    weights: Tensor
    #: [steps, clients]: whether the client takes the step.
    active: Tensor


class LaneStep:
    """All steps of a round, in a library."""

    def __init__(self, library: str, returns: Sequence[str], width: int) -> None:
        loaded = ctypes.CDLL(library)
        loaded.bytes_of_memory.restype = ctypes.c_int64
        self._run = loaded.run
        self._run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
        self._run.restype = None
        self._returns = tuple(returns)
        #: The number of samples of a mini-batch, padding included.
        self.width = width
        memory = torch.empty(loaded.bytes_of_memory() + 64, dtype=torch.uint8)
        self._memory = memory[-memory.data_ptr() % 64 :]  # vectors are aligned

    def __call__(
        self, state: State, local: Local, round: Round, lr: Tensor, batches: LaneBatches
    ) -> tuple[Local, Tensor]:
        """The local state after all steps, and the losses before each: [steps, clients]. All but `lr` is of clients."""
        steps, clients = batches.active.shape
        after = {name: torch.empty(local[name].shape, dtype=lr.dtype) for name in self._returns}
        losses = lr.new_empty((steps, clients))
        clients_own = [*batches.samples, batches.weights, *tensors_of_round(round), lr]
        taken = [tensor.contiguous() for tensor in (*state.values(), *local.values(), *clients_own)]
        rows, active = batches.rows.contiguous(), batches.active.contiguous()
        given, gives = (_pointers(tensors) for tensors in (taken, [*after.values(), losses]))
        self._run(given, gives, rows.data_ptr(), active.data_ptr(), steps, clients, self._memory.data_ptr())
        return after, losses


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def check_lanes(parameters: int, example: Tensor) -> None:
    """Refuse a model whose clients cannot be run in lanes: one that is not small, or where there is no compiler."""
    if not can_use_forks(example.device):
        raise NotInLanes("this needs Linux, and a CPU")
    if example.dtype not in REAL:
        raise NotInLanes(f"a model of {example.dtype}")
    if parameters > MOST_PARAMETERS:
        raise NotInLanes(f"a model of {parameters:,} parameters, of which {MOST_PARAMETERS:,} would stay in a cache")
    if shutil.which(COMPILER) is None:
        raise NotInLanes(f"there is no {COMPILER}")


def lanes_in_fork(
    make_graph: Callable[[], StepGraph], inputs: StepInputs, eager: Step, made_of: Sequence[Any]
) -> LaneStep:
    """The steps of clients like the one whose first step has these inputs.

    It is traced in a fork, where what it is `made_of` is not known from an earlier run, and tried before it is taken.
    """
    layouts = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors_of(inputs)]
    known = fingerprint(made_of, layouts, tuple(inputs.state), tuple(inputs.local))
    width = len(inputs.batch.weights)
    note = cache_file("steps", "lanes", known).with_suffix(".json")
    written = _from_note(note) if known else None
    if written is None:
        written = _Written(*json.loads(run_in_fork(lambda: json.dumps(_written(make_graph(), inputs)))))
        if known:
            with suppress(OSError):  # a folder that cannot be written to: the step is traced again in the next run
                write_atomically(note, json.dumps(written).encode())
    code, returns = written
    path = kept_library(lambda content: _compile(code, content), "lanes", code, FLAGS, HEADER.read_text("utf-8"))
    step = LaneStep(str(path), returns, width)
    after, losses = _one_step(step, inputs)
    if not same_result((after, losses), eager(inputs)):
        raise NotInLanes("it gives other numbers")
    return step


class _Written(NamedTuple):
    """The C++ of a step, and the names of what it returns."""

    code: str
    returns: Sequence[str]


def _from_note(note: Path) -> _Written | None:
    """What an earlier run wrote."""
    try:
        return _Written(*json.loads(note.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _written(graph: StepGraph, inputs: StepInputs) -> _Written:
    samples = len(tensors_of(inputs)) - len(tensors_of(inputs._replace(batch=inputs.batch._replace(inputs={})))) + 1
    roles = Roles(len(inputs.state), tuple(inputs.local), samples, graph.returns)
    dtype = inputs.lr.dtype
    code = lane_code(graph.module, roles, dtype)
    return _Written(f'#define REAL {REAL[dtype]}\n#include "lanes.h"\n\n{code}', graph.returns)


def _one_step(step: LaneStep, inputs: StepInputs) -> tuple[Local, Tensor]:
    """One step of one client, whose samples are those of its batch."""
    state, local, batch, round, lr = inputs
    tensors = [batch.inputs] if isinstance(batch.inputs, Tensor) else list(batch.inputs.values())
    rows = torch.arange(step.width).view(1, 1, -1)
    takes = torch.ones(1, 1, dtype=torch.bool)
    batches = LaneBatches([*tensors, batch.targets], rows, batch.weights.view(1, 1, -1), takes)
    states, locals = ({name: value[None] for name, value in values.items()} for values in (state, local))
    rounds = with_tensors(round, [value[None] for value in tensors_of_round(round)])
    after, losses = step(states, locals, rounds, lr, batches)
    return {name: value[0] for name, value in after.items()}, losses[0, 0]


def _compile(code: str, into: Path) -> None:
    """Compile C++ into a library."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "step.cpp"
        source.write_text(code, encoding="utf-8")
        command = [COMPILER, *FLAGS, f"-I{HEADER.parent}", str(source), "-o", str(into), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT)
        except FileNotFoundError:
            raise NotInLanes(f"there is no {COMPILER}") from None
        except subprocess.TimeoutExpired:
            raise NotInLanes(f"{COMPILER} takes over {COMPILE_TIMEOUT} s") from None
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if "error" in line]
            raise NotInLanes(f"{COMPILER} fails: {lines[0] if lines else error.returncode}") from None
