"""Recording: the record of a case from its verdict; of a failure whether it is known, and whether it shows again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from fuzz.core.case import Case
from fuzz.core.features import features, ordered
from fuzz.core.signature import cause, root_summary, same_failure, signature
from fuzz.core.verdict import Verdict
from fuzz.corpus.entry import Entry
from fuzz.corpus.replay import known
from fuzz.judging.follow_up import failed_alone
from fuzz.session.book import Book
from fuzz.session.failures.confirm import runs_for
from fuzz.session.plan import Shard
from fuzz.session.records import Record
from fuzz.session.settings import Settings

WITH_BEFORE = 20  # failures of each cause whose records have the cases before them


@dataclass
class Pending:
    """A case that the child has, or whose verdict is known without it.

    index    its place among the shard's cases
    seconds  draw: from the verdict before until the child had this case; the child was idle. total: from there to its
             verdict, or until the next case was drawn, where that took longer.
    before   what the child had run before
    """

    case: Case
    index: int
    began: float
    seconds: dict[str, float]
    verdict: Verdict | None = None
    before: tuple[Case, ...] = ()


class Recording:
    """Writes the records of one worker into its book.

    corpus      the entries that explain what is known
    run, fresh  the worker's child: the verdict of a case, and a new process for the next one
    left        seconds that are left of the session; None: there is no limit
    causes      of the failures met, by the id of the raw cause
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        book: Book,
        corpus: Sequence[Entry],
        run: Callable[[Case], Verdict],
        fresh: Callable[[], None],
        left: Callable[[], float | None],
    ) -> None:
        self._settings, self._name, self._book, self._corpus = settings, name, book, corpus
        self._run, self._fresh, self._left = run, fresh, left
        self.causes: Counter[str] = Counter()

    def record(self, shard: Shard, pending: Pending, verdict: Verdict) -> Record:
        """Recorded, as it was met where it failed. Raises HarnessError."""
        case = pending.case
        if verdict.bad:
            case, verdict = self._known_alone(case, verdict)
        record = Record(
            worker=self._name,
            shard=shard.name,
            target=case.target,
            case_id=case.id,
            index=pending.index,
            outcome=verdict.outcome,
            seconds=verdict.seconds | {name: round(spent, 6) for name, spent in pending.seconds.items()},
            features=features_of(case),
            ratio=verdict.ratio,
            reason=verdict.reason,
            calls=verdict.calls,
        )
        if verdict.bad:
            record = self._met(record, case, verdict, pending.before)
        self._book.add(record)
        return record

    def _known_alone(self, case: Case, verdict: Verdict) -> tuple[Case, Verdict]:
        """The case and its verdict; or a follow-up case that failed by itself in the same run, where that is known."""
        for plainer, found in failed_alone(verdict):
            if known(signature(plainer, found), self._corpus) is not None:
                return plainer, found
        return case, verdict

    def _met(self, record: Record, case: Case, verdict: Verdict, before: tuple[Case, ...]) -> Record:
        """The record of a failure: known, or met. A hang or a crash counts where it shows again."""
        found = signature(case, verdict)
        entry = known(found, self._corpus)
        if entry is None and verdict.outcome in ("hang", "crash") and not self.causes[cause(found).id]:
            again = self._again(case, verdict)
            if again is None:
                return self._quarantined(record, case, verdict)
            verdict, found = again, signature(case, again)
            entry = known(found, self._corpus)
        key = cause(found).id
        record = msgspec.structs.replace(
            record,
            outcome=verdict.outcome,
            message=root_summary(verdict),
            signature=found,
            case=case,
            verdict=verdict,
            status="met" if entry is None else "known",
            finding="" if entry is None else entry.name,
            before=before if entry is None and self.causes[key] < WITH_BEFORE else (),
            at=time.time(),
        )
        if entry is None:
            self.causes[key] += 1
        return record

    def _again(self, case: Case, verdict: Verdict) -> Verdict | None:
        """The verdict of a hang or a crash that shows again in a fresh process; of another failure where that shows
        instead; None where none does: the process may have been suspended, or killed from outside."""
        other: Verdict | None = None
        for _ in range(runs_for(verdict)):
            left = self._left()
            if left is not None and left <= 0:
                return verdict  # settled as it was met
            self._fresh()
            found = self._run(case)
            if same_failure(verdict, found):
                return found
            other = other or (found if found.bad else None)
        return other

    def _quarantined(self, record: Record, case: Case, verdict: Verdict) -> Record:
        found = signature(case, verdict)
        entry = Entry.as_met(case, verdict.outcome, found, device=self._settings.device)
        runs = 1 + runs_for(verdict)
        return msgspec.structs.replace(
            record,
            message=f"{root_summary(verdict)} (in 1 of {runs} runs; not again in a fresh process)",
            signature=found,
            case=case,
            verdict=verdict,
            status="unconfirmed",
            finding=self._book.quarantine(entry),
            at=time.time(),
        )


@lru_cache(maxsize=4)
def features_of(case: Case) -> tuple[str, ...]:
    """Names of a case's features, in order."""
    return ordered(features(case))
