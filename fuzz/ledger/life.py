"""The life of a signature, as a function of its history alone.

new        failed for the first time in the newest night
open       fails, every time
flaky      fails in k of n runs on one arch
expected   somebody said that it fails, why, on which archs, and until when; or a case of the corpus explains it
fixed      its saved case passed often enough, on every arch that it failed on, after its last failure
regressed  failed again after it was fixed

Of several the first of: fixed, expected, regressed, new, flaky, open. A fix ends what was expected before it.
Only replays of the saved case count as passes: a session that does not meet a failure may not have looked for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from fuzz.ledger.errors import LedgerError
from fuzz.ledger.rate import Rate

State: TypeAlias = Literal["new", "open", "flaky", "expected", "fixed", "regressed"]
STATES: tuple[State, ...] = ("regressed", "new", "open", "flaky", "expected", "fixed")  # as a report lists them
_RANGE = re.compile(r"(\D*?)(\d+)[a-z]?\.\.(\D*?)(\d+)[a-z]?")
_NONE = Rate(0, 0)
_ARCH = re.compile(r"(\D*)(\d+)[a-z]?")


@dataclass(frozen=True)
class Seen:
    """A session met it: its saved case failed in `failed` of `runs` runs. known: a case of the corpus explains it."""

    at: float
    night: str
    arch: str
    failed: int = 1
    runs: int = 1
    known: bool = False
    link: str = ""


@dataclass(frozen=True)
class Replayed:
    """The saved case was run again: `failed` of `runs` runs failed."""

    at: float
    arch: str
    failed: int
    runs: int


@dataclass(frozen=True)
class Expected:
    """Somebody said that it is known to fail. archs: names, patterns or ranges (see `covers`), empty: all. until: the
    last day, ISO; '': for good."""

    at: float
    link: str
    archs: tuple[str, ...] = ()
    until: str = ""


@dataclass(frozen=True)
class Unexpected:
    """Somebody took that back."""

    at: float


Step: TypeAlias = Seen | Replayed | Expected | Unexpected


@dataclass(frozen=True)
class Life:
    """Where a signature stands.

    since         time at which it came into this state, as far as its history says; of 'new' its first failure
    first, last   times of its first and its last failure, of all its history
    rates         of its saved case, by arch that it failed on since it was opened (again): from its first failure there
                  to its last one
    passes        by arch: runs of the saved case in a row that passed, after the last failure on any of them
    passes_needed on each of those archs, until it is fixed
    link, until   of 'expected'
    fixes         times at which it was fixed
    """

    state: State
    since: float
    first: float
    last: float
    rates: dict[str, Rate]
    passes: dict[str, int] = field(default_factory=dict)
    passes_needed: int = 0
    link: str = ""
    until: str = ""
    fixes: tuple[float, ...] = ()

    @property
    def archs(self) -> tuple[str, ...]:
        """The archs that it failed on since it was opened (again)."""
        return tuple(self.rates)

    @property
    def rate(self) -> Rate:
        """Rate over these archs together."""
        return Rate(sum(rate.failed for rate in self.rates.values()), sum(rate.runs for rate in self.rates.values()))

    @property
    def flaky(self) -> bool:
        """True if on one arch some runs fail and some pass, whatever the state."""
        return any(rate.flaky for rate in self.rates.values())

    @property
    def failing(self) -> bool:
        """True if a report has to tell of it."""
        return self.state not in ("expected", "fixed")


def life(history: Iterable[Step], now: float, newest: str) -> Life:
    """The life of a signature.

    history  in any order; steps of one time count in the order given
    now      decides which expectations have expired; seconds of the epoch
    newest   the newest night of the ledger
    Raises ValueError for a history without a failure.
    """
    walk = _Walk()
    for step in sorted(history, key=lambda step: step.at):
        walk.take(step)
    if walk.first is None:
        raise ValueError("history: has no failure")
    return walk.end(now, newest)


def covers(archs: Sequence[str], arch: str) -> bool:
    """True if one of `archs` is this arch: its name, a pattern ('emulated-*'), or a range of numbers ('sm_90..sm_103',
    which has 'sm_90', 'sm_90a' and 'sm_100a'). Empty: every arch."""
    return not archs or any(fnmatchcase(arch, one) or _in_range(one, arch) for one in archs)


def check_arch(one: str) -> None:
    """Raises LedgerError for a range that is none: 'sm_90..'."""
    if ".." in one and _RANGE.fullmatch(one) is None:
        raise LedgerError(f"--arch: {one}: a range is 'sm_90..sm_103'")


def _in_range(one: str, arch: str) -> bool:
    ends, this = _RANGE.fullmatch(one), _ARCH.fullmatch(arch)
    if ends is None or this is None or ends[1] != this[1] or ends[3] not in ("", ends[1]):
        return False
    return int(ends[2]) <= int(this[2]) <= int(ends[4])


@dataclass
class _Walk:
    """A signature's history so far: of the time since it was opened (again), and what holds for all of it."""

    first: Seen | Replayed | None = None
    last: float = 0.0
    opened: float = 0.0
    rates: dict[str, Rate] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)  # runs that passed after the arch's last failure
    passes: dict[str, int] = field(default_factory=dict)  # after the last failure on any arch
    expected: Expected | None = None
    fixes: list[float] = field(default_factory=list)
    fixed: bool = False

    def take(self, step: Step) -> None:
        match step:
            case Seen() | Replayed() if step.failed:
                self._failed(step)
            case Seen():
                pass
            case Replayed():
                self._passed(step)
            case Expected():
                self.expected = step
            case Unexpected():
                self.expected = None

    def end(self, now: float, newest: str) -> Life:
        assert self.first is not None
        found = Life(
            "open",
            self.opened,
            self.first.at,
            self.last,
            dict(self.rates),
            dict(self.passes),
            self._needed,
            fixes=tuple(self.fixes),
        )
        if self.fixed:
            return replace(found, state="fixed", since=self.fixes[-1])
        if (said := self._expected(now)) is not None:
            return replace(found, state="expected", since=said.at, link=said.link, until=said.until)
        if self.fixes:
            return replace(found, state="regressed")
        if isinstance(self.first, Seen) and self.first.night == newest:
            return replace(found, state="new")
        return replace(found, state="flaky" if found.flaky else "open")

    @property
    def _needed(self) -> int:
        return max(rate.passes_needed for rate in self.rates.values())

    def _failed(self, step: Seen | Replayed) -> None:
        if self.fixed or self.first is None:
            self.fixed, self.opened = False, step.at
            self.rates, self.passed = {}, {}
        if self.first is None:
            self.first = step
        before, passed = self.rates.get(step.arch, _NONE), self.passed.get(step.arch, 0)
        runs = before.runs + passed + max(step.runs, step.failed)
        self.rates[step.arch] = Rate(before.failed + step.failed, runs)
        self.passed[step.arch], self.last = 0, step.at
        self.passes = dict.fromkeys(self.rates, 0)
        if isinstance(step, Seen) and step.known and self.expected is None:
            self.expected = Expected(step.at, step.link)

    def _passed(self, step: Replayed) -> None:
        if self.first is None or self.fixed:
            return
        if step.arch not in self.rates:
            return
        self.passed[step.arch] += step.runs
        self.passes[step.arch] += step.runs
        if all(count >= self._needed for count in self.passes.values()):
            self.fixed, self.expected = True, None
            self.fixes.append(step.at)

    def _expected(self, now: float) -> Expected | None:
        """The event that declares it expected, where that holds today and for every arch that it failed on."""
        said = self.expected
        today = datetime.fromtimestamp(now, UTC).date().isoformat()
        if said is None or (said.until and said.until < today):
            return None
        return said if all(covers(said.archs, arch) for arch in self.rates) else None
