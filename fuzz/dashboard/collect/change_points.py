"""Change points of a series of figures, by a rule without parameters to tune for one series.

The split into two parts of at least LEAST points with the largest rank sum statistic (Mann-Whitney, two-sided, normal
approximation with ties) is a change point if p times the number of splits that were tried (Bonferroni) is below LEVEL
and the medians of the two parts differ by at least SHIFT; then each part is looked at in the same way. Ranks make it
deaf to single outliers. A shift that lasts fewer than LEAST nights is not reported: it may be the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import erfc, sqrt

import numpy as np

from fuzz.dashboard.model import Shift

LEAST, LEVEL, SHIFT = 5, 0.01, 0.03
RULE = (
    f"A series is split where the rank sum statistic (Mann-Whitney, two-sided) is largest, with at least {LEAST} "
    f"points on either side. The split is a change point if its p, times the number of splits that were tried, is "
    f"below {LEVEL:g} and the medians differ by at least {SHIFT:.0%}; then both parts are looked at in the same way."
)


def change_points(values: Sequence[float]) -> tuple[Shift, ...]:
    """The change points in order; `before` and `after` are the medians of the segments that meet there."""
    data = np.asarray(values, dtype=np.float64)
    cuts = sorted(_cuts(data, 0, len(data)))
    edges = [0, *(at for at, _ in cuts), len(data)]
    medians = [float(np.median(data[a:b])) for a, b in pairwise(edges) if b > a]
    return tuple(Shift(at, medians[i], medians[i + 1], p) for i, (at, p) in enumerate(cuts))


def _cuts(data: np.ndarray, start: int, stop: int) -> list[tuple[int, float]]:
    """Change points of data[start:stop], each with its corrected p."""
    part = data[start:stop]
    splits = len(part) - 2 * LEAST + 1
    if splits < 1:
        return []
    scores = np.abs(_statistics(part))
    best = int(scores.argmax())
    at, p = LEAST + best, min(erfc(float(scores[best]) / sqrt(2)) * splits, 1.0)
    before, after = float(np.median(part[:at])), float(np.median(part[at:]))
    if p >= LEVEL or abs(after - before) < SHIFT * max(abs(before), abs(after)):
        return []
    here = start + at
    return [*_cuts(data, start, here), (here, p), *_cuts(data, here, stop)]


def _statistics(part: np.ndarray) -> np.ndarray:
    """The standardised rank sum of the first k points, k from LEAST to n - LEAST."""
    n = len(part)
    _, inverse, counts = np.unique(part, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    k = np.arange(LEAST, n - LEAST + 1)
    sums = np.cumsum(ranks)[k - 1]
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = k * (n - k) / 12 * ((n + 1) - ties / (n * (n - 1)))
    return (sums - k * (n + 1) / 2) / np.sqrt(np.maximum(variance, 1e-12))
