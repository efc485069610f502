"""Values between processes: a PTX mutant, its result, and the score of many."""

from __future__ import annotations

import hashlib
import statistics
from typing import Literal, TypeAlias

import msgspec

Status: TypeAlias = Literal["found", "missed", "equivalent", "not_reached"]


class PtxMutant(msgspec.Struct, frozen=True, omit_defaults=True):
    """One changed instruction: its kernel, the text before and the text after.

    config  one of its target's; with `kind` (forward, backward, …) it names the kernel (targets.py)
    line    of the PTX, where the instruction begins; it has `span` lines
    """

    config: str
    kind: str
    operator: str
    line: int
    before: str
    after: str
    span: int = 1
    target: str = "blocksparse"

    @property
    def id(self) -> str:
        """Eight hexadecimal digits. They depend on what the compiler made of the kernel."""
        # fields that differ from their defaults: msgspec's omit_defaults keeps a default that another process sent
        given = {
            field.name: value
            for field in msgspec.structs.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        return hashlib.sha256(msgspec.json.encode(given)).hexdigest()[:8]


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a mutant.

    status    found: by one of the listed cases; missed: by none of them; equivalent: missed, and it is argued why
              nothing could find it; not_reached: no case came to the instruction
    by        oracle and kind of the first finding, such as 'emulator:race_two_writes' or 'accuracy:budget'
    cases     how many of the list there were up to the one that found it, with those that never come to the instruction
    runs      how many of these were run, because they come to the instruction
    reaching  cases of the list that come to the instruction
    changed   of a missed mutant, in how many of these a launch of its kernel came out otherwise, or was not recorded
    alone     of these, cases that make block lists alone and compare every entry of them
    looked    whether a mutant that the list missed was looked at more closely: the fields that follow
    late      the position of the case that found what the list had missed, among those that follow it; 0: none
    same_values   over the wider list: the changed instruction gave the same value (took the same branch) each time
    same_bits     over the wider list: all answers were the same to the bit, and nothing was found
    rule      why it is equivalent: a rule that was checked, or `argued` with the argument
    """

    id: str
    bug: PtxMutant
    status: Status
    by: str = ""
    message: str = ""
    case_id: str = ""
    cases: int = 0
    runs: int = 0
    reaching: int = 0
    changed: int | None = None
    alone: int = 0
    seconds: float = 0.0
    looked: bool = False
    late: int = 0
    same_values: bool | None = None
    same_bits: bool | None = None
    rule: str = ""
    argument: str = ""


class Share(msgspec.Struct, frozen=True):
    """Counts of one operator, or of one check."""

    name: str
    bugs: int
    found: int
    equivalent: int
    missed: int
    not_reached: int


class PtxScore(msgspec.Struct, frozen=True):
    """The score of `count` mutants drawn with `seed`.

    rate       found / (found + missed): the equivalent ones, and those that no case comes to, are left out
    late       how many of those that the list missed, or never came to, were found by the cases that follow it
    late_rate  the share found by the list or by those, of all but the equivalent and those never reached
    cases    median and worst number of cases up to the finding, over the mutants found
    seconds  of all mutants together, and the median of a mutant
    clean_failures  cases that the unchanged kernels fail: they were left out
    """

    count: int
    seed: int
    found: int
    missed: int
    equivalent: int
    not_reached: int
    rate: float
    late: int
    late_rate: float
    median_cases: float
    worst_cases: int
    seconds: float
    median_seconds: float
    operators: tuple[Share, ...]
    kinds: tuple[Share, ...]
    checks: dict[str, int]
    survivors: tuple[Result, ...]
    clean_failures: tuple[str, ...] = ()


def score(results: list[Result], count: int, seed: int, clean_failures: tuple[str, ...] = ()) -> PtxScore:
    """The score of these results; `count`: how many were asked for."""
    found = [one for one in results if one.status == "found"]
    missed = sum(one.status == "missed" for one in results)
    late = [one.status for one in results if one.late]
    real = len(found) + missed + late.count("not_reached")
    checks: dict[str, int] = {}
    for one in found:
        checks[one.by] = checks.get(one.by, 0) + 1
    return PtxScore(
        count,
        seed,
        len(found),
        missed,
        sum(one.status == "equivalent" for one in results),
        sum(one.status == "not_reached" for one in results),
        round(len(found) / max(len(found) + missed, 1), 4),
        len(late),
        round((len(found) + len(late)) / max(real, 1), 4),
        statistics.median([one.cases for one in found] or [0]),
        max([one.cases for one in found], default=0),
        round(sum(one.seconds for one in results), 1),
        round(statistics.median([one.seconds for one in results] or [0.0]), 2),
        _shares(results, "operator"),
        _shares(results, "kind"),
        dict(sorted(checks.items(), key=lambda item: -item[1])),
        tuple(one for one in results if one.status != "found"),
        clean_failures,
    )


def _shares(results: list[Result], field: str) -> tuple[Share, ...]:
    def name_of(one: Result) -> str:
        return str(getattr(one.bug, field)).partition(".")[0]  # a kind without its number

    names = dict.fromkeys(map(name_of, results))
    counted = []
    for name in names:
        mine = [one.status for one in results if name_of(one) == name]
        counts = [mine.count(status) for status in ("found", "equivalent", "missed", "not_reached")]
        counted.append(Share(name, len(mine), *counts))
    return tuple(counted)
