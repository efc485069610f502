"""The search: walks the passes, probes candidates, keeps the smallest Case that fails as the first one did.

Contracts:
    the result has been seen to fail, in the same way (`signature.same_failure`), in this call or in the verdict given;
    a case that does not fail comes back as it is, with the verdict that says so and stopped = 'passes'
    a candidate never has a switch (`features.switches`) that the case at hand has not, but for a mask written out as
    tokens; the signature leaves the kind of such a mask out, so that it explains the raw failure
    equal candidates are probed once; the same probe answers give the same result
    Ctrl-C, the last run and the last second end the search with the best so far
A failure that does not show in every probe is searched with several tries per candidate, after more repeats within one
probe were tried, which cost less; and it is given up on where it shows in fewer than FLOOR of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from fuzz.core.case import Case, normal
from fuzz.core.features import MASK_KINDS, switches
from fuzz.core.signature import Signature, same_failure, signature, typed
from fuzz.core.verdict import Verdict
from fuzz.minimize.edits import replace
from fuzz.minimize.kinds import Row
from fuzz.minimize.masks import written_out
from fuzz.minimize.passes import PASSES
from fuzz.minimize.rate import FLOOR, MOST_TRIES, tries
from fuzz.minimize.result import Minimized, Step, Stopped
from fuzz.minimize.shape import other_shapes
from oracles.masks import Tokens

Probe: TypeAlias = Callable[[Case], Verdict]

HANG_SECONDS = 120.0  # default for a hang, which costs its deadline and a new process each time that it is seen
SIGHTINGS = 3  # probes of an early case, to see whether it fails every time
MEASURED = 5  # probes of the final case, to say how often it fails
MEASURED_FLAKY = 12
MORE_REPEATS = 8
MOST_REPEATS = 64
WRITTEN_OUT = frozenset({"tokens"})  # what writing a mask out adds: its kind is no part of a signature


def minimize(
    case: Case,
    probe: Probe,
    *,
    verdict: Verdict | None = None,
    allowed: Callable[[Case], bool] | None = None,
    max_runs: int = 60,
    max_seconds: float | None = None,
    progress: Callable[[Step], None] | None = None,
    passes: tuple[Row, ...] = PASSES,
    clock: Callable[[], float] = time.monotonic,
) -> Minimized:
    """Reduces `case` to the smallest found that fails in the same way, in at most `max_runs` calls of `probe`.

    probe        run_case: gives the verdict of a Case; it may return a hang after seconds, or raise KeyboardInterrupt
    verdict      the one that `probe` has already given for `case`, if any; saves the first run
    allowed      which cases the target takes; candidates that it refuses are not probed
    max_seconds  None: no limit, but HANG_SECONDS for a hang. A probe that is under way is not cut short
    progress     called after every accepted step
    Raises ValueError when the limits leave no run, KeyboardInterrupt before `case` has been seen to fail, and what
    `probe` raises.
    """
    search = _Search(normal(case), probe, allowed, max_runs, max_seconds, progress, clock)
    try:
        search.start(verdict)
        search.walk(passes)
        if search.turns_out_flaky():
            search.walk(passes)
    except _Stop as stop:
        search.stopped = stop.why
        if search.verdict is None and stop.why != "passes":
            raise ValueError("max_runs, max_seconds: leave no run to see the case fail; give its verdict") from None
    except KeyboardInterrupt:
        if search.verdict is None:
            raise
        search.stopped = "interrupted"
    return search.finish()


class _Stop(Exception):
    def __init__(self, why: Stopped) -> None:
        self.why = why


class _Search:
    """One call of `minimize`: the case at hand, what was probed, what was spent."""

    def __init__(self, case, probe, allowed, max_runs, max_seconds, progress, clock) -> None:
        self.case: Case = case
        self.verdict: Verdict | None = None
        self._last: Verdict | None = None
        self.first: Verdict | None = None  # what 'the same failure' is compared with
        self.stopped: Stopped = "done"
        self.runs = 0
        self.steps: list[Step] = []
        self._probe, self._progress, self._clock = probe, progress, clock
        # A case that is refused itself was asked for its refusal, and so are its candidates.
        self._allowed = allowed if allowed is None or allowed(case) else None
        self._max_runs, self._max_seconds = max_runs, max_seconds
        self._limit = max_runs
        self._started = clock()
        self._tries = 1
        self._sighted = False
        self._patient = False  # more repeats than usual are needed to see the failure
        self._counts: dict[str, tuple[int, int]] = {}  # case id -> failed, probed
        self._path: list[tuple[Case, Verdict]] = []
        self._others: dict[Signature, tuple[Case, Verdict]] = {}

    def start(self, verdict: Verdict | None) -> None:
        """Sees the case fail, and finds out how often it does."""
        if verdict is not None and verdict.bad:
            self._fails(verdict)
            self._counts[self.case.id] = (1, 1)
        for _ in range(MOST_TRIES):
            if self.verdict is not None:
                break
            self._see(self.case)
        if self.verdict is None:
            raise _Stop("passes")
        hang = self.verdict.outcome == "hang"
        self._limit = self._max_runs - min(0 if hang else MEASURED, self._max_runs // 10)
        if self._max_seconds is None and hang:
            self._max_seconds = HANG_SECONDS
        if self.verdict.outcome == "flake":
            self._sight()

    def walk(self, passes: tuple[Row, ...]) -> None:
        """Runs all passes until a whole round accepts nothing.

        Flakiness is measured after the first pass, on a case that is smaller and faster by then.
        """
        again = True
        while again:
            before, again = self.case, False
            for row in passes:
                self._with_results(row) if row.gets_results else self._restarted(row)
                again |= self._sight()
            again |= self.case != before

    def turns_out_flaky(self) -> bool:
        """True if the smallest case fails only now and then, unnoticed so far; then no rejection counts any more."""
        assert self.verdict is not None
        if self._tries > 1 or self._patient or self.verdict.outcome == "hang":
            return False
        self._measure()
        if self._rate() == 1:
            return False
        self._prepare_for_flakiness()
        return True

    def finish(self) -> Minimized:
        """Measures how often the smallest case fails, goes back to a larger one where that is too seldom."""
        needs: frozenset[str] = frozenset()
        try:
            if self.first is None:
                self.verdict = self._last
            elif self.stopped != "interrupted":
                self._limit = self._max_runs
                self._measure()
                while self._rate() < FLOOR and len(self._path) > 1:
                    self._path.pop()
                    self.steps.pop()
                    self.case, self.verdict = self._path[-1]
                    self._measure()
                if self.stopped == "unreproducible" and self._rate() >= FLOOR:
                    self.stopped = "done"
            if self.first is not None:
                needs = self._needs()
        except (_Stop, KeyboardInterrupt):
            needs = switches(self.case)
        failed, probed = self._counts.get(self.case.id, (0, 0))
        assert self.verdict is not None
        return Minimized(
            case=self.case,
            verdict=self.verdict,
            runs=self.runs,
            seconds=self._seconds(),
            steps=tuple(self.steps),
            failed=failed,
            probed=probed,
            needs=needs,
            others=tuple(self._others.values()),
            stopped=self.stopped,
        )

    def _restarted(self, row: Row) -> None:
        again = True
        while again:
            again = any(self._attempt(row.name, candidate) for candidate in row.run(self.case))

    def _with_results(self, row: Row) -> None:
        attempts = row.run(self.case)
        answer: bool | None = None
        while True:
            try:
                candidate = attempts.send(answer)  # type: ignore[attr-defined, union-attr]
            except StopIteration:
                return
            answer = self._attempt(row.name, candidate)

    def _attempt(self, name: str, candidate: Case | None) -> bool:
        """Probes a candidate, and accepts it where it fails as the first case did."""
        if candidate is None:
            return False
        candidate = normal(candidate)
        if candidate.id in self._counts or not switches(candidate) - WRITTEN_OUT <= switches(self.case):
            return False
        if self._allowed is not None and not self._allowed(candidate):
            return False
        if self._patient and candidate.repeats < self.case.repeats:
            return False
        for _ in range(self._tries):
            found = self._see(candidate)
            if found is not None:
                self.case = candidate
                self._accept(found, Step(name, candidate, self.runs, self._seconds()))
                return True
        return False

    def _see(self, case: Case) -> Verdict | None:
        """One probe; the verdict where it is the failure looked for. Raises _Stop when nothing is left to spend."""
        if self.runs >= self._limit:
            raise _Stop("runs")
        if self._max_seconds is not None and self._seconds() >= self._max_seconds:
            raise _Stop("seconds")
        self.runs += 1
        found = self._last = self._probe(case)
        same = found.bad and (self.first is None or same_failure(self.first, found))
        failed, probed = self._counts.get(case.id, (0, 0))
        self._counts[case.id] = (failed + same, probed + 1)
        if same and self.verdict is None:
            self._fails(found)
        if found.bad and not same:
            self._others.setdefault(signature(case, found, ()), (case, found))
        return found if same else None

    def _fails(self, verdict: Verdict) -> None:
        self.first = self.verdict = verdict
        self._path.append((self.case, verdict))

    def _accept(self, verdict: Verdict, step: Step) -> None:
        self.verdict = verdict
        self._path.append((step.case, verdict))
        self.steps.append(step)
        if self._progress is not None:
            self._progress(step)

    def _sight(self) -> bool:
        """Once: sees the case at hand fail a few times. Whether it turned out to be a flake."""
        assert self.verdict is not None
        if self._sighted or self.verdict.outcome == "hang":
            return False
        self._sighted = True
        while self._rate() == 1 and self._counts[self.case.id][1] < SIGHTINGS:
            self._see(self.case)
        if self._rate() == 1 and self.verdict.outcome != "flake":
            return False
        self._prepare_for_flakiness()
        return True

    def _prepare_for_flakiness(self) -> None:
        """More repeats within a probe where two such probes fail; else several tries, as many as the rate asks for.
        What was rejected so far may be tried again."""
        self._counts = {case.id: self._counts[case.id] for case, _ in self._path}
        patient = replace(self.case, repeats=min(MOST_REPEATS, self.case.repeats * MORE_REPEATS))
        may = self._allowed is None or self._allowed(patient)
        if may and patient != self.case and (found := self._see(patient)) and self._see(patient):
            self.case, self._patient = patient, True
            self._accept(found, Step("repeats", patient, self.runs, self._seconds()))
            return
        while self._counts[self.case.id][1] < MOST_TRIES + 1:
            self._see(self.case)
        if self._rate() < FLOOR:
            raise _Stop("unreproducible")
        self._tries = tries(self._rate())

    def _measure(self) -> None:
        """Probes the case at hand until it is known how often it fails."""
        assert self.verdict is not None
        if self.verdict.outcome == "hang":
            return
        failed, probed = self._counts[self.case.id]
        while probed < (MEASURED if failed == probed and self._tries == 1 else MEASURED_FLAKY):
            self._see(self.case)
            failed, probed = self._counts[self.case.id]

    def _needs(self) -> frozenset[str]:
        """The switches of the case; its 16-bit dtype only if the other one does not fail, and the mask's kind only if
        the same mask written out as tokens does not fail, or cannot be asked for. An error's shape only as far as other
        shapes do not raise it: a short length is no full tile, whether or not that matters."""
        found = switches(self.case)
        if self.stopped == "interrupted":
            return found
        mask = self.case.problem.mask
        if isinstance(mask, Tokens) or ((written := written_out(self.case)) and self._also_fails(written)):
            found -= MASK_KINDS
        assert self.verdict is not None
        other = {"float16": "bfloat16", "bfloat16": "float16"}.get(self.case.problem.dtype)
        if other is not None:
            converted = replace(self.case, problem=replace(self.case.problem, dtype=other))
            refused = self._allowed is not None and not self._allowed(converted)
            if refused or self._also_fails(converted):
                found -= {self.case.problem.dtype}
        return found - self._of_shape_alone() if typed(self.verdict) else found

    def _of_shape_alone(self) -> frozenset[str]:
        """The switches that the case has for its shape, and other shapes that fail alike have not."""
        found: frozenset[str] = frozenset()
        with suppress(_Stop):
            for alternatives in other_shapes(self.case):
                other = next(filter(self._also_fails, alternatives), self.case)
                found |= switches(self.case) - switches(other)
        return found

    def _also_fails(self, case: Case) -> bool:
        """True if a case like the one at hand, which is no smaller, fails alike."""
        if self._allowed is not None and not self._allowed(case):
            return False
        if (known := self._counts.get(case.id)) is not None:
            return bool(known[0])
        return any(self._see(case) is not None for _ in range(self._tries))

    def _rate(self) -> float:
        failed, probed = self._counts[self.case.id]
        return failed / probed

    def _seconds(self) -> float:
        return self._clock() - self._started
