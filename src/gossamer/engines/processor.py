"""Which processor this is: what was measured or compiled on one does not hold on another."""

import platform
from pathlib import Path


def processor() -> str:
    """Its name and what it can do, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = dict(line.split(":", 1) for line in reversed(lines) if line.startswith(("model name", "flags")))
    return "".join(told.values()) or platform.processor() or platform.machine()
