"""Settings of the C library's memory, where it is GNU's; others have none of these, and then nothing happens."""

import ctypes
import sys
from functools import cache
from typing import Any

#: Codes of the C library's settings.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
#: The largest threshold that it knows, and the least that is worth a call of the system.
MOST, LEAST = 32 << 20, 4 << 20


@cache
def _library() -> Any:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, up to some dozen megabytes.

    A step frees vectors of a megabyte and asks for the like of them at once. Where the C library hands these back to
    the system in between, it costs a tenth of a step to fetch them again, page by page.
    """
    if _library() is not None:
        _library().mallopt(MMAP_THRESHOLD, MOST)
        _library().mallopt(TRIM_THRESHOLD, MOST)
        give_back()


def share_holes() -> None:
    """Have threads use each other's holes. For the start of a process: what there is stays as it is.

    Pieces of a peer's letters come and go by the hundred, in several threads, and leave holes that no tensor fits into:
    without this and `give_back` a peer with a large model would hold one or two models' worth of them. There is one
    place for all threads, because that is the only one that the C library gives back to its end.
    """
    if _library() is not None:
        _library().mallopt(ARENA_MAX, 1)


def part_with(size: int) -> None:
    """Whatever is freed of this size or more goes back to the system at once, and leaves no hole."""
    if _library() is not None:
        _library().mallopt(MMAP_THRESHOLD, min(max(size, LEAST), MOST))


def give_back() -> None:
    """Give what is free back to the system. Takes a few milliseconds."""
    if _library() is not None:
        _library().malloc_trim(0)
