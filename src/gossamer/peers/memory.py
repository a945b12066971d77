"""The memory of a peer's process, which has many threads and a model that may be large.

Pieces of letters come and go by the hundred, in several threads, and leave holes that no tensor fits into: without this
a peer with a large model would hold one or two models' worth of them.
"""

import ctypes
import sys
from functools import cache
from typing import Any

#: Places that threads take small memory from, at most; the C library would give nearly every thread its own.
ARENAS = 2


@cache
def _library() -> Any:
    """The C library, if it is GNU's: others have no such settings."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def share_holes() -> None:
    """Have threads use each other's holes. For the start of a process: what there is stays as it is."""
    arena_max = -8
    if _library() is not None:
        _library().mallopt(arena_max, ARENAS)


def give_back() -> None:
    """Give back what is free. Takes a few milliseconds."""
    if _library() is not None:
        _library().malloc_trim(0)
