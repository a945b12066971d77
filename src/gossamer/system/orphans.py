"""Child processes that end with their parent, even if the parent is killed."""

import ctypes
import os
import signal
import sys

#: Environment variable: the id of the process that this one must not outlive.
PARENT = "GOSSAMER_PARENT"


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends for any reason. Linux only."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def die_with_requesting_parent() -> None:
    """The same, if the parent requested it through the environment."""
    if parent := os.environ.pop(PARENT, None):
        die_with_parent(int(parent))
