"""What this process may use of the machine that it runs on, and which machine that is.

A container, or a job of a scheduler, is given a share of a machine that may be much larger. The system tells it the
size of the whole, and slows it down or kills it when it takes more than its share: control groups hold what that is.
"""

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

#: Where the system shows control groups, and to which of them this process belongs.
GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: Lines that tell processors apart, on x86 and on ARM.
TELLING = ("model name", "flags", "CPU implementer", "CPU part", "Features")


def usable_cores() -> int:
    """The cores that this process may use, at least one."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for group in _groups("cpu"):
        share = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(share) == 2 and share[0].isdecimal():  # otherwise "max", or -1: no limit
            cores = min(cores, int(share[0]) / int(share[1]))
    return max(1, math.ceil(cores))


def free_memory() -> int:
    """Bytes that this process can still take without swapping; a great many where the system does not tell."""
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
    """Seconds that the machine's cores were busy with anything but this process and the children it has waited for.

    A difference of two calls says how far this process was disturbed. None where the system does not tell.
    """
    kind, *spent = _words(Path("/proc/stat"))[:9] or [""]
    if kind != "cpu":
        return None
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, spent)
    busy = (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:4])


def processor() -> str:
    """The processor's name."""
    told = _processor_lines()
    return told.get("model name") or platform.processor() or platform.machine()


def processor_and_features() -> str:
    """Its name and what it can do: what was measured or compiled on one processor does not hold on another."""
    return " ".join(_processor_lines().values()) or processor()


def _processor_lines() -> dict[str, str]:
    """What the system tells of the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    told = (line.partition(":") for line in reversed(lines))
    return {name.strip(): value.strip() for name, _, value in told if name.strip() in TELLING}


def _groups(what: str) -> Iterator[Path]:
    """The control groups that limit this process's share of something, from its own to the whole machine's."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "" or what in kinds.split(","):  # one tree for all (version 2), or one for each kind (version 1)
            top = GROUPS / kinds
            own = top / path.lstrip("/")
            # In a container the path may be the one that its host sees; what holds for it is then at the top.
            yield from (group for group in (own, *own.parents) if group.is_relative_to(top))


def _words(path: Path) -> list[str]:
    """The words in a file of the system; none if it is not there."""
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []
