"""Parts that the suites share: kernels with labels, and the findings of a launch that the labels speak of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fuzz.devices.emulator import Report

RACE, BOUNDS = "data race", "out of bounds"
ARCH = "sm_80"
SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    {"warp_schedule": "random", "seed": 1, "dispatch": "permuted", "resident_ctas": 8},
    {"warp_schedule": "oldest_last"},
    {"warp_schedule": "greedy", "dispatch": "reversed", "resident_ctas": 2},
)
Found: TypeAlias = dict[str, list[str]]  # texts of findings, by what they are about
Run: TypeAlias = tuple[str, Found]  # the input's name, and what one launch on it found


@dataclass(frozen=True)
class Kernel:
    """A kernel of a suite. labels: is there a bug, by what it is about."""

    name: str
    file: Path
    labels: dict[str, bool]


@dataclass(frozen=True)
class Suite:
    """Labelled kernels. run: launches one on each input with each schedule."""

    title: str
    kernels: Sequence[Kernel]
    run: Callable[[Kernel], Iterator[Run]]

    def digest(self) -> str:
        """SHA-256 of the kernels' files, in the order of their names."""
        both = hashlib.sha256()
        for kernel in sorted(self.kernels, key=lambda one: one.name):
            both.update(kernel.file.read_bytes())
        return both.hexdigest()


def found(report: Report) -> Found:
    """A launch's findings by what they are about. Raises RuntimeError for one that did not end."""
    if report.status != "finished":
        raise RuntimeError(str(report))
    races = [str(one) for one in report.findings if one.kind.startswith("race")]
    bounds = [str(one) for one in report.findings if one.kind.startswith("out of bounds")]
    return {RACE: races, BOUNDS: bounds}
