"""Settings of glibc's memory allocator; without effect where the C library is another."""

import ctypes
import sys
from functools import cache
from typing import Any

#: Parameters of `mallopt`.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
#: The largest threshold that glibc accepts, and the smallest that is worth a system call.
LARGEST_THRESHOLD, SMALLEST_THRESHOLD = 32 << 20, 4 << 20


@cache
def _library() -> Any:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def keep_freed_memory() -> None:
    """Keep freed blocks of up to 32 MB in the process.

    A step frees vectors of a megabyte and allocates equal ones at once. Returning them to the system in between costs
    a tenth of a step, for the page faults of the new ones.
    """
    if _library() is not None:
        _library().mallopt(MMAP_THRESHOLD, LARGEST_THRESHOLD)
        _library().mallopt(TRIM_THRESHOLD, LARGEST_THRESHOLD)
        trim_freed_memory()


def use_one_arena() -> None:
    """Use one arena for all threads. To be called at the start of a process: existing arenas stay.

    Hundreds of chunks of a peer's letters are allocated and freed in several threads and leave fragments too small for
    a tensor. Without this and `trim_freed_memory`, a peer with a large model would hold one or two models' worth of
    fragments. The main arena is the only one that glibc trims completely.
    """
    if _library() is not None:
        _library().mallopt(ARENA_MAX, 1)


def return_freed_blocks_of(size: int) -> None:
    """Return freed blocks of this size or more to the system at once, without fragments."""
    if _library() is not None:
        _library().mallopt(MMAP_THRESHOLD, min(max(size, SMALLEST_THRESHOLD), LARGEST_THRESHOLD))


def trim_freed_memory() -> None:
    """Return all free memory to the system. Takes a few milliseconds."""
    if _library() is not None:
        _library().malloc_trim(0)
