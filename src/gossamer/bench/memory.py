"""Memory: what the clients' states and the samples need, and what this process and its children hold."""

import ctypes
import gc
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from gossamer.data import Dataset
from gossamer.training import Training


def state_bytes(training: Training) -> int:
    """Bytes of all clients' states between rounds."""
    return len(training.batches.client_rows) * size_of(training.method.init(training.model.initial).values())


def data_bytes(dataset: Dataset) -> int:
    """Bytes of all samples."""
    return size_of([*dataset.train.tensors, *dataset.test.tensors])


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def memory_in_use() -> int | None:
    """Bytes of memory that this process and its children hold now, shared pages counted once; None if not known."""
    settle_memory()
    return memory_peak()


def memory_peak() -> int | None:
    """The most that this process and its children held since `settle_memory`, shared pages counted once.

    The system keeps each process's own peak, but not which of its pages were shared then. So this is what all hold now,
    each page counted once, plus what each has released since its peak.
    """
    total = 0
    try:
        for process in ["self", *_children("self")]:
            status = _numbers(Path(f"/proc/{process}/status"))
            total += _numbers(Path(f"/proc/{process}/smaps_rollup"))["Pss"] + status["VmHWM"] - status["VmRSS"]
    except (OSError, KeyError):
        return None
    return total * 1024


def settle_memory() -> None:
    """Release unused memory and reset this process's recorded peak."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def _children(process: str) -> list[str]:
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [child, *_children(child)]
    return found


def _numbers(path: Path) -> dict[str, int]:
    """The lines of a file of the system that say `name: number kB`."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}
