"""Measures what runs of a target take: open files, processes, threads, memory in use, peak memory, compiles.

`Watch` is cheap (about 0.2 ms) and surrounds every case; only where something is more than before are further runs
made, to see whether each takes it again. So a leak is found in the case in hand, and a minimised case shows it too.
Counting malloc's bytes means walking all its free blocks, so a case begins with the count that the one before ended on.
`memory_growth` and `compiles` are checks of their own, for targets that promise something.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.core.target import Target
from fuzz.tensors.arena import build
from oracles import resources
from oracles.finding import Finding
from oracles.resources import Usage

RUNS = 5
SUSPICIOUS_BYTES = 8 << 20  # of host memory: less is a cache of ours
LENGTHS = (1024, 2048, 4096)


@dataclass(frozen=True)
class Watch:
    """What the process held before a case."""

    before: Usage
    device: torch.device
    held: int

    @staticmethod
    def start(device: torch.device, held: int = 0) -> Watch:
        """Looks for the first time. held: bytes of host memory that the case in hand keeps all the while."""
        known = _idle.pop(device, None)
        return Watch(usage(device, None if known is None else known + held), device, held)

    def suspects(self) -> bool:
        """True if something is more than before."""
        now = usage(self.device)
        _idle[self.device] = now.host_bytes - self.held
        slight = {"host_bytes"} if now.host_bytes - self.before.host_bytes < SUSPICIOUS_BYTES else set()
        return bool(set(resources.grew(self.before, now)) - slight)

    def leaks(self, run: Callable[[], object]) -> list[Finding]:
        """Findings of RUNS more runs, whose answers are dropped; of fewer where one after the first leaves nothing
        behind."""
        usages = [usage(self.device)]
        for number in range(RUNS):
            run()
            gc.collect(1)  # what a run leaves is young; a whole collection takes half a second
            usages.append(usage(self.device))
            if number and not resources.always_grew(usages):
                return []
        return resources.leaks(usages)


_idle: dict[torch.device, int] = {}  # bytes in use after the last case, without what that case held


def usage(device: torch.device, host_bytes: int | None = None) -> Usage:
    """Usage of this process now, host_bytes where they are known. Counts that the system does not tell are 0."""
    gpu = _allocated(device) if device.type == "cuda" else 0
    tasks = _entries("/proc/self/task")
    return Usage(
        len(_entries("/proc/self/fd")),
        sum(map(_children, tasks)) if _has_children() else 0,
        len(tasks),
        _in_use() if host_bytes is None else host_bytes,
        gpu,
    )


def memory_growth(target: Target, case: Case, lengths: Sequence[int] = LENGTHS) -> list[Finding]:
    """Findings of peak memory that grows with the square of the length, of `case` with each of `lengths` queries and
    keys."""
    peaks = {}
    for length in sorted(lengths):
        problem = replace(case.problem, lengths_q=(length,), lengths_k=(length,))
        peaks[length] = _peak(target, replace(case, problem=problem, relations=()))
    return resources.growth(peaks)


def compiles(target: Target, cases: Sequence[Case]) -> list[Finding]:
    """Findings of `cases`, of many shapes, that compile several kernels for a variant; for targets that count them."""
    before, device = target.compiled(), "cuda" if target.device == "cuda" else "cpu"
    if before is None:
        return []
    for case in cases:
        tensors = build(case, device).tensors()
        target.prepare(case, tensors)
        target.run(case, tensors)
    kinds = {(str(c.variant), c.problem.dtype, c.problem.dim, c.problem.dim_v, c.problem.backward) for c in cases}
    return resources.compiles(before, target.compiled() or 0, len(cases), len(kinds))


def _peak(target: Target, case: Case) -> int:
    """Bytes beyond what was held before a run, at the most; the first run is not counted."""
    device = torch.device("cuda" if target.device == "cuda" else "cpu")
    tensors = build(case, device).tensors()
    target.prepare(case, tensors)
    if device.type == "cuda":
        target.run(case, tensors)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        target.run(case, tensors)
        return torch.cuda.max_memory_allocated(device) - held
    gc.collect()
    _trim()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is reset to what is resident now
    held = _resident("VmRSS")
    target.run(case, tensors)
    return _resident("VmHWM") - held


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0


def _allocated(device: torch.device) -> int:
    """torch.cuda.memory_allocated without the hundred other figures that it collects and sorts (0.5 ms)."""
    figures = torch.cuda.memory_stats_as_nested_dict(device)
    return int(figures["allocated_bytes"]["all"]["current"]) if figures else 0


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _has_children() -> bool:
    """Whether this process has a child, dead or alive: one call, where a file for each of a GPU's threads is slow."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children(task: str) -> int:
    """Child processes that this thread has started."""
    try:
        file = os.open(f"/proc/self/task/{task}/children", os.O_RDONLY)
    except OSError:
        return 0
    try:
        return len(os.read(file, 1 << 16).split())
    except OSError:
        return 0
    finally:
        os.close(file)


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


@functools.cache
def _libc() -> ctypes.CDLL | None:
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = _MallInfo
        return libc
    return None


def _in_use() -> int:
    libc = _libc()
    if libc is None:
        return 0
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _trim() -> None:
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)
