"""Scoreboard: how often each mutant was found and after how many cases, for each pair of a generator and a criterion.

The generators are ours and a uniform one, the criteria our oracles and those of other projects' tests. A trial that did
not find the mutant counts as one case more than it had, so that medians are not too small.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

from fuzz.score.settings import Generator, Settings
from fuzz.score.trial import OURS, Ended, Smallest
from fuzz.session.records import machine
from oracles.other_projects import CRITERIA

RULES = (OURS, *CRITERIA)
GENERATORS: tuple[Generator, ...] = ("ours", "uniform")


class Seen(msgspec.Struct, frozen=True):
    """One mutant, as one pair of generator and rule sees it. `cases` by seed: None where it was not found within
    `limits`; `seeds` and `limits` are parallel to it."""

    generator: Generator
    rule: str
    cases: tuple[int | None, ...]
    limits: tuple[int, ...]
    seeds: tuple[int, ...] = ()

    @property
    def found(self) -> int:
        """Number of trials that found it."""
        return sum(n is not None for n in self.cases)

    @property
    def counted(self) -> list[int]:
        """Cases of each trial, one more than its limit where it did not find the bug."""
        return [limit + 1 if n is None else n for n, limit in zip(self.cases, self.limits, strict=True)]


class Bug(msgspec.Struct, frozen=True, omit_defaults=True):
    """One bug. median, worst: cases until we find it, with our generator; seconds: the same, without compiling, whose
    seconds are `compiling_median`: what of it was in the cache took none."""

    name: str
    trials: int
    found: int
    median: float
    worst: int
    seconds_median: float
    seconds_worst: float
    compiling_median: float
    oracles: dict[str, int]
    seen: tuple[Seen, ...]
    message: str = ""
    smallest: Smallest | None = None
    errors: tuple[str, ...] = ()


class Scoreboard(msgspec.Struct, frozen=True):
    """A scoreboard. `alarms`: of each rule, cases that it failed without the mutation, and cases in which it was asked;
    `mutants` counts mutants that have a trial of ours, `missed` names those that no trial of ours found."""

    machine: dict[str, Any]
    settings: Settings
    mutants: int
    found: int
    median: float
    worst: int
    missed: tuple[str, ...]
    by: dict[str, dict[str, int]]
    alarms: dict[str, tuple[int, int]]
    bugs: tuple[Bug, ...]
    ptx_mutants: dict[str, Any] | None = None


def make_scoreboard(settings: Settings, ended: Iterable[Ended]) -> Scoreboard:
    """The board of everything that ended; a mutant whose trials were all cut has no row, so that what goes on looks for
    it again. Raises ValueError where there is no row."""
    by_bug: dict[str, list[Ended]] = defaultdict(list)
    everything = sorted(ended, key=lambda one: (one.trial.bug, one.trial.generator, one.trial.seed))
    for one in everything:
        by_bug[one.trial.bug].append(one)
    bugs = tuple(_bug(name, ones) for name, ones in by_bug.items() if any(one.error or _whole(one) for one in ones))
    if not bugs:
        raise ValueError("no trial has ended: nothing to show")
    return _summed(_machine(), settings, bugs, _alarms(everything))


def joined(board: Scoreboard, more: Scoreboard) -> Scoreboard:
    """Both boards as one, with the settings and the machine of `board`; `machine["added"]` lists the machines of what
    was added. Of a mutant on both, `more` counts."""
    newer = {bug.name for bug in more.bugs}
    bugs = tuple(sorted((*more.bugs, *(bug for bug in board.bugs if bug.name not in newer)), key=lambda bug: bug.name))
    alarms = {
        rule: (board.alarms[rule][0] + more.alarms[rule][0], board.alarms[rule][1] + more.alarms[rule][1])
        for rule in RULES
    }
    machine = board.machine | {"added": [*board.machine.get("added", []), more.machine]}
    made = _summed(machine, board.settings, bugs, alarms)
    return msgspec.structs.replace(made, ptx_mutants=board.ptx_mutants)


def _summed(
    machine: dict[str, Any], settings: Settings, bugs: tuple[Bug, ...], alarms: dict[str, tuple[int, int]]
) -> Scoreboard:
    """The board of these bugs."""
    ours = [bug for bug in bugs if bug.trials] or bugs  # a score that was cut short may have uniform trials alone
    return Scoreboard(
        machine=machine,
        settings=settings,
        mutants=len(ours),
        found=sum(bug.found > 0 for bug in ours),
        median=median(bug.median for bug in ours),
        worst=max(bug.worst for bug in ours),
        missed=tuple(bug.name for bug in ours if bug.trials and not bug.found),
        by={
            f"{generator}/{rule}": _counts(bugs, generator, rule) for generator in ("ours", "uniform") for rule in RULES
        },
        alarms=alarms,
        bugs=bugs,
    )


def _machine() -> dict[str, Any]:
    """`records.machine`; its command without this machine's folders."""
    found = machine()
    place = r" --(output-dir|out|plot)[ =]\S+"
    return found | {"command": re.sub(place, "", found["command"])}


def _bug(name: str, ones: Sequence[Ended]) -> Bug:
    errors = tuple(dict.fromkeys(one.error for one in ones if one.error))
    ours = _one_each_seed(one for one in ones if one.trial.generator == "ours" and _whole(one))
    cases = [one.found.get(OURS, one.run + 1) for one in ours] or [0]
    hits = [one for one in ours if OURS in one.found]
    return Bug(
        name=name,
        trials=len(ours),
        found=len(hits),
        median=median(cases),
        worst=max(cases),
        seconds_median=round(median([one.seconds for one in ours] or [0.0]), 2),
        seconds_worst=round(max([one.seconds for one in ours] or [0.0]), 2),
        compiling_median=round(median([one.compiling for one in ours] or [0.0]), 2),
        oracles=dict(Counter(one.oracle for one in hits).most_common()),
        seen=tuple(_seen(ones)),
        message=hits[0].message if hits else "",
        smallest=next((one.smallest for one in ones if one.smallest is not None), None),
        errors=errors,
    )


def _whole(one: Ended) -> bool:
    """True if a trial counts for its mutant: it ended by itself, or found the mutant before its time was up."""
    return not one.error and (not one.cut or OURS in one.found)


def _one_each_seed(ones: Iterable[Ended]) -> list[Ended]:
    """Trials by seed; of the two of a seed that other criteria judge too, which have the same cases, the one without
    them."""
    by_seed = {one.trial.seed: one for one in sorted(ones, key=lambda one: -one.trial.peers)}
    return [by_seed[seed] for seed in sorted(by_seed)]


def _seen(ones: Sequence[Ended]) -> Iterable[Seen]:
    for generator in GENERATORS:
        trials = [one for one in ones if one.trial.generator == generator and _whole(one)]
        for rule in RULES:
            asked = _one_each_seed(trials) if rule == OURS else [one for one in trials if one.trial.peers]
            if asked:
                limits = tuple(one.trial.cases if rule == OURS else one.trial.peers for one in asked)
                seeds = tuple(one.trial.seed for one in asked)
                yield Seen(generator, rule, tuple(one.found.get(rule) for one in asked), limits, seeds)


def _counts(bugs: Sequence[Bug], generator: str, rule: str) -> dict[str, int]:
    """Counts of one pair: mutants looked for, mutants found by any of its trials."""
    seen = [seen for bug in bugs for seen in bug.seen if (seen.generator, seen.rule) == (generator, rule)]
    return {"looked_for": len(seen), "found": sum(one.found > 0 for one in seen)}


def _alarms(ended: Sequence[Ended]) -> dict[str, tuple[int, int]]:
    ours = sum(len(one.alarms) for one in ended), sum(one.found.get(OURS, one.run) for one in ended)
    found = {OURS: ours}
    for rule in CRITERIA:
        found[rule] = sum(one.theirs.get(rule, 0) for one in ended), sum(one.asked.get(rule, 0) for one in ended)
    return found


def survival(scoreboard: Scoreboard, generator: str, rule: str) -> tuple[list[int], list[float]]:
    """Steps of the share of mutants not yet found: after x[i] cases it is y[i]. Each mutant counts by the share of its
    trials that have not found it; the last step is at the fewest cases that any trial was limited to."""
    seen = [s for bug in scoreboard.bugs for s in bug.seen if (s.generator, s.rule) == (generator, rule)]
    if not seen:
        return [], []
    end = min(limit for one in seen for limit in one.limits)
    x, y = [0], [1.0]
    for n in range(1, end + 1):
        left = [sum(c > n for c in one.counted) / len(one.counted) for one in seen]
        share = sum(left) / len(left)
        if share != y[-1] or n == end:
            x.append(n)
            y.append(share)
    return x, y
