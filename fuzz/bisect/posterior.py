"""How probable each revision is to be the first bad one, after any runs of any revisions.

The model. The bug came with one revision f; a revision is bad if f is one of its ancestors, or f itself, and good
otherwise. A run fails with probability 0 at a good revision, and with one probability p at every bad one. Before the
first run each f is as probable as any other. p is 1 with probability 1/2 (most failures are reliable); otherwise it has
Jeffreys' distribution, Beta(1/2, 1/2). With K failed runs, and C(f) clean ones at the revisions that f makes bad,

    P(f | runs) ~ (1/2 [C(f) = 0] + 1/2 B(K + 1/2, C(f) + 1/2) / pi) if f makes all of the K bad, else 0

which is exact: p is integrated out. Runs at the revision that was given as bad count too: they are what measures p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RELIABLE = 0.5  # probability, before any run, that a bad revision fails in every run


def clean_runs(failed: int, clean: int, error: float, most: int) -> int:
    """Clean runs after which a revision counts as good; at most `most`.

    failed, clean  runs of the revision that is known to be bad, which measured the rate p
    error          of calling a bad revision good

    For a known p the least k with (1 - p)^k <= error: k = ceil(log(error) / log(1 - p)). p is known from the measured
    runs only, so that the mean of (1 - p)^k over what they leave open takes its place.
    """
    before, runs = _evidence(failed, clean), 1
    while runs < most and _evidence(failed, clean + runs) - before > math.log(error):
        runs += 1
    return runs


@dataclass(frozen=True)
class Posterior:
    """Probabilities after some runs.

    bad          [f, r]: whether revision r is bad if f is the first bad one; its diagonal is True
    first        [f]: probability that f is the first bad one; they sum to 1
    rate         [f]: the expected probability of failing at a bad revision, if f is the first bad one
    """

    bad: NDArray[np.bool_]
    first: NDArray[np.float64]
    rate: NDArray[np.float64]

    @property
    def mean_rate(self) -> float:
        """The expected probability of failing at a bad revision."""
        return float(self.first @ self.rate)

    def is_bad(self) -> NDArray[np.float64]:
        """[r]: probability that revision r is bad."""
        return self.first @ self.bad

    def information(self) -> NDArray[np.float64]:
        """[r]: what one run of revision r is expected to say about f, in bits (mutual information, with the rate at
        its mean). For a reliable failure it is largest where r is bad with probability 1/2, as in plain bisection."""
        fails = self.is_bad()
        rate = self.mean_rate
        return _entropy(fails * rate) - fails * _entropy(np.array(rate))


def posterior(bad: NDArray[np.bool_], failed: NDArray[np.int64], clean: NDArray[np.int64]) -> Posterior:
    """Evidence of `failed` and `clean` runs of each revision, [r]. Raises ValueError where no single revision explains
    which of them failed."""
    possible = ~(~bad & (failed > 0)).any(1)
    if not possible.any():
        raise ValueError("no single revision explains all failures: the runs of the history contradict one another")
    total = int(failed.sum())
    cleaned = bad @ clean
    weight = np.array([_evidence(total, int(count)) for count in cleaned])
    more = np.array([_evidence(total + 1, int(count)) for count in cleaned])
    first = np.where(possible, np.exp(weight - weight[possible].max()), 0.0)
    return Posterior(bad, first / first.sum(), np.exp(more - weight))


def linear(count: int) -> NDArray[np.bool_]:
    """`bad` of a history without branches: r is bad if it is f, or comes after f."""
    return np.triu(np.ones((count, count), dtype=bool))


def classes(bad: NDArray[np.bool_], testable: NDArray[np.bool_]) -> list[list[int]]:
    """Revisions that no run can tell apart, since those between them cannot be run; in the order of the first of
    each."""
    found: dict[bytes, list[int]] = {}
    for number, row in enumerate(bad[:, testable]):
        found.setdefault(row.tobytes(), []).append(number)
    return list(found.values())


def _evidence(failed: int, clean: int) -> float:
    """Logarithm of the probability of `failed` failures and `clean` clean runs at bad revisions, p integrated out."""
    beta = math.lgamma(failed + 0.5) + math.lgamma(clean + 0.5) - math.lgamma(failed + clean + 1) - math.log(math.pi)
    flaky = math.log(1 - RELIABLE) + beta
    return float(np.logaddexp(math.log(RELIABLE), flaky)) if clean == 0 else flaky


def _entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bits of a coin that falls heads with probability p."""
    inside = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(-(inside * np.log2(inside) + (1 - inside) * np.log2(1 - inside)))
