"""The cores and the memory that this process may use, and the processor.

The limits of a container or a scheduler's job are in its control groups. Other system calls report the whole machine,
and a process that exceeds its limits is slowed down or killed.
"""

import math
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

#: The file system of control groups, and the file that lists those of this process.
GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: The share of this process's cores that others may use before a measurement means little.
BUSY = 0.1
#: Lines of /proc/cpuinfo that identify a processor, on x86 and on ARM.
IDENTIFYING = ("model name", "flags", "CPU implementer", "CPU part", "Features")


def usable_cores() -> int:
    """The cores that this process may use, at least one."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for group in _groups("cpu"):
        share = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(share) == 2 and share[0].isdecimal():  # otherwise "max", or -1: no limit
            cores = min(cores, int(share[0]) / int(share[1]))
    return max(1, math.ceil(cores))


def free_memory() -> int:
    """Bytes that this process can still allocate without swapping; a huge number if unknown."""
    free = 1 << 62
    if "MemAvailable:" in (words := _words(Path("/proc/meminfo"))):
        free = int(words[words.index("MemAvailable:") + 1]) * 1024
    for group in _groups("memory"):
        for most, used, reclaimable in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, held, facts = (_words(group / name) for name in (most, used, "memory.stat"))
            if limit and held and limit[0].isdecimal():
                back = int(facts[facts.index(reclaimable) + 1]) if reclaimable in facts else 0
                free = min(free, max(0, int(limit[0]) - int(held[0]) + back))
    return free


def seconds_of_others() -> float | None:
    """Core seconds used by all processes but this one and the children it has waited for; None if unknown.

    The difference of two calls shows how much a measurement was disturbed.
    """
    kind, *spent = _words(Path("/proc/stat"))[:9] or [""]
    if kind != "cpu":
        return None
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, spent)
    busy = (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:4])


def is_busy(seconds: float = 0.1) -> bool:
    """Whether other processes use more than a tenth of the cores just now, watched for so long."""
    before = seconds_of_others()
    time.sleep(seconds)
    after = seconds_of_others()
    return before is not None and after is not None and share_of_others(before, after, seconds) > BUSY


def share_of_others(before: float, after: float, passed: float) -> float:
    """The share of this process's cores that others used, from `seconds_of_others` before and after so many seconds.

    First they use cores that this process may not.
    """
    theirs = (os.cpu_count() or 1) - usable_cores()
    return max(0.0, (after - before) / passed - theirs) / usable_cores()


def processor() -> str:
    """The processor's name."""
    return _processor_lines().get("model name") or platform.processor() or platform.machine()


def processor_and_features() -> str:
    """The processor's name and features: results of measuring or compiling hold for one processor only."""
    return " ".join(_processor_lines().values()) or processor()


def _processor_lines() -> dict[str, str]:
    """The identifying lines of the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines))
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip() in IDENTIFYING}


def _groups(what: str) -> Iterator[Path]:
    """The control groups that limit a resource of this process, from the innermost to the root."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "" or what in kinds.split(","):  # one tree for all (version 2), or one for each kind (version 1)
            top = GROUPS / kinds
            own = top / path.lstrip("/")
            # In a container the path may be that of the host; the container's limits are then at the root.
            yield from (group for group in (own, *own.parents) if group.is_relative_to(top))


def _words(path: Path) -> list[str]:
    """The words of a system file; empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []
