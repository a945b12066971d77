"""Memory that is free inside a process, given back to the system.

Pieces of letters come and go by the hundred, in several threads, and leave holes that no tensor fits into: without this
a peer with a large model would hold one or two models' worth of them.
"""

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    """The C library's own function for it; only GNU's has one."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def give_back() -> None:
    """Give back what is free. Takes a few milliseconds."""
    if _trim() is not None:
        _trim()(0)
