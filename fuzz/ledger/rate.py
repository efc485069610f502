"""How often a failure shows: k of n runs, with an interval, and the passes that make a fix believable."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log

from fuzz.minimize.rate import wilson

PASSES = 10  # of a failure that shows in every run
MOST_PASSES = 1000
MISSED = 0.01  # probability that a failure that is still there passes as often as it has to


@dataclass(frozen=True)
class Rate:
    """`failed` of `runs` runs failed."""

    failed: int
    runs: int

    @property
    def flaky(self) -> bool:
        """True if some runs failed, and some passed."""
        return 0 < self.failed < self.runs

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the probability of failing, at 95 %; (0, 1) where nothing was run."""
        return wilson(self.failed, self.runs)

    @property
    def passes_needed(self) -> int:
        """Passes in a row, on each arch, after which the failure counts as gone.

        PASSES; for a flaky one so many that, at the lower end of its interval, it would have been missed with
        probability MISSED; at most MOST_PASSES.
        """
        if not self.flaky:
            return PASSES
        return min(max(PASSES, ceil(log(MISSED) / log(1 - self.interval[0]))), MOST_PASSES)

    def __str__(self) -> str:
        below, above = self.interval
        return f"{self.failed} of {self.runs} ({100 * below:.0f}–{100 * above:.0f} %)"
