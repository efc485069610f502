"""Running saved cases again, and telling what is known from what is new."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from fuzz.core.case import Case
from fuzz.core.signature import explains, signature
from fuzz.core.verdict import Signature, Verdict, summary
from fuzz.corpus.entry import Entry

Status: TypeAlias = Literal["pass", "known", "new", "fail", "unexpected_pass", "skip"]


OK: frozenset[str] = frozenset({"pass", "known", "skip"})


def known(found: Signature, entries: Iterable[Entry]) -> Entry | None:
    """The explained entry that accounts for a failure, or None. Unexplained ones account for nothing: they are new."""
    return next((e for e in entries if e.known and e.signature is not None and explains(e.signature, found)), None)


class Replay(msgspec.Struct, frozen=True):
    """What became of an entry: pass; known (fails as it says); new (fails, nobody knows why); fail (otherwise than it
    says); unexpected_pass (it says that it fails, and it does not); skip."""

    entry: Entry
    status: Status
    reason: str = ""
    verdict: Verdict | None = None
    runs: int = 0

    @property
    def ok(self) -> bool:
        """True if it lets a run pass."""
        return self.status in OK


def replay(entry: Entry, run_case: Callable[[Case], Verdict]) -> Replay:
    """Runs an entry's case and compares. One that fails now and then gets more runs, so that a miss is one in fifty."""
    runs, verdict = 0, run_entry(entry, run_case)
    for runs in range(1, _attempts(entry) + 1):
        if runs > 1:
            verdict = run_entry(entry, run_case)
        if verdict.bad:
            break
    status, reason = _compare(entry, verdict)
    return Replay(entry, status, reason, verdict, runs)


def run_entry(entry: Entry, run_case: Callable[[Case], Verdict]) -> Verdict:
    """The verdict of an entry's case, after the cases that have to come before it."""
    for case in entry.after:
        run_case(case)
    return run_case(entry.case)


def _compare(entry: Entry, verdict: Verdict) -> tuple[Status, str]:
    if verdict.outcome == "reject":
        return "skip", verdict.reason or "the target refuses it"
    if not verdict.bad:
        if entry.expect == "pass":
            return "pass", ""
        return (
            "unexpected_pass",
            f"{entry.name or entry.case.id} says '{entry.expect}', but it passes: is the bug gone?",
        )
    if entry.expect == "pass":
        return "fail", summary(verdict)
    assert entry.signature is not None
    if not explains(entry.signature, signature(entry.case, verdict)):
        return "fail", f"fails otherwise than {entry.name or entry.case.id} says: {summary(verdict)}"
    return ("known", entry.explanation) if entry.known else ("new", f"not explained yet: {summary(verdict)}")


def _attempts(entry: Entry) -> int:
    """Runs until an entry counts as passing; one, but for a failure that showed only now and then."""
    found = entry.found
    if entry.expect == "pass" or found is None or not 0 < found.failed < found.probed:
        return 1
    return min(20, math.ceil(math.log(0.02) / math.log(1 - found.failed / found.probed)))
