"""Which library multiplies matrices in a traced step, and in an evaluation: MKL, oneDNN or Gossamer's own kernel.

`torch.mm` calls MKL, which runs an AVX2 kernel on AMD processors with AVX-512: there oneDNN, which is a part of torch,
is twice as fast for large matrices, and slower for tiny ones. On other processors MKL may be faster throughout. Our own
kernel is compiled for the processor at hand, where there is a compiler. So each shape is measured once on a machine, in
all of them, and the finding is kept.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gossamer.system.cache import cache_file, write_atomically
from gossamer.system.machine import is_busy
from gossamer.system.own_product import multiply, no_own_product, own_product
from gossamer.system.threads import on_threads
from gossamer.system.torch_private import onednn_linear

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

#: Who can multiply: "own" is Gossamer's kernel.
Library = Literal["mkl", "onednn", "own"]
#: "auto": whichever is the fastest for a shape.
Products = Literal["auto", "mkl", "onednn", "own"]
LIBRARIES: tuple[Library, ...] = ("mkl", "onednn", "own")

#: Another library than MKL is taken where it is faster by this factor.
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
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{self.rows}x{self.inner}x{self.columns}"


class Seconds(NamedTuple):
    """The time of a product in each library that does it."""

    of: dict[Library, float]
    #: Whether other processes used the machine meanwhile: it is measured again once it is quiet.
    busy: bool

    @property
    def fastest(self) -> Library:
        """The library to take."""
        best = min(self.of, key=lambda name: self.of[name])
        return best if self.of[best] * TOLERANCE < self.of["mkl"] else "mkl"


CPU = torch.device("cpu")


def why_not(library: Products, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why a library cannot multiply matrices of this type here; None if it can.

    >>> why_not("onednn", torch.float64, CPU)
    'oneDNN multiplies float32 only, and the model is in float64'
    """
    if library == "auto":
        reason = no_onednn(dtype, device)  # asked first, since the answer of the other one may be compiled
        return reason and no_own_product(dtype, device) and reason
    return {"mkl": lambda *_: None, "onednn": no_onednn, "own": no_own_product}[library](dtype, device)


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
    """Let other libraries than MKL do the products that they are chosen for; whether the choice is for good.

    It is not where the machine was busy when a product was measured.

    Products of vectorised clients (`bmm`) stay: torch has no such product by oneDNN in float32.
    """
    found = [(node, product) for node in graph.graph.nodes if (product := _product_of(node)) is not None]
    by = {product: _library_for(products, product) for product in {product for _, product in found}}
    for node, product in found:
        if by[product] == "mkl":
            continue
        *bias, left, right = node.args
        last = next(iter(node.users)) if product.relu else node
        with graph.graph.inserting_before(node):
            new = _call(graph, by[product], left, right, bias[0] if bias else None, product.relu)
        new.meta = dict(last.meta)
        last.replace_all_uses_with(new)
        for old in dict.fromkeys((last, node)):
            graph.graph.erase_node(old)
    for node in graph.graph.find_nodes(op="call_function", target=own_product()):
        _flatten(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return products != "auto" or not any(seconds_of(product, again=False).busy for product in by)


def _call(graph: "GraphModule", by: Library, left: Any, right: Any, bias: Any, relu: bool) -> "Node":
    """The node of a product by another library than MKL."""
    if by == "own":
        return graph.graph.call_function(own_product(), (left, right, bias, relu, False))
    rows = graph.graph.call_function(torch.ops.aten.t.default, (right,))
    return graph.graph.call_function(onednn_linear(), (left, rows, bias, "relu" if relu else "none", [-1], ""))


def _flatten(product: "Node") -> None:
    """Let our kernel give a vector where only that is asked for: a weight's part of the gradient, which is transposed
    twice on its way. The compiler then lets it write to where the whole gradient is."""
    last, turned = product, False
    while len(last.users) == 1:
        (last,) = last.users
        if last.target is torch.ops.aten.t.default:
            turned = not turned
            continue
        if last.target is torch.ops.aten.view.default and len(last.args[1]) == 1 and not turned:  # type: ignore[arg-type]
            product.args = (*product.args[:-1], True)
            product.meta = dict(last.meta)
            last.replace_all_uses_with(product)
        return


def _product_of(node: "Node") -> Product | None:
    """The product that a node of a graph computes, if it is one that another library than MKL could do."""
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
    product = Product(rows, inner, right.shape[1], left.stride(), right.stride(), bool(bias), relu, left.dtype)
    return product if product.rows * product.inner * product.columns >= LEAST_WORK else None


def _is_plain(value: Tensor) -> bool:
    """Whether another library than MKL may take a tensor."""
    known = value.dtype in (torch.float32, torch.float64)
    return known and value.device.type == "cpu" and value.layout == torch.strided


def _library_for(products: Products, product: Product) -> Library:
    """The library that does a product: the one that is asked for where it can, or the fastest."""
    if products == "auto":
        return seconds_of(product).fastest
    return "mkl" if why_not(products, product.dtype, CPU) else products


def seconds_of(product: Product, libraries: Sequence[Library] = LIBRARIES, again: bool = True) -> Seconds:
    """The time of a product in these libraries: as kept, or measured now.

    What was measured on a busy machine is measured `again` as soon as it is quiet.
    """
    with on_threads(1):
        able = [library for library in libraries if not why_not(library, product.dtype, CPU)]
        kept_in = cache_file("products", tuple(product), able).with_suffix(".json")
        with suppress(OSError, ValueError, TypeError):
            kept = Seconds(*json.loads(kept_in.read_text(encoding="utf-8")))
            if not (kept.busy and again) or is_busy():
                return kept
        found = _measure(product, able)
        with suppress(OSError):  # a folder that cannot be written to: the next run measures again
            write_atomically(kept_in, json.dumps(found).encode())
        return found


def _measure(product: Product, libraries: Sequence[Library]) -> Seconds:
    """Time a product in these libraries, in turns."""
    left, right = (
        torch.ones(
            1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)), dtype=product.dtype
        ).as_strided(shape, strides)
        for shape, strides in (
            ((product.rows, product.inner), product.left),
            ((product.inner, product.columns), product.right),
        )
    )
    bias = torch.ones(product.columns, dtype=product.dtype) if product.bias else None
    linear, rows, activation = onednn_linear(), right.t(), "relu" if product.relu else "none"

    def mkl() -> Tensor:
        found = torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)
        return found.relu_() if product.relu else found

    calls: dict[Library, Callable[[], Any]] = {
        "mkl": mkl,
        "onednn": lambda: linear(left, rows, bias, activation, [-1], ""),
        "own": lambda: multiply(left, right, bias, product.relu),
    }
    began, used = time.perf_counter(), time.process_time()
    with torch.no_grad():
        fastest = _fastest_of([calls[library] for library in libraries])
    # Who had the processor less than nine tenths of the time shared it with others.
    busy = time.process_time() - used < 0.9 * (time.perf_counter() - began)
    return Seconds(dict(zip(libraries, fastest, strict=True)), busy)


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
    """Linear layers by the faster of torch's two libraries, where no gradient is taken: for models that are called as
    written. Our own kernel gains nothing on batches that large."""

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
        product = Product(len(inputs), inner, columns, inputs.stride(), right, bias is not None, dtype=inputs.dtype)
        if product not in self._known:
            self._known[product] = product.rows * inner * columns >= LEAST_WORK and self._faster(product)
        return self._known[product]

    def _faster(self, product: Product) -> bool:
        if self._products == "onednn":
            return not no_onednn(product.dtype, CPU)
        return seconds_of(product, ("mkl", "onednn")).fastest == "onednn"
