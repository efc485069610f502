"""Looking into a failure: confirmed in fresh processes, minimised, and given as values that settle.py writes down.

It needs a device and no folder of a session, so that it can be done on any machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.signature import cause, root, root_summary, signature
from fuzz.core.target import Target
from fuzz.core.verdict import Verdict
from fuzz.corpus.entry import Entry
from fuzz.judging.follow_up import stand_alone_cases
from fuzz.minimize import minimize
from fuzz.runner import HarnessError
from fuzz.session.failures.confirm import Confirmation, confirm
from fuzz.session.records import Record, Settled, Status
from fuzz.session.settings import Settings
from fuzz.targets.registry import load

NOT_LOOKED_INTO = "saved as it was met: the session ended before it was looked into"
HARNESS_FAILED = "saved as it was met: the harness failed as it looked into it"
TIME_IS_UP = "not minimised further: the session's time was up"


class Looked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of looking into a failure, before it is written down.

    settled      its `finding` is still to be named
    entry        the case to save
    keep         the corpus is to have it too
    as_met       it was not looked into to the end: nothing that is known explains it
    interrupted  Ctrl-C ended it
    """

    settled: Settled
    entry: Entry
    keep: bool = True
    as_met: bool = False
    interrupted: bool = False


class Investigator:
    """Looks into failures with a worker's child.

    run, fresh  the child: the verdict of a case, and a new process for the next one
    seconds     what is left of the session, None: no limit
    fault       called with a case and an error of the harness
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        run: Callable[[Case], Verdict],
        fresh: Callable[[], None],
        seconds: Callable[[], float | None],
        fault: Callable[[Case, Exception], None],
    ) -> None:
        self._settings, self._name = settings, name
        self._run, self._fresh, self._seconds, self._fault = run, fresh, seconds, fault

    @property
    def late(self) -> bool:
        """True once the session's time is up."""
        left = self._seconds()
        return left is not None and left <= 0

    def look_into(self, record: Record) -> Looked:
        """What a failure that was met turns out to be. Ctrl-C ends it early, and is not raised."""
        under_test = load(record.target, self._settings.files, self._settings.device)
        case, verdict = record.case, record.verdict
        assert case is not None and verdict is not None
        ends = time.monotonic() + self._settings.minimize_seconds
        try:
            case, verdict = self._plainer(under_test, case, verdict)
            found = confirm(case, verdict, record.before, self._run, self._fresh, lambda: self._late_at(ends))
            if found.verdict is None or found.after:
                return self._settled_as_met(record, case, verdict, found)
            return self._minimised(under_test, record, case, found)
        except KeyboardInterrupt:
            looked = as_met(record, self._settings.device, self._name, NOT_LOOKED_INTO)
            return msgspec.structs.replace(looked, interrupted=True)
        except HarnessError as error:
            self._fault(case, error)
            return as_met(record, self._settings.device, self._name, HARNESS_FAILED)

    def _late_at(self, ends: float) -> bool:
        return self.late or time.monotonic() >= ends

    def _plainer(self, under_test: Target, case: Case, verdict: Verdict) -> tuple[Case, Verdict]:
        """The follow-up case that fails by itself, where there is one: plainer than the relation that found it."""
        first = root(verdict)
        if first is not None and first.oracle == "metamorphic":
            for plainer in stand_alone_cases(case, under_test):
                if self.late:
                    break
                found = self._run(plainer)
                if found.bad:
                    return plainer, found
        return case, verdict

    def _minimised(self, under_test: Target, record: Record, case: Case, found: Confirmation) -> Looked:
        """A failure that shows in a fresh process, as the smallest case that fails alike."""
        left = self._seconds()
        seconds = self._settings.minimize_seconds if left is None else min(left, self._settings.minimize_seconds)
        smallest = minimize(
            case,
            self._run,
            verdict=found.verdict,
            max_runs=self._settings.minimize_runs,
            max_seconds=max(seconds, 0.0),
            allowed=lambda candidate: refusal(under_test, candidate) is None,
        )
        cut = smallest.stopped == "seconds" and self.late
        entry = Entry.of(smallest, device=self._settings.device)
        assert entry.signature is not None and record.signature is not None
        one = Settled(
            worker=self._name,
            shard=record.shard,
            case_id=record.case_id,
            status="new",
            raw=record.signature,
            signature=entry.signature,
            message=root_summary(smallest.verdict),
            failed=smallest.failed,
            probed=smallest.probed,
            note=TIME_IS_UP if cut else "",
            minimal=smallest.stopped == "done",
            others=tuple(signature(other, verdict, ()) for other, verdict in smallest.others),
        )
        return Looked(one, entry, interrupted=smallest.stopped == "interrupted")

    def _settled_as_met(self, record: Record, case: Case, verdict: Verdict, found: Confirmation) -> Looked:
        """A failure that shows only after other cases, or not again."""
        raw = signature(case, verdict)
        entry = Entry.as_met(case, verdict.outcome, raw, device=self._settings.device, after=found.after)
        again = f"1 of {found.probed + 1} runs"
        if found.after:
            count = len(found.after)
            note = f"fails only after {count} other case{'s' if count > 1 else ''} in the same process, not alone"
        elif self.late:
            note = NOT_LOOKED_INTO
        else:
            note = f"failed in {again}: not seen again in a fresh process"
        status: Status = "new" if found.after or self.late else "unconfirmed"
        assert record.signature is not None
        one = Settled(
            self._name, record.shard, record.case_id, status, record.signature, cause(raw), "",
            root_summary(found.verdict or verdict), 1, found.probed + 1, note,
        )  # fmt: skip
        return Looked(one, entry, keep=bool(found.after))


def as_met(record: Record, device: str, worker: str, note: str) -> Looked:
    """A failure as it was met; it stands for all failures of its raw cause."""
    raw = record.signature
    assert raw is not None and record.case is not None
    entry = Entry.as_met(record.case, record.outcome, raw, device=device)
    one = Settled(worker, record.shard, record.case_id, "new", raw, cause(raw), "", record.message, 1, 1, note)
    return Looked(one, entry, keep=False, as_met=True)
