"""torch's private functions do what Gossamer uses them for; a new version of torch may change them."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import gossamer
from gossamer.system.torch_private import (
    compile_graph,
    compile_library,
    load_library,
    quiet_vmap,
    trace,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)
from gossamer.workers import run_in_fork

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
PRIVATE = re.compile(r"\btorch(\.\w+)*\._(?!_)\w+|\bfrom torch(\.\w+)* import .*\b_(?!_)\w+|torch\.fx\.experimental")


def pooled(images: Tensor, weight: Tensor) -> list[Tensor]:
    """A gradient through a convolution and pooling, with a `detach` that has no use without a tape."""
    loss = lambda w: functional.max_pool2d(functional.conv2d(images, w), 2).tanh().sum()  # noqa: E731
    gradient, value = torch.func.grad_and_value(loss)(weight)
    return [gradient, value.detach()]


@pytest.fixture
def tensors() -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, 1, 8, 8, generator=random), torch.randn(3, 1, 3, 3, generator=random)]


def test_no_other_file_uses_a_private_name_of_torch() -> None:
    package = Path(gossamer.__file__).parent
    found = {
        f"{path.relative_to(package)}: {match.group()}"
        for path in package.rglob("*.py")
        if path.name != "torch_private.py"
        for line in path.read_text().splitlines()
        if (match := PRIVATE.search(line))
    }
    # The name of a package whose functions have no known code: compared, and not called.
    assert found == {"engines/steps/fingerprint.py: torch._C"}


def test_a_trace_repeats_the_operations_on_other_values(tensors: list[Tensor]) -> None:
    graph = trace(pooled, tensors)
    assert "detach" not in graph.code
    others = [2 * tensor + 1 for tensor in tensors]
    for found, expected in zip(graph(*others), pooled(*others), strict=True):
        torch.testing.assert_close(found, expected)


@needs_compiler
def test_a_compiled_graph_gives_the_same_and_keeps_the_kernels_of_torch(tensors: list[Tensor]) -> None:
    def compiled() -> str:
        from torch._inductor.lowering import lowerings

        before = dict(lowerings)
        fused = compile_graph(trace(pooled, tensors), tensors)
        assert dict(lowerings) == before  # the settings hold while a graph is compiled
        for found, expected in zip(fused(*tensors), pooled(*tensors), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        return "same"

    assert run_in_fork(compiled) == "same"


@needs_compiler
def test_a_compiled_library_needs_no_compiler_in_the_process_that_loads_it(tensors: list[Tensor]) -> None:
    path = run_in_fork(lambda: str(compile_library(trace(pooled, tensors), tensors)))
    for found, expected in zip(load_library(path)(tensors), pooled(*tensors), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_trees_keep_the_order_of_dictionaries_and_take_none_for_a_leaf() -> None:
    tree = ({"b": 1, "a": 2}, None, (3,))
    leaves, structure = tree_flatten(tree)
    assert leaves == tree_leaves(tree) == [1, 2, None, 3]
    assert tree_unflatten([5, 6, 7, 8], structure) == ({"b": 5, "a": 6}, 7, (8,))
    assert tree_map(lambda x, y: x + y, {"a": 1}, {"a": 2}) == {"a": 3}


def test_vmap_says_nothing_of_operations_that_it_runs_row_by_row() -> None:
    quiet_vmap()
    layer = torch.nn.LSTM(2, 3)
    weights = {name: torch.stack([value.detach()] * 2) for name, value in layer.named_parameters()}

    def total(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, parameters, (torch.ones(4, 1, 2),))[0].sum()

    assert torch.func.vmap(torch.func.grad(total))(weights)["bias_hh_l0"].shape == (2, 12)  # a warning is an error here
