"""Every use of torch's private functions; nothing else in Gossamer calls one. A new version of torch may change them.

torch's tracer takes about 90 MB in the process that imports it, and its compiler 150 MB, as long as that process lives:
both are imported by the functions that need them.
"""

import copy
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from gossamer.system.cpp import REAL
from gossamer.system.own_product import FUNCTIONS, HEADER, PARAMETERS, own_product

if TYPE_CHECKING:
    from torch.fx import GraphModule

__all__ = [
    "TorchDispatchMode",
    "compile_graph",
    "compile_library",
    "defer_compiler_import",
    "load_library",
    "onednn_linear",
    "quiet_vmap",
    "trace",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
]

#: Operations whose own kernels are faster on a CPU than the code that the compiler writes for them.
OWN_KERNELS = ("max_pool2d_with_indices", "max_pool2d_with_indices_backward")


def defer_compiler_import() -> None:
    """Keep `torch.func` from importing torch's compiler at the first gradient, which takes over a second.

    `torch.func` only asks the compiler to stay inactive, which it is before its import. Any other use of
    `torch._dynamo` imports it as usual.
    """
    compiler = _LazyModule("torch._dynamo")
    compiler.compiled_autograd = _LazyModule("torch._dynamo.compiled_autograd")
    compiler.compiled_autograd._disable = nullcontext
    vars(torch).setdefault("_dynamo", compiler)


class _LazyModule:
    """A module that is imported at the first access to an attribute that is not set here."""

    compiled_autograd: "_LazyModule"
    _disable: Any

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def quiet_vmap() -> None:
    """Turn off the warnings of `vmap` about operations that it runs row by row: the fastest way is measured anyway."""
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]


def trace(function: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> "GraphModule":
    """The tensor operations that a function does on these tensors, without those that only a tape needs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        module = make_fx(function)(*tensors)
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def onednn_linear() -> Any:
    """oneDNN's product as an operation of torch: (x, w, bias, "none" or "relu", [-1], "") gives x wᵀ + bias, of tensors
    with any strides. None where torch was built without oneDNN, or runs with it turned off."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):  # type: ignore[no-untyped-call]
        return None
    try:
        return torch.ops.mkldnn._linear_pointwise.default
    except AttributeError:
        return None


@cache
def _product_for_compiler() -> Any:
    """oneDNN's product under a name of our own: the compiler's rules for torch's name take weights for constants."""
    torch.library.define("gossamer::product", "(Tensor x, Tensor w, Tensor? bias, str activation) -> Tensor")
    like = torch.library.register_fake("gossamer::product")
    like(lambda x, w, bias, activation: x.new_empty(x.shape[0], w.shape[0]))
    return torch.ops.gossamer.product.default


def _for_compiler(graph: "GraphModule") -> "GraphModule":
    """A copy of a graph, with oneDNN's products under the name that `_call_onednn` compiles."""
    graph = copy.deepcopy(graph)
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is onednn_linear():
            node.target, node.args = _product_for_compiler(), node.args[:4]
    graph.recompile()
    return graph


def _call_onednn(x: Any, w: Any, bias: Any, activation: str) -> Any:
    """oneDNN's product in compiled code: a call, on tensors as they lie. The compiler's own rule copies them first."""
    from torch._inductor.ir import FixedLayout, TensorBox
    from torch._inductor.mkldnn_ir import LinearUnary, _create_output_node

    given = [LinearUnary.realize_input(value) for value in (x, w, bias) if value is not None]
    size = [given[0].get_size()[0], given[1].get_size()[0]]
    layout = FixedLayout(torch.device("cpu"), given[0].get_dtype(), size)
    rest = [*([None] if bias is None else []), activation, [-1], ""]
    return TensorBox.create(_create_output_node(LinearUnary(layout=layout, inputs=given, constant_args=rest)))  # type: ignore[no-untyped-call]


def _call_own_product(left: Any, right: Any, bias: Any, relu: bool, flat: bool) -> Any:
    """Gossamer's own product in compiled code: a call of a C function that is part of the same library.

    A flat one that is a part of a concatenation, as the gradient of a weight is, is written to its place there.
    """
    from torch._inductor.ir import ExternKernel, FixedLayout, FlexibleLayout, TensorBox
    from torch._inductor.lowering import fallback_handler
    from torch._inductor.virtualized import V

    if not V.graph.aot_mode:
        return fallback_handler(own_product(), add_to_fallback_set=False)(left, right, bias, relu, flat)  # type: ignore[no-untyped-call]
    given = [ExternKernel.realize_input(each) for each in (left, right)]
    if bias is not None:
        given.append(ExternKernel.require_contiguous(ExternKernel.realize_input(bias)))
    rows, columns = given[0].get_size()[0], given[1].get_size()[1]
    size, kind = ([rows * columns], FlexibleLayout) if flat else ([rows, columns], FixedLayout)
    layout = kind(torch.device("cpu"), given[0].get_dtype(), size)
    return TensorBox.create(_own_kernel()(layout=layout, inputs=given, constant_args=[relu]))


@cache
def _own_kernel() -> Any:
    """A node of the compiler's that writes a call of `product.h`."""
    from torch._inductor.ir import ExternKernelOut

    class OwnKernel(ExternKernelOut):
        def codegen(self, wrapper: Any) -> None:
            given: Any = self.inputs
            left, right, *bias = given
            real, function = REAL[left.get_dtype()], FUNCTIONS[left.get_dtype()]
            if not hasattr(wrapper, "has_own_product"):
                wrapper.has_own_product = True
                declared = "".join(
                    f'extern "C" void {FUNCTIONS[each]}({PARAMETERS.format(name)});\n' for each, name in REAL.items()
                )
                wrapper.define_kernel("own_product", HEADER.read_text("utf-8"), gpu=False, cpp_definition=declared)

            def place(node: Any) -> str:
                return f"({real}*)({node.get_name()}.data_ptr()) + {node.get_layout().offset}"

            sizes = [*left.get_size(), right.get_size()[1]]
            arguments = [
                *sizes, place(left), *left.get_stride(), place(right), *right.get_stride(),
                place(bias[0]) if bias else "nullptr", "true" if self.constant_args[0] else "false",
                f"({real}*)({self.get_name()}.data_ptr())",
            ]  # fmt: skip
            wrapper.writeline(f"{function}({', '.join(map(str, arguments))});")

    return OwnKernel


def compile_graph(graph: "GraphModule", tensors: Sequence[Tensor]) -> Callable[..., Any]:
    """The operations of a graph, fused, for this process. Takes seconds, and a C++ compiler on a CPU."""
    with _compiler_settings(tensors[0].device):
        compiled: Callable[..., Any] = torch._inductor.compile(_for_compiler(graph), list(tensors))
        compiled(*tensors)
    return compiled


def compile_library(graph: "GraphModule", tensors: Sequence[Tensor]) -> Path:
    """The same as a shared library for CPUs, which `load_library` opens."""
    graph = _for_compiler(graph)
    for node in graph.graph.nodes:
        node.meta.clear()  # the compiler derives it itself, and refuses values that are there already
    with _compiler_settings(torch.device("cpu")):
        return Path(torch._inductor.aot_compile(graph, tuple(tensors)))  # type: ignore[arg-type]


def load_library(path: str) -> Callable[[list[Tensor]], list[Tensor]]:
    """The function in a library. A damaged file ends the process."""
    run: Callable[[list[Tensor]], list[Tensor]] = torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1).run
    return run


@contextmanager
def _compiler_settings(device: torch.device) -> Iterator[None]:
    """Compile in this process, since a pool of compilers would outlive the run; on a CPU, keep torch's own kernels."""
    from torch._inductor import config
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import fallback_handler, lowerings

    before = [(table, dict(table)) for table in (decompositions, lowerings)]
    try:
        for name in OWN_KERNELS if device.type == "cpu" else ():
            operation = getattr(torch.ops.aten, name).default
            decompositions.pop(operation, None)
            lowerings[operation] = fallback_handler(operation, add_to_fallback_set=False)  # type: ignore[no-untyped-call]
        lowerings[_product_for_compiler()] = _call_onednn
        lowerings[own_product()] = _call_own_product
        # A multiplication and an addition may be one instruction, as they are in all libraries.
        settings = {"compile_threads": 1, "memory_planning": True, "cpp.enable_floating_point_contract_flag": "fast"}
        with config.patch(settings):
            yield
    finally:
        for table, entries in before:
            table.clear()
            table.update(entries)
