"""A local step recorded as the plain tensor operations it is made of, to be replayed and, if asked, compiled.

A recording holds for tensors of the same shapes. Whatever a step takes from Python instead of from its tensors is fixed
in it, which is why the learning rate comes in as a tensor, and why a step whose recordings of two rounds differ is not
replayed at all. A branch on the value of a tensor cannot be recorded: that is an error here, and the caller goes on
without.
"""

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from gossamer.data import Batch


class Recorded:
    """One step, replayed from a recording. Called like the step itself."""

    def __init__(self, step: Any, example: tuple[Any, ...]) -> None:
        state, local, _, about, _ = example
        names = tuple(state), tuple(local), tuple(about)
        self._returned: tuple[str, ...] = ()

        def flat(*tensors: Tensor) -> list[Tensor]:
            rest = list(tensors)
            parts = [{name: rest.pop(0) for name in some} for some in names[:2]]
            batch = Batch(*(rest.pop(0) for _ in Batch._fields))
            about = {name: rest.pop(0) for name in names[2]}
            after, loss = step(*parts, batch, about, rest.pop(0))
            self._returned = tuple(after)
            return [*after.values(), loss]

        # Copies, because the recorder tells inputs apart by being different tensors: a first step, whose y is still x,
        # would be recorded as if it were so in every step.
        self._example = [value.clone() for value in _flatten(*example)]
        with torch.no_grad():
            self._graph: fx.GraphModule = make_fx(flat)(*self._example)
        _simplify(self._graph)
        self._replay: Any = self._graph

    def __call__(
        self, state: dict[str, Tensor], local: dict[str, Tensor], batch: Batch, about: dict[str, Tensor], lr: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        with torch.no_grad():
            *after, loss = self._replay(*_flatten(state, local, batch, about, lr))
        return dict(zip(self._returned, after, strict=True)), loss

    def same_as(self, other: "Recorded") -> bool:
        """Whether both recorded the same operations on the same constants."""
        mine, theirs = _constants(self._graph), _constants(other._graph)
        return (
            self._graph.code == other._graph.code
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name], theirs[name]) for name in mine)
        )

    def compile(self) -> None:
        """Fuse the operations. Takes seconds, and a C++ compiler on a CPU."""
        import torch._inductor
        from torch._inductor import config

        # In this process: a pool of compilers would outlive the run, and take the cores of other workers.
        with config.patch(compile_threads=1):
            compiled = torch._inductor.compile(self._graph, list(self._example))
            compiled(*self._example)
        self._replay = compiled


def _flatten(state: Any, local: Any, batch: Batch, about: Any, lr: Tensor) -> list[Tensor]:
    return [*state.values(), *local.values(), *batch, *about.values(), lr]


def _simplify(graph: fx.GraphModule) -> None:
    """Leave out what has no use without a tape."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _constants(graph: fx.GraphModule) -> dict[str, Tensor]:
    found = {node.target: getattr(graph, node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}
