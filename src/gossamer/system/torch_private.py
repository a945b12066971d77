"""Every use of torch's private functions; nothing else in Gossamer calls one. A new version of torch may change them.

torch's tracer takes about 90 MB in the process that imports it, and its compiler 150 MB, as long as that process lives:
both are imported by the functions that need them.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

if TYPE_CHECKING:
    from torch.fx import GraphModule

__all__ = [
    "compile_graph",
    "compile_library",
    "defer_compiler_import",
    "load_library",
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


def compile_graph(graph: "GraphModule", tensors: Sequence[Tensor]) -> Callable[..., Any]:
    """The operations of a graph, fused, for this process. Takes seconds, and a C++ compiler on a CPU."""
    with _compiler_settings(tensors[0].device):
        compiled: Callable[..., Any] = torch._inductor.compile(graph, list(tensors))
        compiled(*tensors)
    return compiled


def compile_library(graph: "GraphModule", tensors: Sequence[Tensor]) -> Path:
    """The same as a shared library for CPUs, which `load_library` opens."""
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
        with config.patch(compile_threads=1, memory_planning=True):
            yield
    finally:
        for table, entries in before:
            table.clear()
            table.update(entries)
