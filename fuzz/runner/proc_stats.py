"""What the kernel says about a child without disturbing it: resident memory, CPU time, time spent waiting for a CPU."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from fuzz.runner.limits import MIB

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes of the process that are in memory; 0 when it is gone. About 10 µs."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def cap(asked: int | None) -> int:
    """The resident bytes at which a child is killed: as asked, or a quarter of the machine's memory, at least 2 GiB."""
    return asked if asked is not None else max(2048 * MIB, psutil.virtual_memory().total // 4)


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK if len(fields) > 12 else 0.0


def starved_seconds(pid: int) -> float:
    """Seconds that its main thread was runnable but had no CPU (0 where the kernel does not tell)."""
    fields = _read(f"/proc/{pid}/task/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def oom_kills() -> int:
    """Number of processes that the kernel has killed for want of memory, here or in our control group (0 where not
    told)."""
    counts = [0]
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        for line in _read(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                counts.append(int(value))
    return sum(counts)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
