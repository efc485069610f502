"""Resources: what a kernel takes and does not give back, memory that grows with the square of the length, and compiles
that were not promised. Judgements on measurements; who measures is not known here.

A leak is what grows in every run but the first, which may fill caches. Growth is an exponent between lengths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from oracles.finding import Finding, Location

LEAST_BYTES = 1 << 16  # growth of less in a run is no leak of tensors
MOST_EXPONENT = 1.5  # of peak memory against length, for what promises to be linear
_WHAT = {
    "files": "open files",
    "processes": "child processes",
    "threads": "threads",
    "host_bytes": "bytes of allocated memory",
    "gpu_bytes": "bytes of allocated GPU memory",
}


@dataclass(frozen=True)
class Usage:
    """Resources that a process holds: counts, and bytes in use (not those that an allocator keeps for later)."""

    files: int = 0
    processes: int = 0
    threads: int = 0
    host_bytes: int = 0
    gpu_bytes: int = 0


def grew(before: Usage, after: Usage, least_bytes: int = LEAST_BYTES) -> list[str]:
    """Names of what grew."""
    least = {"host_bytes": least_bytes, "gpu_bytes": least_bytes}
    return [f.name for f in fields(Usage) if getattr(after, f.name) - getattr(before, f.name) >= least.get(f.name, 1)]


def always_grew(usages: Sequence[Usage]) -> set[str]:
    """Names of what grew in every run after the first; at least two runs."""
    return set.intersection(*(set(grew(one, other)) for one, other in pairwise(usages[1:])))


def leaks(usages: Sequence[Usage]) -> list[Finding]:
    """One finding per resource that grew in every run after the first.

    usages  before the first of several equal runs and after each; at least four
    """
    if len(usages) < 4:
        raise ValueError(f"usages: needs those of at least three runs, got {len(usages) - 1}")
    later = list(pairwise(usages[1:]))
    found = []
    for name in sorted(always_grew(usages)):
        total = getattr(usages[-1], name) - getattr(usages[1], name)
        message = f"leak: each of {len(later)} runs leaves {total / len(later):g} more {_WHAT[name]} behind"
        found.append(
            Finding("resources", "leak", message, place=Location(pattern=name), numbers={"each": total / len(later)})
        )
    return found


def growth(peaks: Mapping[int, int], most: float = MOST_EXPONENT) -> list[Finding]:
    """A finding where peak memory grows faster than length ** most between the two longest.

    peaks  bytes beyond inputs and outputs by sequence length; at least two lengths
    """
    if len(peaks) < 2:
        raise ValueError(f"peaks: needs at least two lengths, got {sorted(peaks)}")
    short, long = sorted(peaks)[-2:]
    if peaks[long] < LEAST_BYTES or peaks[short] <= 0:
        return []
    exponent = math.log(peaks[long] / peaks[short]) / math.log(long / short)
    if exponent <= most:
        return []
    message = (
        f"peak memory grows with length ** {exponent:.2f}, expected linear growth: {peaks[short] >> 10} KiB at length "
        f"{short}, {peaks[long] >> 10} KiB at length {long}"
    )
    numbers = {"exponent": exponent, "short": float(peaks[short]), "long": float(peaks[long])}
    return [Finding("resources", "memory_growth", message, place=Location(pattern="quadratic"), numbers=numbers)]


def compiles(before: int, after: int, shapes: int, variants: int) -> list[Finding]:
    """A finding where problems of `shapes` shapes compiled more kernels than there are variants among them.

    before, after  kernels that the target has compiled, before and after
    """
    if after - before <= variants:
        return []
    message = f"{after - before} kernels were compiled for {shapes} shapes, expected one per variant ({variants})"
    numbers = {"compiles": float(after - before), "variants": float(variants)}
    return [Finding("resources", "compiles", message, place=Location(pattern="shapes"), numbers=numbers)]
