"""A local step compiled in a fork into a shared library, which is all that this process loads.

torch's compiler takes over 150 MB in the process that imports it, as long as that process lives.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.engines.steps.fingerprint import fingerprint
from gossamer.engines.steps.inputs import Step, StepInputs, copies_of, same_result, tensors_of
from gossamer.engines.steps.traced import StepGraph
from gossamer.methods import Local
from gossamer.system.cache import cache_file, digest, write_atomically
from gossamer.system.torch_private import load_library
from gossamer.workers import run_in_fork


class CompiledStep:
    """A step in a library. It takes tensors with the strides that it was compiled for, and does not check them."""

    def __init__(self, library: str, returns: Iterable[str], strides: Iterable[Iterable[int]]) -> None:
        self._run = load_library(library)
        self._returns = tuple(returns)
        self._strides = [tuple(each) for each in strides]

    def __call__(self, inputs: StepInputs) -> tuple[Local, Tensor]:
        tensors = [_with_stride(tensor, s) for tensor, s in zip(tensors_of(inputs), self._strides, strict=True)]
        *after, loss = self._run(tensors)
        return dict(zip(self._returns, after, strict=True)), loss


def can_use_forks(device: torch.device) -> bool:
    """Whether a fork can trace and compile: it cannot use a GPU, and is safe on Linux only."""
    return sys.platform == "linux" and device.type == "cpu"


def compile_in_fork(
    make_graph: Callable[[], StepGraph], inputs: StepInputs, eager: Step, made_of: Sequence[Any]
) -> CompiledStep:
    """Trace and compile a step, for tensors like `inputs`, in a fork of this process.

    Where the code of all that it is `made_of` is known, a library that an earlier run compiled is used without tracing,
    which takes seconds; if it gives what the `eager` step gives.
    """
    layouts = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors_of(inputs)]
    known = fingerprint(made_of, layouts, tuple(inputs.state), tuple(inputs.local))
    note = cache_file("steps", known).with_suffix(".json")
    if known and (earlier := _from_note(note)) and same_result(earlier(inputs), eager(inputs)):
        return earlier

    def in_fork() -> str:
        graph = make_graph()
        strides = [tensor.stride() for tensor in copies_of(inputs)]
        library = graph.library(inputs)
        CompiledStep(str(library), graph.returns, strides)  # tried here: a damaged library ends the process
        return json.dumps([str(library), graph.returns, strides, digest(library.read_bytes()), graph.final])

    library, returns, strides, content, final = json.loads(run_in_fork(in_fork))
    if known and final:
        with suppress(OSError):  # a folder that cannot be written to: the step is traced again in the next run
            write_atomically(note, json.dumps([Path(library).name, returns, strides, content]).encode())
    return CompiledStep(library, returns, strides)


def _from_note(note: Path) -> CompiledStep | None:
    """The step that an earlier run compiled, if its library is there and whole."""
    try:
        name, returns, strides, content = json.loads(note.read_text(encoding="utf-8"))
        library = note.with_name(name)
        whole = digest(library.read_bytes()) == content
        return CompiledStep(str(library), returns, strides) if whole else None
    except (OSError, ValueError, TypeError, RuntimeError):
        return None


def _with_stride(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
