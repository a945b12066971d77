"""The global streams of random numbers: torch's, numpy's and Python's. Nothing may depend on them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

CPU = torch.device("cpu")
#: The global streams of random numbers.
STREAMS = {"torch": "torch's global stream", "numpy": "numpy's global stream", "python": "Python's `random`"}


def stream_states() -> dict[str, Any]:
    """The state of each global stream."""
    numbers = torch.get_rng_state()
    if torch.cuda.is_available():
        numbers = torch.cat([numbers, torch.cuda.get_rng_state()])
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    words, *rest = numpy["state"]["key"].tobytes(), numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]
    return {"torch": numbers.numpy().tobytes(), "numpy": (words, rest), "python": random.getstate()}


def drawn_since(before: dict[str, Any]) -> list[str]:
    """The streams from which something was drawn."""
    return [name for name, state in stream_states().items() if state != before[name]]


@contextmanager
def keep_streams(device: torch.device = CPU) -> Iterator[None]:
    """Leave the global streams as they were."""
    numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(numpy)  # noqa: NPY002
        random.setstate(python)


def start_elsewhere() -> None:
    """Begin every stream at another place than before."""
    seed = int(torch.randint(1 << 31, ()))
    torch.manual_seed(seed + 1)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
