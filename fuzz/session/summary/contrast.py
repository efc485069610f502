"""Contrast: the feature that failures depend on, from the cases of a session that failed and those that passed.

Every case that failed has the feature, and cases with it fail more often than chance explains (Fisher's exact test,
with Bonferroni's correction for the number of features). Where that is not clear-cut nothing is said: a wrong hint
costs a reader more than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

CHANCE = 0.01  # of naming a feature that has nothing to do with it, over all features


@dataclass(frozen=True)
class Contrast:
    """All `failed` cases have the feature (or all lack it, if not `present`), as have `passed_alike` of those that
    passed; none of the other `passed_otherwise` failed."""

    feature: str
    present: bool
    failed: int
    passed_alike: int
    passed_otherwise: int

    def __str__(self) -> str:
        alike = self.failed + self.passed_alike
        word, otherwise = ("with", "without") if self.present else ("without", "with")
        share = "all of them fail" if not self.passed_alike else f"{self.failed} of {alike} fail"
        return f"all {word} {self.feature} ({share}; none of {self.passed_otherwise} {otherwise})"


def contrast(
    failed: Sequence[frozenset[str]], passed: Sequence[frozenset[str]], likely: Iterable[str] = ()
) -> Contrast | None:
    """The feature on which failures depend; None where none is clear-cut.

    failed, passed  the features of each case that failed, and of each that passed
    likely          features that the minimised case needs: one of those is preferred to others that are as clear
    """
    if not failed or not passed:
        return None
    names = frozenset().union(*failed, *passed)
    always, never = frozenset.intersection(*failed), names - frozenset().union(*failed)
    wanted = frozenset(likely)
    found = []
    for feature in sorted(always | never):
        present = feature in always
        alike = sum((feature in case) == present for case in passed)
        chance = comb(len(failed) + alike, len(failed)) / comb(len(failed) + len(passed), len(failed))
        if chance * 2 * len(names) < CHANCE:
            one = Contrast(feature, present, len(failed), alike, len(passed) - alike)
            found.append((feature not in wanted, chance, not present, one))
    return min(found, key=lambda row: row[:3])[3] if found else None
