"""Which library multiplies matrices in a traced step, and in an evaluation: MKL, or oneDNN where that is faster.

`torch.mm` calls MKL, which runs an AVX2 kernel on AMD processors with AVX-512: there oneDNN, which is a part of torch,
is twice as fast for large matrices, and slower for tiny ones. On other processors MKL may be faster throughout. So
each shape is measured once on a machine, in both libraries, and the finding is kept.
"""

import json
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gossamer.system.cache import cache_file, write_atomically
from gossamer.system.machine import is_busy
from gossamer.system.threads import on_threads
from gossamer.system.torch_private import onednn_linear

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

#: "auto": whichever is faster for a shape.
Products = Literal["auto", "mkl", "onednn"]

#: oneDNN is taken where it is faster by this factor.
TOLERANCE = 1.05
#: Seconds that a shape is measured in each library, in so many turns: the fastest counts.
MEASUREMENT, TURNS = 0.004, 4
#: Products with fewer multiplications than this are mostly the overhead of a call, which MKL has less of.
LEAST_WORK = 10_000


class Product(NamedTuple):
    """A matrix product as a step needs it: [rows, inner] times [inner, columns], as both lie in memory."""

    rows: int
    inner: int
    columns: int
    left: tuple[int, ...]
    right: tuple[int, ...]
    #: Whether a vector is added to each row, and whether negative numbers are then set to zero.
    bias: bool = False
    relu: bool = False

    def __str__(self) -> str:
        return f"{self.rows}x{self.inner}x{self.columns}"


class Seconds(NamedTuple):
    """The time of a product in each library."""

    mkl: float
    onednn: float
    #: Whether other processes used the machine meanwhile: it is measured again once it is quiet.
    busy: bool


def no_onednn(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why oneDNN cannot multiply matrices of this type here; None if it can.

    >>> no_onednn(torch.float64, torch.device("cpu"))
    'oneDNN multiplies float32 only, and the model is in float64'
    """
    if device.type != "cpu":
        return "oneDNN multiplies on a CPU only"
    if dtype != torch.float32:
        return f"oneDNN multiplies float32 only, and the model is in {str(dtype).removeprefix('torch.')}"
    return None if onednn_linear() is not None else "torch was built without oneDNN"


def replace_products(graph: "GraphModule", products: Products) -> bool:
    """Let oneDNN do those products of a graph that it is chosen for; whether the choice is for good.

    It is not where the machine was busy when a product was measured.

    Products of vectorised clients (`bmm`) stay: torch has no such product by oneDNN in float32.
    """
    linear = onednn_linear()
    if products == "mkl" or linear is None:
        return True
    found = [(node, product) for node in graph.graph.nodes if (product := _product_of(node)) is not None]
    shapes = {product for _, product in found}
    chosen = _chosen(products, shapes)
    transposed = torch.ops.aten.t.default
    for node, product in found:
        if product not in chosen:
            continue
        *bias, left, right = node.args
        last = next(iter(node.users)) if product.relu else node
        with graph.graph.inserting_before(node):
            rows = graph.graph.call_function(transposed, (right,))
            given = (left, rows, bias[0] if bias else None, "relu" if product.relu else "none", [-1], "")
            new = graph.graph.call_function(linear, given)
        new.meta, rows.meta = dict(last.meta), {}
        last.replace_all_uses_with(new)
        for old in dict.fromkeys((last, node)):
            graph.graph.erase_node(old)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return products != "auto" or not any(seconds_of(product, again=False).busy for product in shapes)


def _product_of(node: "Node") -> Product | None:
    """The product that a node of a graph computes, if it is one that oneDNN could do."""
    aten = torch.ops.aten
    if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return None
    given: list[Any] = [argument.meta.get("val") for argument in node.args]  # type: ignore[union-attr]
    if not all(isinstance(value, Tensor) and _is_plain(value) for value in given):
        return None
    *bias, left, right = given
    if bias and bias[0].shape != right.shape[1:]:
        return None
    users = list(node.users)
    relu = bool(bias) and len(users) == 1 and users[0].target is aten.relu.default
    rows, inner = left.shape
    product = Product(rows, inner, right.shape[1], left.stride(), right.stride(), bool(bias), relu)
    return product if product.rows * product.inner * product.columns >= LEAST_WORK else None


def _is_plain(value: Tensor) -> bool:
    """Whether oneDNN takes a tensor."""
    return value.dtype == torch.float32 and value.device.type == "cpu" and value.layout == torch.strided


def _chosen(products: Products, found: set[Product]) -> set[Product]:
    """The products that oneDNN does: all, or those that it does faster."""
    if products == "onednn":
        return found
    return {product for product in found if (seconds := seconds_of(product)).onednn * TOLERANCE < seconds.mkl}


def seconds_of(product: Product, again: bool = True) -> Seconds:
    """The time of a product in both libraries: as kept, or measured now.

    What was measured on a busy machine is measured `again` as soon as it is quiet.
    """
    with on_threads(1):
        kept_in = cache_file("products", tuple(product)).with_suffix(".json")
        with suppress(OSError, ValueError, TypeError):
            kept = Seconds(*json.loads(kept_in.read_text(encoding="utf-8")))
            if not (kept.busy and again) or is_busy():
                return kept
        found = _measure(product)
        with suppress(OSError):  # a folder that cannot be written to: the next run measures again
            write_atomically(kept_in, json.dumps(found).encode())
        return found


def _measure(product: Product) -> Seconds:
    """Time a product in both libraries, in turns."""
    left, right = (
        torch.ones(1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))).as_strided(shape, strides)
        for shape, strides in (
            ((product.rows, product.inner), product.left),
            ((product.inner, product.columns), product.right),
        )
    )
    bias = torch.ones(product.columns) if product.bias else None
    linear, rows, activation = onednn_linear(), right.t(), "relu" if product.relu else "none"
    assert linear is not None

    def mkl() -> Tensor:
        found = torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)
        return found.relu_() if product.relu else found

    def onednn() -> Tensor:
        done: Tensor = linear(left, rows, bias, activation, [-1], "")
        return done

    began, used = time.perf_counter(), time.process_time()
    with torch.no_grad():
        fastest_mkl, fastest_onednn = _fastest_of([mkl, onednn])
    # Who had the processor less than nine tenths of the time shared it with others.
    busy = time.process_time() - used < 0.9 * (time.perf_counter() - began)
    return Seconds(fastest_mkl, fastest_onednn, busy)


def _fastest_of(functions: Iterable[Callable[[], Any]]) -> list[float]:
    """Seconds of each function in its fastest turn."""
    several = list(functions)
    fastest = [math.inf] * len(several)
    for function in several:
        function()
    for _ in range(TURNS):
        for place, function in enumerate(several):
            times, started, passed = 0, time.perf_counter(), 0.0
            while passed < MEASUREMENT / TURNS:
                function()
                times, passed = times + 1, time.perf_counter() - started
            fastest[place] = min(fastest[place], passed / times)
    return fastest


class FastProducts(TorchFunctionMode):
    """Linear layers by the chosen library, where no gradient is taken: for models that are called as written."""

    def __init__(self, products: Products) -> None:
        super().__init__()
        self._products = products
        self._linear = onednn_linear()
        self._known: dict[Product, bool] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.linear and self._linear is not None and not kwargs and 2 <= len(args) <= 3:
            inputs, weight, bias = (*args, None)[:3]
            if self._takes(inputs, weight, bias):
                return self._linear(inputs, weight, bias, "none", [-1], "")
        return function(*args, **(kwargs or {}))

    def _takes(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        given = [value for value in (inputs, weight, bias) if value is not None]
        if not all(map(_is_plain, given)) or inputs.dim() != 2 or torch.is_grad_enabled() or self._products == "mkl":
            return False
        columns, inner = weight.shape
        right = weight.stride()[::-1]
        product = Product(len(inputs), inner, columns, inputs.stride(), right, bias is not None)
        if product not in self._known:
            large = product.rows * inner * columns >= LEAST_WORK
            self._known[product] = large and bool(_chosen(self._products, {product}))
        return self._known[product]
