"""A local step that was compiled in another process into a library, which is all that this one needs to take it.

torch's tracer and compiler take over 150 MB in the process that imports them, as long as it lives. A library takes what
its code takes.
"""

import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.data import Batch
from gossamer.workers import apart

if TYPE_CHECKING:
    from gossamer.engines.recorded import Recorded

#: What a step takes, and how it is laid out in the list of tensors that recordings and libraries take.
Given = tuple[dict[str, Tensor], dict[str, Tensor], Batch, dict[str, Tensor], Tensor]


def flat(given: Given) -> list[Tensor]:
    """All tensors of a step, in one list."""
    state, local, batch, about, lr = given
    return [*state.values(), *local.values(), *batch, *about.values(), lr]


def apiece(given: Given) -> list[Tensor]:
    """Copies of them, because a recorder tells tensors apart by being different ones: a first step, whose y is still
    x, would be recorded as if it were so in every step."""
    return [tensor.clone() for tensor in flat(given)]


class Built:
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


def build(record: Callable[[Given], "Recorded"], given: Given) -> Built:
    """Record and compile a step, for tensors like `given`, in a fork of this process."""

    def there() -> str:
        recorded = record(given)
        strides = [tensor.stride() for tensor in apiece(given)]
        library = str(recorded.library(given))
        Built(library, recorded.returns, strides)  # here first, where one that is damaged takes nobody with it
        return json.dumps([library, recorded.returns, strides])

    return Built(*json.loads(apart(there)))


def _laid(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """A tensor with these strides: a library goes by those that it was built for, and does not look."""
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
