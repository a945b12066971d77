"""A recorded step as the plain code that it is. Who replays it does not need what recorded it.

torch's tracer takes over 100 MB in the process that imports it, as long as it lives. Beside a large state a step is
recorded in another process, which takes that memory with it and leaves a text.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.engines.steps.compiled import Step, StepInputs, agree, flat
from gossamer.workers import run_in_fork

if TYPE_CHECKING:
    from gossamer.engines.steps.traced import TracedStep

#: The names that recorded code uses for what it does not define.
NAMES = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan, "NoneType": type(None)}


class Replayed:
    """One step, from its code. Called like the step itself."""

    def __init__(self, code: str, constants: Mapping[str, Tensor], returns: Sequence[str]) -> None:
        found: dict[str, Any] = dict(NAMES)
        exec(code, found)  # written by torch's tracer, in this run
        self._forward, self._constants = found["forward"], SimpleNamespace(**constants)
        self._returns = tuple(returns)

    def __call__(self, *given: Any) -> tuple[dict[str, Tensor], Tensor]:
        with torch.no_grad():
            *after, loss = self._forward(self._constants, *flat(given))
        return dict(zip(self._returns, after, strict=True)), loss


def record_apart(record: Callable[[StepInputs], "TracedStep"], given: StepInputs, as_written: Step) -> Replayed:
    """Record a step, for tensors like `given`, in a fork of this process, and try it there: it must give the same."""

    def there() -> str:
        recorded = record(given)
        text = json.dumps([recorded.code, _to_text(recorded.constants), recorded.returns])
        if not agree(_from_words(text)(*given), as_written(*given)):
            raise ValueError("replayed, it gives other numbers")
        return text

    return _from_words(run_in_fork(there))


def _from_words(text: str) -> Replayed:
    code, constants, returns = json.loads(text)
    return Replayed(code, _from_text(constants), returns)


def _to_text(constants: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        name: [str(value.dtype), value.shape, value.stride(), base64.b64encode(to_bytes(value)).decode()]
        for name, value in constants.items()
    }


def _from_text(told: Mapping[str, Any]) -> dict[str, Tensor]:
    constants = {}
    for name, (dtype, shape, stride, text) in told.items():
        kind = getattr(torch, dtype.removeprefix("torch."))
        numbers = torch.frombuffer(bytearray(base64.b64decode(text)) or bytearray(1), dtype=torch.uint8)
        value = numbers[: math.prod(shape) * kind.itemsize].view(kind).view(shape)
        # What was recorded may go by how numbers lie. Along an expanded dimension there is one for all.
        value = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]
        constants[name] = torch.empty_strided(value.shape, stride, dtype=kind).copy_(value).expand(shape)
    return constants


def to_bytes(value: Tensor) -> bytes:
    """The numbers of a tensor, row by row."""
    numbers = value.detach().resolve_conj().resolve_neg().contiguous()
    return numbers.view(-1).view(torch.uint8).numpy().tobytes()
