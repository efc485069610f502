"""Deadline: follows one case by the clock, from outside, until the child answers, dies, outgrows its memory or hangs.

Suspicion and confirmation are told apart: at a phase's limit the case is only suspected; stacks are taken without
pausing the child, and it is left running. It is called hung at `confirm` times the limit; what ends in between was
slow. Time in which the machine gave the child no CPU does not count: a loaded machine must not invent hangs
(docs/explanation/hangs.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias

from fuzz.runner import proc_stats
from fuzz.runner.limits import Limits
from fuzz.runner.process import Child
from fuzz.runner.stack_dump import Sampler, Stacks
from fuzz.runner.wire import Answer, Entered, Failed, Gone, Observed, Refused

BEGIN = "begin"  # the case was sent, and the child has said nothing yet
LOAD = "load"  # the child imports the target
_BEGIN_SECONDS = 3.0


@dataclass(frozen=True)
class Slow:
    """A phase that took longer than its limit and ended all the same."""

    phase: str
    limit: float
    seconds: float


@dataclass(frozen=True)
class Trail:
    """Progress of a case: the last phase with its limit and time so far, all phases' seconds, and which were slow."""

    phase: str
    limit: float
    elapsed: float
    seconds: dict[str, float]
    slow: tuple[Slow, ...]


@dataclass(frozen=True)
class Replied:
    """The child has answered."""

    message: Answer | Refused | Failed
    trail: Trail


@dataclass(frozen=True)
class Died:
    """The child has ended, or speaks no more."""

    trail: Trail
    trouble: str


@dataclass(frozen=True)
class Grown:
    """The child holds more memory than it may."""

    trail: Trail
    resident: int
    cap: int


@dataclass(frozen=True)
class Hung:
    """Confirmed. `cpu_share`: CPU seconds per second between suspicion and confirmation (0 asleep, 1 spinning).
    `seen`: what the child itself saw of its device (device_probe.py)."""

    trail: Trail
    stacks: Stacks
    later: Stacks
    cpu_share: float
    resident: int
    seen: dict[str, Any]


Ended: TypeAlias = Replied | Died | Grown | Hung


@dataclass(frozen=True)
class _Suspicion:
    since: float
    cpu: float
    sampler: Sampler


class Deadline:
    """One case in one child.

    cap         resident bytes that the child may hold
    allowed     a phase's limit from its name and what the judge announced
    ended       called with a phase's name, what the judge announced for it, and the seconds that it took
    suspected   called once per suspicion; must return at once
    confirmed   called when the second look begins, before the child is paused for it
    """

    def __init__(
        self,
        child: Child,
        limits: Limits,
        cap: int,
        allowed: Callable[[str, float], float],
        ended: Callable[[str, float, float], None],
        suspected: Callable[[], None],
        confirmed: Callable[[], None],
    ) -> None:
        self._child, self._limits = child, limits
        self._allowed, self._on_ended = allowed, ended
        self._on_suspected, self._on_confirmed = suspected, confirmed
        self._cap = cap
        self._seconds: dict[str, float] = {}
        self._slow: list[Slow] = []
        self._phase, self._limit, self._began = BEGIN, _BEGIN_SECONDS, monotonic()
        self._announced = _BEGIN_SECONDS
        self._starved: float | None = None
        self._seen: dict[str, Any] = {}
        self._suspicion: _Suspicion | None = None

    def follow(self) -> Ended:
        """Blocks until the case has ended, one way or another. Does not kill."""
        try:
            while True:
                ended = self._receive(self._patience()) or self._look()
                if ended is not None:
                    return ended
        finally:
            self._forget()

    def _receive(self, seconds: float) -> Ended | None:
        """Takes messages until one ends the case or none comes for `seconds`."""
        try:
            while (message := self._child.connection.receive(seconds)) is not None:
                if isinstance(message, Observed):
                    self._seen = message.evidence | {"looks": int(self._seen.get("looks", 0)) + 1}
                    seconds = self._patience()
                    continue
                self._leave()
                if not isinstance(message, Entered):
                    return Replied(message, self._trail(0.0))
                self._phase, self._announced = message.phase, message.limit
                self._limit = self._allowed(message.phase, message.limit)
                seconds = self._patience()
        except Gone as gone:
            return Died(self._trail(), str(gone))
        return None

    def _look(self) -> Ended | None:
        """One look from outside, after a while without a message."""
        if self._child.exited():
            return self._receive(0.0) or Died(self._trail(), "")
        resident = proc_stats.resident(self._child.pid)
        if resident > self._cap:
            return Grown(self._trail(), resident, self._cap)
        self._child.zygote.forget_output(self._limits.spill)
        if self._suspicion is None and self._spent() > self._limit:
            self._suspect()
        elif self._suspicion is not None and self._spent() > self._limit * self._limits.confirm:
            return self._confirm(self._suspicion)
        return None

    def _suspect(self) -> None:
        pid = self._child.pid
        self._suspicion = _Suspicion(
            monotonic(), proc_stats.cpu_seconds(pid), Sampler(self._child, self._limits, gently=True)
        )
        self._on_suspected()

    def _confirm(self, suspicion: _Suspicion) -> Ended | None:
        share = (proc_stats.cpu_seconds(self._child.pid) - suspicion.cpu) / (monotonic() - suspicion.since)
        trail = self._trail()
        self._on_confirmed()
        stacks = suspicion.sampler.take()
        later = Sampler(self._child, self._limits, gently=False).take()
        resident = proc_stats.resident(self._child.pid)
        if (ended := self._receive(0.0)) is not None:
            return ended
        if self._suspicion is not suspicion:  # the phase has ended while it was looked at, which takes a while
            return None
        return Hung(trail, stacks, later, round(share, 2), resident, self._seen)

    def _leave(self) -> None:
        """The phase has ended; where it was suspected, it was slow."""
        now = monotonic()
        spent = now - self._began
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + spent
        self._on_ended(self._phase, self._announced, spent)
        if self._suspicion is not None:
            self._slow.append(Slow(self._phase, self._limit, spent))
            self._forget()
        self._seen = {}
        self._began, self._starved = now, None

    def _forget(self) -> None:
        if self._suspicion is not None:
            self._suspicion.sampler.cancel()
            self._suspicion = None

    def _spent(self) -> float:
        """Seconds of the phase, without those in which the child waited for a CPU (as far as patience goes)."""
        starved = proc_stats.starved_seconds(self._child.pid)
        self._starved = starved if self._starved is None else self._starved
        most = self._limits.patience * self._limit
        return monotonic() - self._began - min(starved - self._starved, most)

    def _patience(self) -> float:
        """Seconds to wait for a message before the next look."""
        factor = self._limits.confirm if self._suspicion is not None else 1.0
        left = self._began + factor * self._limit - monotonic()
        return min(self._limits.tick, max(left, 0.002))

    def _trail(self, elapsed: float | None = None) -> Trail:
        spent = monotonic() - self._began if elapsed is None else elapsed
        return Trail(self._phase, self._limit, spent, dict(self._seconds), tuple(self._slow))
