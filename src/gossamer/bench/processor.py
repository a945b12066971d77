"""The processor and its limit: the fastest that it multiplies matrices, and the products that a step needs."""

import copy
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from gossamer.engines import no_onednn
from gossamer.models import call_module
from gossamer.system.machine import processor, usable_cores
from gossamer.system.own_product import multiply, no_own_product
from gossamer.system.threads import on_threads
from gossamer.system.torch_private import TorchDispatchMode, onednn_linear
from gossamer.training import Training

#: Side of the matrices whose product is the limit: large enough for the highest rate, small enough for a short test.
SIDE = 1024
#: The fewest and the most products timed at once: a single fast one is luck, and tiny ones take less than a clock sees.
PRODUCTS, MOST_PRODUCTS = 5, 200
#: The name of a product and its library, its operations, and the call.
Candidate = tuple[str, float, Callable[[], Any]]


def machine() -> dict[str, str]:
    """The machine that numbers were measured on."""
    blas = next((line for line in torch.__config__.parallel_info().splitlines() if "Math Kernel Library" in line), "")
    version = blas.partition("Version ")[2].split("-")[0].split(" ")[0]
    return {
        "processor": processor(),
        "cores": str(usable_cores()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "blas": f"MKL {version}" if version else "not MKL",
        "python": platform.python_version(),
        "system": f"{platform.system()} {os.uname().machine if hasattr(os, 'uname') else platform.machine()}",
    }


class Limit(NamedTuple):
    """The fastest that one core multiplies: floating-point operations per second, and what reached that."""

    rate: float
    #: The library and the shape.
    by: str


class Convolution(NamedTuple):
    """The arguments of a convolution of a step."""

    inputs: tuple[int, ...]
    weight: tuple[int, ...]
    #: Stride, padding and the others, as torch's operation takes them.
    rest: tuple[Any, ...]


#: Rows, inner dimension and columns of a matrix product, or a convolution.
Shape = tuple[int, int, int] | Convolution


def fastest_products(
    seconds: float = 0.5,
    dtype: torch.dtype = torch.float32,
    device: torch.device = torch.device("cpu"),
    shapes: Iterable[Shape] = (),
) -> Limit:
    """The most operations per second that one core keeps up: in a large square product or in those of these shapes,
    by any library in reach. Half the time is for all of them, the other half for the fastest three."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter  # a library may have threads of its own
    work = list(_candidates([(SIDE, SIDE, SIDE), *shapes], dtype, device))
    best: dict[str, float] = dict.fromkeys((by for by, *_ in work), 0.0)

    def measure(some: Sequence[Candidate], each: float) -> None:
        for by, flops, run in some:
            times = min(MOST_PRODUCTS, max(PRODUCTS, int(SIDE**3 / flops)))
            ends = time.perf_counter() + each
            while best[by] == 0.0 or time.perf_counter() < ends:
                started = clock()
                for _ in range(times):
                    run()
                finish_work(device)
                best[by] = max(best[by], flops * times / max(clock() - started, 1e-9))

    with on_threads(1), torch.no_grad():
        for _, _, run in work:
            run()
        finish_work(device)
        measure(work, seconds / 2 / len(work))
        front = sorted(work, key=lambda one: -best[one[0]])[:3]
        measure(front, seconds / 2 / len(front))
    by = max(best, key=lambda name: best[name])
    return Limit(best[by], by)


def _candidates(shapes: Iterable[Shape], dtype: torch.dtype, device: torch.device) -> Iterator[Candidate]:
    """Every shape in every library: what it is called, its operations, and the call."""
    linear = None if no_onednn(dtype, device) else onednn_linear()
    for shape in dict.fromkeys(shapes):
        if isinstance(shape, Convolution):
            yield from _convolutions(shape, dtype, device)
            continue
        rows, inner, columns = shape
        flops, size = 2.0 * rows * inner * columns, f"{rows} × {inner} × {columns}"
        a, b = (
            torch.ones(rows, inner, dtype=dtype, device=device),
            torch.ones(inner, columns, dtype=dtype, device=device),
        )
        product, turned = a @ b, b.t()
        if not no_own_product(dtype, device):
            yield f"Gossamer's kernel, {size}", flops, partial(multiply, a, b, None, False)
        yield f"torch.mm, {size}", flops, partial(torch.mm, a, b, out=product)
        if linear is not None:
            yield f"oneDNN, {size}", flops, partial(linear, a, turned, None, "none", [-1], "")
        if device.type == "cpu" and dtype in (torch.float32, torch.float64):
            yield f"numpy, {size}", flops, partial(np.matmul, a.numpy(), b.numpy(), out=product.numpy())


def _convolutions(shape: Convolution, dtype: torch.dtype, device: torch.device) -> Iterator[Candidate]:
    """A convolution by torch (oneDNN on a CPU), with channels first and, of images, last."""
    images, weight = (torch.ones(size, dtype=dtype, device=device) for size in shape[:2])
    run = torch.ops.aten.convolution.default
    outputs = run(images, weight, None, *shape.rest)
    flops = 2.0 * outputs.numel() * weight[0].numel()
    size = f"convolution {' × '.join(map(str, shape.weight))} of {' × '.join(map(str, shape.inputs))}"
    yield f"torch, {size}", flops, partial(run, images, weight, None, *shape.rest)
    if images.dim() == 4:
        last = [each.contiguous(memory_format=torch.channels_last) for each in (images, weight)]
        yield f"torch, {size}, channels last", flops, partial(run, *last, None, *shape.rest)


class _Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the matrix products and convolutions that are done."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Shape, None] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm"):
            a, b = args[-2:]
            self.found[(*a.shape, b.shape[1])] = None
        elif name == "convolution":
            images, weight, _, *rest = args
            hashable = tuple(tuple(each) if isinstance(each, list) else each for each in rest)
            if not rest[3]:  # not a transposed one
                self.found[Convolution(tuple(images.shape), tuple(weight.shape), hashable)] = None
        return function(*args, **(kwargs or {}))


def shapes_of_step(training: Training) -> list[Shape]:
    """The matrix products and convolutions of one client's gradient."""
    shapes = _Shapes()
    with shapes:
        _one_gradient(training)
    return [shape for shape in shapes.found if isinstance(shape, Convolution) or min(shape) > 0]


def _one_gradient(training: Training) -> int:
    """A gradient of one mini-batch by the tape; gives its number of samples."""
    dataset, client = training.dataset, int(np.flatnonzero(training.batches.steps)[0])
    some = dataset.train[torch.as_tensor(training.batches.indices(client, 0)[0], device=dataset.train.device)]
    inputs = dataset.scaling.apply(some.inputs, training.model.initial.dtype)
    module = copy.deepcopy(training.model.template).train()
    with torch.random.fork_rng():
        training.loss(call_module(module, inputs), some.targets).mean().backward()  # type: ignore[no-untyped-call]
    return len(some)


def flops_per_sample(training: Training) -> float:
    """Floating-point operations in the matrix products (and convolutions) of one sample's gradient."""
    from torch.utils.flop_counter import FlopCounterMode  # it takes a while to import

    counter = FlopCounterMode(display=False)
    with counter:
        samples = _one_gradient(training)
    return float(counter.get_total_flops()) / samples


def finish_work(device: torch.device) -> None:
    """Wait for a GPU, which works on after a call has returned."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
