"""A local step recorded as the plain tensor operations it is made of, to be replayed and, if asked, compiled.

A recording holds for tensors of the same shapes. Whatever a step takes from Python instead of from its tensors is fixed
in it, which is why the learning rate comes in as a tensor, and why a step that asks for the number of its round is not
recorded at all. A branch on the value of a tensor cannot be recorded: that is an error here, and the caller goes on
without.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from gossamer.data import Batch
from gossamer.engines.steps.compiled import StepInputs, apiece, digest, flat, kept_steps, put
from gossamer.engines.steps.replayed import to_bytes
from gossamer.system.machine import processor_and_features

aten = torch.ops.aten
#: What torch's own functions do faster on a CPU than code that its compiler writes for it.
LEFT_TO_TORCH = (aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default)


class TracedStep:
    """One step, replayed from a recording. Called like the step itself."""

    def __init__(self, step: Any, given: StepInputs) -> None:
        state, local, _, about, _ = given
        names = tuple(state), tuple(local), tuple(about)
        #: The names of what a step gives, in the order in which it gives them.
        self.returns: tuple[str, ...] = ()

        def listed(*tensors: Tensor) -> list[Tensor]:
            rest = list(tensors)
            parts = [{name: rest.pop(0) for name in some} for some in names[:2]]
            batch = Batch(*(rest.pop(0) for _ in Batch._fields))
            about = {name: rest.pop(0) for name in names[2]}
            after, loss = step(*parts, batch, about, rest.pop(0))
            self.returns = tuple(after)
            return [*after.values(), loss]

        with torch.no_grad():
            self._graph: fx.GraphModule = make_fx(listed)(*apiece(given))
        _simplify(self._graph)
        self._replay: Any = self._graph

    @property
    def code(self) -> str:
        """The operations, as Python."""
        return str(self._graph.code)

    @property
    def constants(self) -> dict[str, Tensor]:
        """The tensors that they use besides those of the step."""
        found = {node.target: getattr(self._graph, node.target) for node in self._graph.graph.find_nodes(op="get_attr")}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def __call__(self, *given: Any) -> tuple[dict[str, Tensor], Tensor]:
        with torch.no_grad():
            *after, loss = self._replay(*flat(given))
        return dict(zip(self.returns, after, strict=True)), loss

    def same_as(self, other: "TracedStep") -> bool:
        """Whether both recorded the same operations on the same constants."""
        mine, theirs = self.constants, other.constants
        return (
            self.code == other.code
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name], theirs[name]) for name in mine)
        )

    def compile(self, given: StepInputs) -> None:
        """Fuse the operations, for tensors like these. Takes seconds, and a C++ compiler on a CPU."""
        on_cpu = given[-1].device.type == "cpu"
        with _one_compiler(), _left_to_torch(LEFT_TO_TORCH if on_cpu else ()):
            compiled = torch._inductor.compile(self._graph, [*apiece(given)])
            compiled(*apiece(given))
        self._replay = compiled

    def library(self, given: StepInputs) -> Path:
        """The same as a library, for CPUs; one that was built before on this machine is taken again."""
        tensors = apiece(given)
        about = [
            torch.__version__, processor_and_features(), torch.get_num_threads(), self.code, LEFT_TO_TORCH,
            [(name, value.shape, value.dtype, to_bytes(value)) for name, value in self.constants.items()],
            [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors],
        ]  # fmt: skip
        name = hashlib.blake2b(repr(about).encode(), digest_size=16).hexdigest()
        folder = kept_steps()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / f"{name}.lock"):  # other workers need the same one at the same time
                for path in folder.glob(f"{name}-*.so"):
                    if path.stem == f"{name}-{digest(path)}":
                        return path
                    path.unlink()  # damaged: to load it would end this process
                built = self._build(tensors)
                path = folder / f"{name}-{digest(built)}.so"
                put(path, built.read_bytes())
                return path
        except OSError:  # a folder that cannot be written to, say
            return self._build(tensors)

    def _build(self, tensors: list[Tensor]) -> Path:
        for node in self._graph.graph.nodes:
            node.meta.clear()  # the compiler finds out itself, and does not like to find it twice
        with _one_compiler(), _left_to_torch(LEFT_TO_TORCH):
            return Path(torch._inductor.aot_compile(self._graph, tuple(tensors)))  # type: ignore[arg-type]


@contextmanager
def _one_compiler() -> Iterator[None]:
    """In this process: a pool of compilers would outlive the run, and take the cores of other workers."""
    from torch._inductor import config

    with config.patch(compile_threads=1, memory_planning=True):
        yield


@contextmanager
def _left_to_torch(operations: Sequence[Any]) -> Iterator[None]:
    """Have the compiler call some operations as they are, and not take them apart."""
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import fallback_handler, lowerings

    tables = [(table, dict(table)) for table in (decompositions, lowerings)]
    try:
        for each in operations:
            decompositions.pop(each, None)
            lowerings[each] = fallback_handler(each, add_to_fallback_set=False)  # type: ignore[no-untyped-call]
        yield
    finally:
        for table, before in tables:
            table.clear()
            table.update(before)


def _simplify(graph: fx.GraphModule) -> None:
    """Leave out what has no use without a tape."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
