"""The processor and its limit: the fastest that it multiplies matrices, and the products that a step needs."""

import copy
import os
import platform
import time

import numpy as np
import torch

from gossamer.models import call_module
from gossamer.system.machine import processor, usable_cores
from gossamer.system.threads import on_threads
from gossamer.training import Training

#: Side of the matrices whose product is the limit: large enough for the highest rate, small enough for a short test.
SIDE = 1024
#: Products timed at once: a single fast one is luck.
PRODUCTS = 5


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


def matrix_rate(
    seconds: float = 0.5, dtype: torch.dtype = torch.float32, device: torch.device = torch.device("cpu")
) -> float:
    """The most floating-point operations per second that one core keeps up in large matrix products."""
    ones = torch.ones(SIDE, SIDE, dtype=dtype, device=device)
    product = torch.empty_like(ones)
    fastest, ends = float("inf"), time.perf_counter() + seconds
    with on_threads(1):
        torch.mm(ones, ones, out=product)
        while fastest == float("inf") or time.perf_counter() < ends:
            finish_work(device)
            started = time.perf_counter()
            for _ in range(PRODUCTS):
                torch.mm(ones, ones, out=product)
            finish_work(device)
            fastest = min(fastest, (time.perf_counter() - started) / PRODUCTS)
    return 2 * SIDE**3 / fastest


def flops_per_sample(training: Training) -> float:
    """Floating-point operations in the matrix products (and convolutions) of one sample's gradient."""
    from torch.utils.flop_counter import FlopCounterMode  # it takes a while to import

    dataset, client = training.dataset, int(np.flatnonzero(training.batches.steps)[0])
    some = dataset.train[torch.as_tensor(training.batches.indices(client, 0)[0], device=dataset.train.device)]
    inputs = dataset.scaling.apply(some.inputs, training.model.initial.dtype)
    module = copy.deepcopy(training.model.template).train()
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(), counter:
        training.loss(call_module(module, inputs), some.targets).mean().backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / len(some)


def finish_work(device: torch.device) -> None:
    """Wait for a GPU, which works on after a call has returned."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
