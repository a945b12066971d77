"""A local step that was compiled in another process into a library, which is all that this one needs to take it.

torch's tracer and compiler take over 150 MB in the process that imports them, as long as it lives. A library takes what
its code takes.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from platformdirs import user_cache_path
from torch import Tensor

from gossamer.data import Batch
from gossamer.engines.steps.fingerprint import fingerprint
from gossamer.methods import Local, State
from gossamer.system.machine import processor_and_features
from gossamer.training.steps import About
from gossamer.workers import run_in_fork

if TYPE_CHECKING:
    from gossamer.engines.steps.traced import TracedStep

#: What a step takes, and how it is laid out in the list of tensors that recordings and libraries take.
StepInputs = tuple[State, Local, Batch, About, Tensor]
Step = Callable[[State, Local, Batch, About, Tensor], tuple[Local, Tensor]]


def flat(given: StepInputs) -> list[Tensor]:
    """All tensors of a step, in one list."""
    state, local, batch, about, lr = given
    return [*state.values(), *local.values(), *batch, *about.values(), lr]


def apiece(given: StepInputs) -> list[Tensor]:
    """Copies of them, because a recorder tells tensors apart by being different ones: a first step, whose y is still
    x, would be recorded as if it were so in every step."""
    return [tensor.clone() for tensor in flat(given)]


class CompiledStep:
    """One step, from a library. Called like the step itself."""

    def __init__(self, library: str, returns: Iterable[str], strides: Iterable[Iterable[int]]) -> None:
        self._run: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1).run
        self._returns = tuple(returns)
        self._strides = [tuple(each) for each in strides]

    def __call__(self, *given: Any) -> tuple[dict[str, Tensor], Tensor]:
        tensors = [_laid(tensor, stride) for tensor, stride in zip(flat(given), self._strides, strict=True)]
        *after, loss = self._run(tensors)
        return dict(zip(self._returns, after, strict=True)), loss


def can_build(device: torch.device) -> bool:
    """Whether steps can be compiled apart: a fork cannot use a GPU, and not every system survives one."""
    return sys.platform == "linux" and device.type == "cpu"


def build(
    record: Callable[[StepInputs], "TracedStep"], given: StepInputs, as_written: Step, made_of: Sequence[Any]
) -> CompiledStep:
    """Record and compile a step, for tensors like `given`, in a fork of this process.

    Where all that it is `made_of` has code that is known, one that was built before on this machine is taken without
    being recorded again, which takes seconds; if it gives what the step gives `as_written`.
    """
    like = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in flat(given)]
    named = [tuple(part) for part in given if isinstance(part, dict)]
    name = fingerprint(processor_and_features(), torch.get_num_threads(), made_of, like, named)
    note = kept_steps() / f"{name}.json"
    if name and (before := _noted(note)) and agree(before(*given), as_written(*given)):
        return before

    def there() -> str:
        recorded = record(given)
        strides = [tensor.stride() for tensor in apiece(given)]
        library = recorded.library(given)
        CompiledStep(
            str(library), recorded.returns, strides
        )  # here first, where one that is damaged takes nobody with it
        return json.dumps([str(library), recorded.returns, strides, digest(library)])

    library, returns, strides, whole = json.loads(run_in_fork(there))
    if name:
        kept = [Path(library).name, returns, strides, whole]  # wherever the folder is the next time
        with suppress(OSError):  # without a place to keep it, it is recorded again
            put(note, json.dumps(kept).encode())
    return CompiledStep(library, returns, strides)


def _noted(note: Path) -> CompiledStep | None:
    """What an earlier run built, if it is there and whole: to load a library that is not would end this process."""
    try:
        name, returns, strides, whole = json.loads(note.read_text(encoding="utf-8"))
        library = note.with_name(name)
        return CompiledStep(str(library), returns, strides) if digest(library) == whole else None
    except (OSError, ValueError, TypeError, RuntimeError):
        return None


def agree(one: tuple[Local, Tensor], other: tuple[Local, Tensor]) -> bool:
    """Whether two ways to take a step give the same, but for rounding."""
    (after, loss), (expected, expected_loss) = one, other
    pairs = [(after.get(name), value) for name, value in expected.items()] + [(loss, expected_loss)]
    return all(found is not None and _close(found, value) for found, value in pairs)


def _close(found: Tensor, value: Tensor) -> bool:
    if found.shape != value.shape:
        return False
    largest = float(value.abs().max()) if value.numel() else 0.0
    near = 1e-4 if value.dtype != torch.float64 else 1e-9
    return bool(torch.allclose(found, value, rtol=0, atol=near * largest, equal_nan=True))


def kept_steps() -> Path:
    """Where compiled steps are kept."""
    return Path(user_cache_path("gossamer") / "steps")


def put(path: Path, content: bytes) -> None:
    """Write a file that others may read or write at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as aside:
        aside.write(content)
    os.replace(aside.name, path)


def digest(path: Path) -> str:
    """Of what is in a file."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _laid(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """A tensor with these strides: a library goes by those that it was built for, and does not look."""
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
