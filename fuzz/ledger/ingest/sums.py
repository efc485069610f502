"""Sums over a session's cases: outcomes, seconds by phase, pairs of features; thousands of rows, not millions."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from fuzz.ledger.tables.rows import FAILING, CoverageRow, TallyRow, TimingRow
from fuzz.session.records import Record

_RAN = FAILING | {"pass"}


def spent(record: Record) -> float:
    """Seconds from drawing a case to its verdict."""
    return record.seconds.get("total", 0.0) + record.seconds.get("draw", 0.0)


class Sums:
    """Sums of the records that were added so far."""

    def __init__(self) -> None:
        self._cases: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._phases: dict[tuple[str, str], array[float]] = {}
        self._features: dict[str, int] = {}
        self._together = np.zeros((2, 0, 0), np.int64)  # of all that ran, of those that failed

    def add(self, records: Sequence[Record]) -> None:
        """Adds cases, each of them once."""
        for record in records:
            key = (record.target, record.outcome)
            self._cases[key] += 1
            self._seconds[key] += spent(record)
            for phase, seconds in record.seconds.items():
                self._phases.setdefault((record.target, phase), array("d")).append(seconds)
        self._add_features([record for record in records if record.outcome in _RAN])

    def tallies(self) -> tuple[TallyRow, ...]:
        """Cases and seconds by target and outcome."""
        return tuple(TallyRow(*key, cases, self._seconds[key]) for key, cases in sorted(self._cases.items()))

    def timings(self) -> tuple[TimingRow, ...]:
        """Seconds by target and phase."""
        found = []
        for (target, phase), seconds in sorted(self._phases.items()):
            p50, p95 = np.percentile(seconds, [50, 95])
            found.append(TimingRow(target, phase, len(seconds), sum(seconds), float(p50), float(p95), max(seconds)))
        return tuple(found)

    def coverage(self) -> tuple[CoverageRow, ...]:
        """Features and pairs of features that were covered."""
        names = list(self._features)
        ran, failed = self._together
        return tuple(
            CoverageRow(names[i], names[j], int(ran[i, j]), int(failed[i, j]))
            for i, j in zip(*np.nonzero(np.triu(ran)), strict=True)
        )

    def _add_features(self, records: Sequence[Record]) -> None:
        for record in records:
            for name in record.features:
                self._features.setdefault(name, len(self._features))
        count = len(self._features)
        if count > self._together.shape[1]:
            grown = np.zeros((2, count, count), np.int64)
            before = self._together.shape[1]
            grown[:, :before, :before] = self._together
            self._together = grown
        for number, some in enumerate((records, [record for record in records if record.outcome in FAILING])):
            has = self._matrix(record.features for record in some)
            self._together[number] += (has.T @ has).astype(np.int64)

    def _matrix(self, each: Iterable[Sequence[str]]) -> np.ndarray:
        """One row for each case, one column for each feature: 1 where the case has it."""
        rows = list(each)
        found = np.zeros((len(rows), len(self._features)), np.float32)  # counts below 2**24 are exact
        for row, features in zip(found, rows, strict=True):
            row[[self._features[name] for name in features]] = 1
        return found
