"""The inputs of samples: one tensor, or several by name, whose first dimension is the samples."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

Inputs: TypeAlias = Tensor | dict[str, Tensor]


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to the tensor, or to each of several."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    return {name: function(value) for name, value in inputs.items()}


def input_tensors(inputs: Inputs) -> list[Tensor]:
    """The tensors, in order."""
    return [inputs] if isinstance(inputs, Tensor) else list(inputs.values())
