"""Pace: how long the kernels of a session take, learnt from their runs; the limits of later runs follow from it.

What a target expects of itself may be far off: the same function runs in Triton's interpreter a thousand times slower
than compiled. So the limit of a run is ten times what runs of its size took. A limit only grows until enough runs have
ended, and shrinks to a sixth of the announced one at most: a first run of another kind may do more than those before.
"""

from __future__ import annotations

import math

MARGIN = 10.0
FIRST = 9  # runs of a kernel before its limits may shrink: three cases, as sessions repeat them
LEAST = 1 / 6  # of the announced limit


class Pace:
    """Seconds that the phases of each kernel took, by what was announced for them."""

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._longest: dict[tuple[str, ...], dict[int, float]] = {}
        self._ended: dict[tuple[str, ...], int] = {}

    def limit(self, kernel: tuple[str, ...], announced: float) -> float:
        """Seconds after which a phase is suspected; `announced` is what the judge allows, at least the floor counts."""
        known = self._longest.get(kernel)
        if known is None:
            return max(self._floor, announced)
        least = announced * LEAST if self._ended[kernel] >= FIRST else announced
        return max(self._floor, least, MARGIN * _estimate(known, announced))

    def ended(self, kernel: tuple[str, ...], announced: float, seconds: float) -> None:
        """A phase took `seconds` and ended."""
        known, size = self._longest.setdefault(kernel, {}), _size(announced)
        known[size] = max(known.get(size, 0.0), seconds)
        self._ended[kernel] = self._ended.get(kernel, 0) + 1


def _estimate(known: dict[int, float], announced: float) -> float:
    """The longest of the runs of this size; else of the next smaller ones, in proportion; else of the next larger."""
    size = _size(announced)
    smaller = [other for other in known if other <= size]
    return known[max(smaller)] * 2.0 ** (size - max(smaller)) if smaller else known[min(known)]


def _size(announced: float) -> int:
    return math.ceil(math.log2(max(announced, 1e-3)))
