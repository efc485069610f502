"""Rate at which a failure shows: its interval, and the tries that a candidate needs."""

from __future__ import annotations

import math

FLOOR = 0.15  # a failure that shows less often is not worth a reproducer
MOST_TRIES = 6  # one failure in more tries than this is a rate under FLOOR
MISSED = 0.2  # the chance, allowed for speed, that a candidate which does fail is taken for one that does not


def wilson(failed: int, runs: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of the rate failed / runs; z = 1.96 gives 95 %. (0, 1) without runs."""
    if runs == 0:
        return 0.0, 1.0
    rate, square = failed / runs, z * z
    centre = (rate + square / (2 * runs)) / (1 + square / runs)
    half = z / (1 + square / runs) * math.sqrt(rate * (1 - rate) / runs + square / (4 * runs * runs))
    return max(0.0, centre - half), min(1.0, centre + half)


def tries(rate: float) -> int:
    """Probes of a candidate until it counts as passing: 1 where failure is certain, at most MOST_TRIES."""
    if rate >= 1:
        return 1
    return min(MOST_TRIES, math.ceil(math.log(MISSED) / math.log(1 - max(rate, FLOOR))))
