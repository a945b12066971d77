"""What a local step takes and gives."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.data import Batch
from gossamer.methods import Local, Round, State
from gossamer.training.rounds import tensors_of_round


class StepInputs(NamedTuple):
    """The arguments of a step, of one client or stacked for several."""

    state: State
    local: Local
    batch: Batch
    round: Round
    #: The learning rate of the round as a tensor: a number would be fixed in a traced step.
    lr: Tensor


class TracedRound(Round):
    """A round as a step sees it that is traced once for all rounds. A value that differs from round to round would be
    fixed in the trace, so it cannot be read. The learning rate can: it is a tensor here."""

    @property
    def number(self) -> int:
        raise ValueError("it depends on the number of the round")

    @property
    def participation(self) -> float:
        raise ValueError("it depends on how many clients take part in the round")

    def __getitem__(self, place: Any) -> Any:
        raise ValueError("it looks at all of the round")

    def __iter__(self) -> Any:
        raise ValueError("it looks at all of the round")


class AnyRound(TracedRound):
    """A round for a function of which one call must stand for those of all rounds."""

    @property
    def lr(self) -> float:
        raise ValueError("it depends on the learning rate of the round")


#: Gives the local state after the step, and the loss before it.
Step = Callable[[StepInputs], tuple[Local, Tensor]]


def tensors_of(inputs: StepInputs) -> list[Tensor]:
    """All tensors of a step, in the order in which traced and compiled steps take them.

    Written out, since it is called in every step: it takes 0.2 µs, `tree_leaves` 11 µs, a step of a tiny model 50 µs.
    """
    state, local, batch, round, lr = inputs
    samples = batch if isinstance(batch.inputs, Tensor) else (*batch.inputs.values(), *batch[1:])
    return [*state.values(), *local.values(), *samples, *tensors_of_round(round), lr]


def copies_of(inputs: StepInputs) -> list[Tensor]:
    """Clones of all tensors: the tracer works by identity, and in a first step, where y is x, it would fix y = x."""
    return [tensor.clone() for tensor in tensors_of(inputs)]


def same_result(one: tuple[Local, Tensor], other: tuple[Local, Tensor]) -> bool:
    """Whether two ways to run a step give the same numbers, but for rounding."""
    (after, loss), (expected, expected_loss) = one, other
    pairs = [(after.get(name), value) for name, value in expected.items()] + [(loss, expected_loss)]
    return all(found is not None and _close(found, value) for found, value in pairs)


def _close(found: Tensor, value: Tensor) -> bool:
    if found.shape != value.shape:
        return False
    largest = float(value.nan_to_num(0.0, 0.0, 0.0).abs().max()) if value.numel() else 0.0
    tolerance = 1e-4 if value.dtype != torch.float64 else 1e-9
    return bool(torch.allclose(found, value, rtol=0, atol=tolerance * largest, equal_nan=True))
