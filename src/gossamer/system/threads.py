"""The number of threads that torch uses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_threads(number: int) -> Iterator[None]:
    """Use this number of threads. One is best for small models: their products gain less than a second thread costs."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
