"""The search: which revision is run next, how often, and when the answer is sure enough.

    measure    runs at the revision that is known to be bad say how often the failure shows
    check      clean runs at the revision that is known to be good, so many that an error is improbable
    narrow     run the revision that is expected to say most (posterior.Posterior.information), until one of them is
               the first bad one with the probability asked for, or no run is left that says anything

Each result goes to the journal before the next run, and a search begins with what the journal has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fuzz.bisect.posterior import Posterior, classes, clean_runs, posterior
from fuzz.bisect.revisions import BisectError, History, Laboratory, Result, Revision, Untestable

RELIABLE_AFTER = 5  # failures in a row at the bad revision after which its rate is not measured further
MEASURED = 20  # runs at the bad revision of a failure that shows now and then,
SHOWN = 3  # and failures among them
HIDDEN = 3  # other failures, and no clean run, after which a revision says nothing
MOST_RUNS = 500  # of one revision, where users say nothing


@dataclass
class Tried:
    """Runs of one revision so far; skipped: why it cannot be run, or ''."""

    failed: int = 0
    clean: int = 0
    other: int = 0
    skipped: str = ""

    @property
    def runs(self) -> int:
        return self.failed + self.clean + self.other

    def __str__(self) -> str:
        if self.skipped:
            return f"skipped: {self.skipped}"
        return f"failed {self.failed} of {self.runs}" + (f", otherwise {self.other}" if self.other else "")


class Journal(Protocol):
    """Where results are kept."""

    tried: dict[str, Tried]

    def add(self, name: str, result: Result) -> None:
        """One more run of a revision."""
        ...

    def skip(self, name: str, why: str) -> None:
        """A revision cannot be run."""
        ...


@dataclass(frozen=True)
class Answer:
    """Result of a search.

    first        the revisions of which one is the first bad one: more than one where those between them cannot be run
    probability  that this is right
    confident    whether it is at least the one asked for
    failed, runs at the bad revision: the rate at which the failure shows
    per_revision clean runs after which a revision was left alone
    """

    first: tuple[Revision, ...]
    probability: float
    confident: bool
    failed: int
    runs: int
    per_revision: int


def search(
    history: History,
    laboratory: Laboratory,
    journal: Journal,
    *,
    confidence: float = 0.99,
    most_runs: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Answer:
    """The first bad revision. most_runs: of one revision; 0: as many as the measured rate asks for, at most MOST_RUNS.

    Raises BisectError where the failure does not show at the bad revision, shows at the good one, or no revision
    explains where it shows.
    """
    one = _Search(history, laboratory, journal, confidence, most_runs or MOST_RUNS, say)
    one.measure()
    one.check()
    return one.narrow()


class _Search:
    def __init__(
        self,
        history: History,
        laboratory: Laboratory,
        journal: Journal,
        confidence: float,
        most_runs: int,
        say: Callable[[str], None],
    ) -> None:
        self.history = history
        self.laboratory = laboratory
        self.journal = journal
        self.confidence = confidence
        self.most_runs = most_runs
        self.say = say

    def measure(self) -> None:
        """Runs the bad revision RELIABLE_AFTER times; if some of these are clean MEASURED times, and until the failure
        has shown SHOWN times; `most_runs` at most."""
        last = self.history.revisions[-1]

        def enough(tried: Tried) -> bool:
            if tried.failed == tried.runs:
                return tried.runs >= min(RELIABLE_AFTER, self.most_runs)
            return tried.runs >= (min(MEASURED, self.most_runs) if tried.failed >= SHOWN else self.most_runs)

        tried = self._run(last, enough)
        if tried.skipped:
            raise BisectError(f"--bad {last}: cannot be run: {tried.skipped}")
        if not tried.failed:
            also = f"; {tried.other} failed otherwise (--any-failure counts these)" if tried.other else ""
            raise BisectError(f"--bad {last}: does not fail in {tried.runs} runs{also}")

    def check(self) -> None:
        """Runs the good revision as often as its error asks for."""
        good, runs = self.history.good, self.per_revision()
        tried = self._run(good, lambda tried: tried.failed > 0 or tried.runs >= runs)
        if tried.skipped:
            self.say(f"--good {good} cannot be run, and is taken for good: {tried.skipped}")
        elif tried.failed:
            raise BisectError(f"--good {good}: fails already, in {tried.failed} of {tried.runs} runs")

    def narrow(self) -> Answer:
        """Runs revisions until the answer is sure enough."""
        while True:
            known = self._posterior()
            answer = self._answer(known)
            chosen = None if answer.confident else self._next(known)
            if chosen is None:
                return answer
            revision = self.history.revisions[chosen]
            self.say(
                f"{self._left(known)} suspects; next {revision}, bad with probability {known.is_bad()[chosen]:.2f}"
            )
            self._look(revision, min(self._tried(revision).runs + self.per_revision(), self.most_runs))

    def _look(self, revision: Revision, limit: int) -> None:
        """Runs a revision until the failure shows, `limit` runs have been clean, or others stand before it."""

        def enough(tried: Tried) -> bool:
            hidden = tried.other >= HIDDEN and not tried.clean
            return tried.failed > 0 or hidden or tried.runs >= limit

        self._run(revision, enough)

    def per_revision(self) -> int:
        """Clean runs of one revision, of which all would be clean if it were bad with probability (1 - confidence) / 2
        at most; at most `most_runs`."""
        tried = self._tried(self.history.revisions[-1])
        return clean_runs(tried.failed, tried.clean, (1 - self.confidence) / 2, self.most_runs)

    def _run(self, revision: Revision, enough: Callable[[Tried], bool]) -> Tried:
        """Runs a revision until it is enough, or it turns out that it cannot be run."""
        if self._tried(revision).skipped or enough(self._tried(revision)):
            return self._tried(revision)
        try:
            with self.laboratory.at(revision) as run:
                while not enough(self._tried(revision)):
                    self.journal.add(revision.name, run())
        except Untestable as error:
            if self._tried(revision).runs == 0:
                self.journal.skip(revision.name, str(error))
            else:
                raise BisectError(f"{revision}: ran before, and cannot be run again: {error}") from error
        self.say(f"    {revision}: {self._tried(revision)}")
        return self._tried(revision)

    def _tried(self, revision: Revision) -> Tried:
        return self.journal.tried.get(revision.name, Tried())

    def _posterior(self) -> Posterior:
        tried = [self._tried(revision) for revision in self.history.revisions]
        failed, clean = (np.array([getattr(one, name) for one in tried]) for name in ("failed", "clean"))
        try:
            return posterior(self.history.bad, failed, clean)
        except ValueError as error:
            raise BisectError(str(error)) from error

    def _next(self, known: Posterior) -> int | None:
        """The number of the revision that is expected to say most; None: none says anything."""
        worth = known.information()
        for number, revision in enumerate(self.history.revisions):
            tried = self._tried(revision)
            if tried.skipped or tried.failed or tried.runs >= self.most_runs or self._fails_otherwise(revision):
                worth[number] = 0.0
        best = int(worth.argmax())
        return best if worth[best] > 1e-9 else None

    def _answer(self, known: Posterior) -> Answer:
        testable = np.array(
            [not self._tried(one).skipped and not self._fails_otherwise(one) for one in self.history.revisions]
        )
        groups = classes(self.history.bad, testable)
        sums = [float(known.first[group].sum()) for group in groups]
        best = int(np.argmax(sums))
        tried = self._tried(self.history.revisions[-1])
        return Answer(
            first=tuple(self.history.revisions[number] for number in groups[best]),
            probability=min(sums[best], 1.0),
            confident=sums[best] >= self.confidence,
            failed=tried.failed,
            runs=tried.runs,
            per_revision=self.per_revision(),
        )

    def _fails_otherwise(self, revision: Revision) -> bool:
        """True if another failure may hide the one that is looked for: then a revision says nothing."""
        tried = self._tried(revision)
        return tried.other > 0 and not tried.failed and not tried.clean

    def _left(self, known: Posterior) -> int:
        return int((known.first > (1 - self.confidence) / len(known.first)).sum())
