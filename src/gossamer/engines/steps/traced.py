"""A local step traced into the plain tensor operations that it is made of.

A trace holds for tensors of the same shapes. Whatever a step takes from Python instead of from its tensors is fixed in
it, which is why the learning rate comes in as a tensor, and why a step that reads the number of its round is not traced
at all. A branch on the value of a tensor cannot be traced: that is an error here, and the caller runs the step eagerly.
"""

import base64
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gossamer.engines.steps.inputs import Step, StepInputs, copies_of, same_result, tensors_of
from gossamer.engines.steps.products import Products, replace_products
from gossamer.methods import Local
from gossamer.system.cache import kept_library
from gossamer.system.own_product import own_product
from gossamer.system.torch_private import compile_graph, compile_library, trace, tree_flatten, tree_unflatten
from gossamer.workers import run_in_fork

if TYPE_CHECKING:
    from torch.fx import GraphModule

#: The names that the code of a graph uses without defining them.
NAMES = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan, "NoneType": type(None)}
#: Functions that hand the numbers of a tensor to something else than torch.
LEAVES_TORCH = (Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.__dlpack__)


class TracedStep:
    """A step as a function of its tensors: the operations of a trace, one after the other or fused."""

    def __init__(self, forward: Callable[..., Any], returns: Iterable[str]) -> None:
        self._forward = forward
        self._returns = tuple(returns)

    def __call__(self, inputs: StepInputs) -> tuple[Local, Tensor]:
        with torch.no_grad():
            *after, loss = self._forward(*tensors_of(inputs))
        return dict(zip(self._returns, after, strict=True)), loss


class StepGraph:
    """The graph of the operations of a step, or of another function of tensors, and what can be made of it."""

    def __init__(self, step: Callable[[Any], tuple[Any, ...]], inputs: tuple[Any, ...]) -> None:
        #: The names of the tensors that it returns in a dictionary, in order; the loss, if any, comes after these.
        self.returns: tuple[str, ...] = ()
        #: False if the choice of a library was made on a busy machine.
        self.final = True
        leaves, structure = tree_flatten(inputs)

        def on_tensors(*tensors: Tensor) -> list[Tensor]:
            rest = iter(tensors)
            filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            after, *loss = step(tree_unflatten(filled, structure))
            self.returns = tuple(after)
            return [*after.values(), *loss]

        with _NoNumpy():  # the tracer works by identity: of one tensor given twice it would fix that it is the same
            self._graph = trace(on_tensors, [leaf.clone() for leaf in leaves if isinstance(leaf, Tensor)])

    def multiply_by(self, products: Products) -> None:
        """Let the faster library, or the one asked for, do the matrix products."""
        self.final = replace_products(self._graph, products)

    @property
    def code(self) -> str:
        """The operations, as Python."""
        return str(self._graph.code)

    @property
    def constants(self) -> dict[str, Tensor]:
        """The tensors that they use besides those of the step."""
        found = {node.target: getattr(self._graph, node.target) for node in self._graph.graph.find_nodes(op="get_attr")}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def same_as(self, other: "StepGraph") -> bool:
        """Whether both have the same operations on the same constants."""
        mine, theirs = self.constants, other.constants
        return (
            self.code == other.code
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name], theirs[name]) for name in mine)
        )

    @property
    def module(self) -> "GraphModule":
        """The operations, as a graph."""
        return self._graph

    def traced(self) -> TracedStep:
        """The step, run operation by operation."""
        return TracedStep(self._graph, self.returns)

    def compiled(self, inputs: StepInputs) -> TracedStep:
        """The step with its operations fused, for tensors like these; in this process."""
        return TracedStep(compile_graph(self._graph, copies_of(inputs)), self.returns)

    def library(self, inputs: StepInputs) -> Path:
        """The step as a shared library; one that was compiled earlier on this machine is used again."""
        tensors = copies_of(inputs)
        constants = [(name, describe_constant(value)) for name, value in self.constants.items()]
        layouts = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]

        def build(path: Path) -> None:
            shutil.copyfile(compile_library(self._graph, tensors), path)

        return kept_library(build, self.code, constants, layouts)


class _NoNumpy(TorchFunctionMode):
    """Refuses a step that leaves torch on its way: in the trace, its numbers would be fixed."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in LEAVES_TORCH:
            raise ValueError("it computes with numpy or with numbers of Python")
        return function(*args, **(kwargs or {}))


def step_graph(
    step: Callable[[Any], tuple[Any, ...]], inputs: tuple[Any, ...], products: Products = "mkl"
) -> StepGraph:
    """The graph of a step, with its products by this library; a step that does not do the same twice has none."""
    graph, again = StepGraph(step, inputs), StepGraph(step, inputs)
    if not graph.same_as(again):
        raise ValueError("it does not do the same every time")
    graph.multiply_by(products)
    return graph


def trace_in_fork(make_graph: Callable[[], StepGraph], inputs: StepInputs, eager: Step) -> TracedStep:
    """Trace a step in a fork of this process, and check there that it gives what the eager step gives.

    The fork takes the tracer's memory with it when it ends, and leaves code and constants: a worker with a traced step
    then takes 170 MB instead of 260 MB.
    """

    def in_fork() -> str:
        graph = make_graph()
        constants = {name: describe_constant(value) for name, value in graph.constants.items()}
        text = json.dumps([graph.code, constants, graph.returns])
        if not same_result(_from_json(text)(inputs), eager(inputs)):
            raise ValueError("the traced step gives other numbers")
        return text

    return _from_json(run_in_fork(in_fork))


def _from_json(text: str) -> TracedStep:
    code, constants, returns = json.loads(text)
    names: dict[str, Any] = dict(NAMES)
    own_product()  # the code may call it by its name, which was made known in the fork
    exec(code, names)  # written by torch's tracer, in this run
    return TracedStep(partial(names["forward"], SimpleNamespace(**restore_constants(constants))), returns)


def describe_constant(value: Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...], str]:
    """A tensor as text: its type, shape, strides (a traced `view` depends on them), and the memory that it spans."""
    value = value.detach()
    if value.is_conj() or value.is_neg():  # such a view is computed when it is read
        value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
    span = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    memory = value.as_strided((span,), (1,)).contiguous().view(torch.uint8).numpy().tobytes()
    return str(value.dtype), tuple(value.shape), value.stride(), base64.b64encode(memory).decode()


def restore_constants(described: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that `describe_constant` described, by name."""
    constants = {}
    for name, (dtype, shape, stride, text) in described.items():
        memory = torch.frombuffer(bytearray(base64.b64decode(text)) or bytearray(16), dtype=torch.uint8)
        constants[name] = memory.view(getattr(torch, dtype.removeprefix("torch."))).as_strided(shape, stride)
    return constants
