"""No process is left behind by one that was killed before it could stop those it had started."""

import ctypes
import os
import signal
import sys

#: In the environment of a process: the one that it must not outlive.
PARENT = "GOSSAMER_PARENT"


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, by whatever signal. Only Linux can."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def die_with_who_started_us() -> None:
    """The same, if the process that started this one has asked for it."""
    if parent := os.environ.pop(PARENT, None):
        die_with(int(parent))
