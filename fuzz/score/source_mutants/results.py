"""Values between processes: a source mutant, its result, and the score of many."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

Status: TypeAlias = Literal["found", "stillborn", "missed", "not_reached", "fault"]


class SourceMutant(msgspec.Struct, frozen=True):
    """One changed line.

    file       path in the repository
    operator   of operators.OPERATORS
    line       number of the line, from 1
    start, stop  columns of what is changed, in characters
    before     the line as it is, without indentation
    after      the text that stands between `start` and `stop`
    statement  line, last line and column of the statement that the change is in, for the probe that says whether a
               session comes to it
    """

    file: str
    operator: str
    line: int
    start: int
    stop: int
    before: str
    after: str
    statement: tuple[int, int, int]

    @property
    def id(self) -> str:
        """Eight hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:8]

    @property
    def package(self) -> str:
        """Folder of the file below kernels/, two levels at most."""
        parts = self.file.split("/")[1:-1]
        return "/".join(parts[:2])


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a mutant.

    status   found: by a case of its session; stillborn: the package cannot be imported, or a target not be made of it;
             missed: by none of the cases; not_reached: as missed, and no case comes to the changed line; fault: the
             harness itself failed
    cases    position of the case that found it; else of the cases that were run
    by       outcome, oracle and kind of the first finding
    probed   whether a second session has shown if a case comes to the line; what was missed may be unreached without
    """

    id: str
    mutant: SourceMutant
    status: Status
    cases: int = 0
    by: str = ""
    message: str = ""
    seconds: float = 0.0
    probed: bool = False


class SourceScore(msgspec.Struct, frozen=True):
    """The score of mutants drawn with `seed`, in sessions of `cases` cases.

    rate          found / (found + missed); stillborn ones, those never reached and faults are left out
    median_cases  up to the finding, over the mutants found
    seconds       of all mutants together
    survivors     the results of those that were missed, never reached, or ended in a fault
    """

    count: int
    seed: int
    cases: int
    target: str
    statuses: dict[str, int]
    rate: float
    median_cases: float
    worst_cases: int
    seconds: float
    operators: dict[str, dict[str, int]]
    packages: dict[str, dict[str, int]]
    checks: dict[str, int]
    survivors: tuple[Result, ...]


def score(results: list[Result], *, seed: int, cases: int, target: str) -> SourceScore:
    """The score of these results."""
    statuses = Counter(one.status for one in results)
    found = [one for one in results if one.status == "found"]
    positions = [one.cases for one in found] or [0]
    return SourceScore(
        len(results),
        seed,
        cases,
        target,
        {str(name): number for name, number in statuses.items()},
        round(len(found) / max(len(found) + statuses["missed"], 1), 4),
        statistics.median(positions),
        max(positions),
        round(sum(one.seconds for one in results), 1),
        _by(results, lambda one: one.mutant.operator),
        _by(results, lambda one: one.mutant.package),
        dict(Counter(one.by for one in found).most_common()),
        tuple(one for one in results if one.status not in ("found", "stillborn")),
    )


def _by(results: list[Result], key: Callable[[Result], str]) -> dict[str, dict[str, int]]:
    names = sorted({key(one) for one in results})
    return {name: dict(Counter(one.status for one in results if key(one) == name)) for name in names}
