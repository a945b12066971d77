"""Settings of the C library's memory, where it is GNU's; others have none of these, and then nothing happens."""

import ctypes
import sys
from functools import cache
from typing import Any

#: Places that threads take small memory from, at most; the C library would give nearly every thread its own.
ARENAS = 2


@cache
def _library() -> Any:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, up to some dozen megabytes.

    A step frees vectors of a megabyte and asks for the like of them at once. Where the C library hands these back to
    the system in between, it costs a tenth of a step to fetch them again, page by page.
    """
    trim_threshold, mmap_threshold = -1, -3
    if _library() is not None:
        _library().mallopt(mmap_threshold, 32 << 20)
        _library().mallopt(trim_threshold, 32 << 20)
        give_back()


def share_holes() -> None:
    """Have threads use each other's holes. For the start of a process: what there is stays as it is.

    Pieces of a peer's letters come and go by the hundred, in several threads, and leave holes that no tensor fits into:
    without this and `give_back` a peer with a large model would hold one or two models' worth of them.
    """
    arena_max = -8
    if _library() is not None:
        _library().mallopt(arena_max, ARENAS)


def give_back() -> None:
    """Give what is free back to the system. Takes a few milliseconds."""
    if _library() is not None:
        _library().malloc_trim(0)
