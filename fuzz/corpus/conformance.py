"""Conformance: what a target makes of the must-pass list, one row per file.

'cannot' is not a pass: it says that the kernel's interface has no such option, and why. A row without a result is
'missing', and a refusal or a known failure that passes is an 'unexpected_pass'; both fail the run, for they say that
the list, the declaration and the kernel do not agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from fuzz.core.case import Case, to_json
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.core.verdict import Verdict, summary
from fuzz.corpus.entry import ANY_TARGET, Entry
from fuzz.corpus.replay import replay

RowStatus: TypeAlias = Literal[
    "pass", "fail", "hang", "crash", "flake", "reject", "cannot", "known", "not run", "missing", "unexpected_pass"
]
FAILS: frozenset[str] = frozenset({"fail", "hang", "crash", "flake", "missing", "unexpected_pass"})
BIG = 1 << 23  # (query, key) pairs over all heads; above it a case takes a minute or more on a CPU,
BIG_EMULATED = 1 << 24  # or on the emulated GPU, which takes 75 s of a core for the dearest of the list below it


class Row(msgspec.Struct, frozen=True):
    """The result of one file."""

    name: str
    status: RowStatus
    reason: str = ""
    ratio: float = 0.0
    seconds: float = 0.0


class Matrix(msgspec.Struct, frozen=True):
    """All rows of one target."""

    target: str
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """True if no row fails the run; 'reject', 'cannot' and 'not run' are counted apart, not as passes."""
        return not any(row.status in FAILS for row in self.rows)

    def counts(self) -> dict[str, int]:
        """Number of rows by status, the most frequent first."""
        return dict(Counter(row.status for row in self.rows).most_common())

    def render(self) -> str:
        """A text table, with a last line of counts."""
        width = max((len(row.name) for row in self.rows), default=0)
        lines = [
            f"{row.name:<{width}}  {row.status:<15}  {_numbers(row):<22}{row.reason}".rstrip() for row in self.rows
        ]
        counts = ", ".join(f"{number} {status}" for status, number in self.counts().items())
        return "\n".join([*lines, f"{self.target}: {counts or 'no files'}", ""])

    def to_json(self) -> str:
        """JSON of the matrix: target, ok, counts, rows."""
        return to_json({"target": self.target, "ok": self.ok, "counts": self.counts(), "rows": self.rows})


def conformance(
    target: Target, entries: Iterable[Entry], run_case: Callable[[Case], Verdict], *, everything: bool = False
) -> Matrix:
    """Replays the entries that are meant for `target` or for any.

    run_case    Runner.run; where it raises, the row is 'missing' with the reason
    everything  also the cases over BIG pairs, which are 'not run' otherwise
    """
    rows = [_row(target, entry, case, run_case, everything) for entry, case in _listed(target, entries)]
    return Matrix(target.name, tuple(rows))


def cases_of(target: Target, entries: Iterable[Entry], *, everything: bool = False) -> list[Case]:
    """The cases that `conformance` runs."""
    return [case for _, case in _listed(target, entries) if skipped(target, case, everything) is None]


def _listed(target: Target, entries: Iterable[Entry]) -> list[tuple[Entry, Case]]:
    mine = [entry for entry in entries if _is_for(target, entry.case)]
    return [(entry, msgspec.structs.replace(entry.case, target=target.name)) for entry in mine]


def _is_for(target: Target, case: Case) -> bool:
    """True if a case names the target, or is for every target of its operation."""
    return case.target == target.name or (case.target == ANY_TARGET and case.problem.op == target.operation)


def skipped(target: Target, case: Case, everything: bool) -> tuple[RowStatus, str] | None:
    """Reason why a case is not run at all: 'cannot' with the target's reason, or 'not run' for its size; None: it is
    run."""
    refused = refusal(target, case)
    if refused is not None and refused.kind == "cannot":
        return "cannot", refused.why
    most = BIG_EMULATED if target.device == "emulator" else BIG
    if case.problem.pairs > most and not everything:
        return "not run", f"{case.problem.pairs >> 20} million pairs: only with --all or on a GPU"
    return None


def _row(target: Target, entry: Entry, case: Case, run_case: Callable[[Case], Verdict], everything: bool) -> Row:
    name = entry.name.removesuffix(".json") or case.id
    if (why := skipped(target, case, everything)) is not None:
        return Row(name, *why)
    mine = msgspec.structs.replace(entry, case=case)
    try:
        replayed = replay(mine, run_case)
    except Exception as error:
        text = str(error).strip()
        return Row(name, "missing", f"no result: {type(error).__name__}: {text.splitlines()[0] if text else ''}")
    verdict = replayed.verdict
    if verdict is None or verdict.outcome == "missing":
        return Row(name, "missing", (verdict and verdict.reason) or "no result")
    status, reason = _status(target, case, verdict, replayed.status, replayed.reason)
    ratio = 0.0 if any(finding.kind == "nan" for finding in verdict.findings) else verdict.ratio  # no number says NaN
    return Row(name, status, reason, round(ratio, 3), round(sum(verdict.seconds.values()), 3))


def _status(target: Target, case: Case, verdict: Verdict, replayed: str, reason: str) -> tuple[RowStatus, str]:
    """From a verdict and what the entry expects to a row's status."""
    refused = refusal(target, case)
    accepted = any(f.kind == "accepted" for f in verdict.findings)
    if refused is not None and (accepted or verdict.outcome in ("pass", "unexpected_pass")):
        return "unexpected_pass", f"declared as refused ({refused.why}), yet accepted"
    if replayed == "unexpected_pass" or verdict.outcome == "unexpected_pass":
        return "unexpected_pass", reason
    if replayed == "known":
        return "known", reason
    if verdict.outcome == "reject" and refused is None:
        return "fail", f"refused, though declared as supported: {verdict.reason}"
    return verdict.outcome, verdict.reason if verdict.outcome == "reject" else summary(verdict) if verdict.bad else ""


def _numbers(row: Row) -> str:
    return f"{row.ratio:.3g} of the budget" if row.ratio else ""
