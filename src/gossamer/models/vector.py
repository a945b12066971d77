"""A network as a function of one flat vector.

A client's model is one vector x of length d: methods add and scale it, messages carry it, and mixing all clients is one
matrix product. `VectorModel` turns a module into a function of x, and x into a module.
"""

import copy
import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gossamer.data import Inputs
from gossamer.errors import ExperimentError

#: The parameters of a model: as one flat vector, or as the named tensors that lie in it.
Parameters: TypeAlias = Tensor | dict[str, Tensor]


class VectorModel:
    """A module whose trainable parameters are passed to each call, as one flat vector.

    >>> model = VectorModel(nn.Linear(3, 2))
    >>> model.size
    8
    >>> x = model.initial
    >>> model(x, torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, module: nn.Module) -> None:
        refuse_lazy_layers(module)
        refuse_batch_statistics(module)
        self.template = module
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not parameters:
            raise ExperimentError(f"model {type(module).__name__} has no trainable parameter")
        self.names = list(parameters)
        self.shapes = [p.shape for p in parameters.values()]
        self.lengths = [math.prod(shape) for shape in self.shapes]
        self.size = sum(self.lengths)
        #: Bytes of the largest parameter tensor.
        self.largest = max(p.nbytes for p in parameters.values())
        #: The module's parameters as it was given: the starting point of every client.
        self.initial = torch.cat([p.detach().reshape(-1) for p in parameters.values()])
        self._share_initial()
        #: Whether the forward pass draws random numbers (dropout). The engine must then key torch's random stream.
        self.draws_randomness = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in module.modules())

    def forget_initial(self) -> None:
        """Free the memory of the initial vector; one number keeps its dtype and device."""
        self.initial = self.initial[:1].clone().expand(self.size)
        self._share_initial()

    def _share_initial(self) -> None:
        """Let the module's parameters share the memory of the initial vector; their values are never used."""
        parameters = dict(self.template.named_parameters())
        for name, value in self.unflatten(self.initial).items():
            parameters[name].data = value

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """The named tensors in x, as views. One `split`, because its backward pass is a single concatenation."""
        pieces = torch.split(x, self.lengths)
        return {n: p.view(shape) for n, p, shape in zip(self.names, pieces, self.shapes, strict=True)}

    def __call__(self, x: Parameters, inputs: Inputs) -> Tensor:
        """The module's outputs with parameters x. Inputs with names are its keyword arguments."""
        named = self.unflatten(x) if isinstance(x, Tensor) else x
        if isinstance(inputs, Tensor):
            outputs: Tensor = functional_call(self.template, named, (inputs,))
        else:
            outputs = functional_call(self.template, named, (), inputs)
        return outputs

    def module(self, x: Tensor) -> nn.Module:
        """A copy of the module with the parameters x, in evaluation mode."""
        module = copy.deepcopy(self.template)
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.unflatten(x.detach()).items():
                named[name].copy_(value)
        return module.eval()


def call_module(module: nn.Module, inputs: Inputs) -> Tensor:
    """A module's outputs; inputs with names are its keyword arguments."""
    outputs: Tensor = module(inputs) if isinstance(inputs, Tensor) else module(**inputs)
    return outputs


def refuse_batch_statistics(module: nn.Module) -> None:
    """Refuse BatchNorm: its state is outside the parameters, so no method sends or mixes it."""
    for name, layer in module.named_modules():
        running = getattr(layer, "track_running_stats", False)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or running:
            reason = (
                "its running statistics are state outside the model vector, so clients could never agree on them"
                if running
                else "what it makes of a sample depends on the other samples of a batch, and batches are padded"
            )
            where = f"model {type(module).__name__} has a {type(layer).__name__} at '{name}'"
            raise ExperimentError(f"{where}: {reason}. Use nn.GroupNorm instead.")


def refuse_lazy_layers(module: nn.Module) -> None:
    """Refuse layers that take their size from the first batch: there is a vector before there is a batch."""
    for name, layer in module.named_modules():
        if any(nn.parameter.is_lazy(p) for p in layer.parameters(recurse=False)):
            raise ExperimentError(
                f"model {type(module).__name__} has a {type(layer).__name__} at '{name}', whose size is not known "
                "before the first batch. Give it its size: a model is a function of (input shape, number of classes)."
            )


def refuse_other_numbers(module: nn.Module) -> None:
    """Refuse parameters that one vector of floats would silently change: complex, of half precision, or sparse."""
    for name, p in module.named_parameters():
        if p.dtype not in (torch.float32, torch.float64) or p.layout != torch.strided:
            kind = str(p.dtype if p.layout == torch.strided else p.layout).removeprefix("torch.")
            raise ExperimentError(
                f"model {type(module).__name__} has a {kind} parameter at '{name}': all parameters lie in one dense "
                "vector of float32 or float64. Give them as floats, and convert them in `forward`"
            )


def build_model(factory: Callable[[], nn.Module], seed: int, dtype: torch.dtype, device: torch.device) -> VectorModel:
    """A model with initial weights drawn from `seed`. Torch's global generator is left unchanged.

    Weights are drawn on the CPU in float32, so every device and dtype has the same starting point.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = factory()
    if not isinstance(module, nn.Module):
        raise ExperimentError(f"a model factory must return an nn.Module (got {type(module).__name__})")
    refuse_other_numbers(module)
    return VectorModel(module.to(device=device, dtype=dtype))
