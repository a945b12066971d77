"""The memory that a model needs for each sample."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gossamer.data import Inputs, input_tensors, map_inputs
from gossamer.models import VectorModel
from gossamer.system.torch_private import tree_leaves


class _Sizes(TorchFunctionMode):
    """Records how many numbers each torch function returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.numbers.append(sum(each.numel() for each in tree_leaves(found) if isinstance(each, Tensor)))
        return found


def widest(model: VectorModel, inputs: Inputs) -> int:
    """The most numbers per sample that a function in the model returns.

    `inputs` are at least four samples. For a model that calls other functions on half of them, or fails on so few, the
    size of one input is returned.

    >>> from torch import nn
    >>> widest(VectorModel(nn.Sequential(nn.Linear(3, 50), nn.Linear(50, 2))), torch.zeros(4, 3))
    50
    """
    count = len(input_tensors(inputs)[0])
    less = map_inputs(lambda values: values[: count // 2], inputs)
    found = [sum(values[0].numel() for values in input_tensors(inputs))]
    with suppress(Exception), torch.no_grad():  # an error of the model is reported where the model is used
        with _Sizes() as few:
            model(model.initial, less)
        with _Sizes() as many:
            model(model.initial, inputs)
        found += [(b - a) // (count - count // 2) for a, b in zip(few.numbers, many.numbers, strict=True)]
    return max(found)
