"""The findings of a session for readers: what, where, how often, on which feature it depends; which are probably one.

A finding's first line says that; then come the saved case's own message, what was not done with it, and the command
that shows it again. The best come first: complete, failing every time, met often. Those that are probably the same bug
as another follow it.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.core.features import ordered
from fuzz.core.signature import cause, needs, probably_one
from fuzz.core.verdict import Signature
from fuzz.session.records import Record, Settled, Settlement
from fuzz.session.summary.contrast import contrast

_TITLES = {"o": "O", "lse": "LSE", "dq": "dQ", "dk": "dK", "dv": "dV", "dbias": "dBias"}
_NUMBERS = {"wrong": "wrong", "nan": "NaN", "nondeterministic": "different from run to run"}
_RAN = ("pass", "fail", "flake", "hang", "crash")


@dataclass(frozen=True)
class _Found:
    """A new finding: its record, what it was settled as, and the records of all failures that it explains."""

    record: Record
    settled: Settled | None
    failures: tuple[Record, ...]

    @property
    def signature(self) -> Signature:
        """The signature of the saved case."""
        assert self.record.signature is not None
        return self.record.signature

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """Sorts findings, the best first."""
        ended = self.settled
        note = ended is not None and bool(ended.note)
        rare = ended is not None and ended.failed < ended.probed
        return note, rare, -len(self.failures), len(self.signature.features)


def findings(records: Sequence[Record], files: Sequence[str] = (), ended: Settlement | None = None) -> list[str]:
    """Lines for the new findings, each with the command that reproduces it, then those that did not show again, then
    the known ones met.

    records  of a session, with what became of the failures. files: as in `reproduce`. ended: what was settled
    """
    lines = []
    for found, related in _grouped([_found(record, records, ended) for record in records if record.status == "new"]):
        lines += _lines(found, records, files)
        for other, why in related:
            lines += [f"    probably one with the next one: {why}", *_lines(other, records, files)]
    for record in records:
        if record.status == "unconfirmed" and record.case is not None and _own(record, records):
            lines.append(f"NOT SEEN AGAIN {record.target}: {record.message}{_note(record, ended)}")
            lines.append(f"    {reproduce(record.finding, files)}")
    known: Counter[str] = Counter(record.finding for record in records if record.status == "known")
    lines += [f"known {name} (met {times} times)" for name, times in sorted(known.items())]
    return lines


def headline(found: Signature, failures: Sequence[Record], records: Sequence[Record]) -> str:
    """The first line of a finding: 'dQ is wrong, in 7 of 60 cases, all with softcap (7 of 9 fail; none of 51 without)'.

    failures  the records that the finding explains. records: all of the session
    """
    mine = [record for record in records if record.target == found.target and record.outcome in _RAN]
    passed = [frozenset(record.features) for record in mine if record.outcome == "pass"]
    failed = [frozenset(record.features) for record in failures]
    parts = [what(found), f"in {len(failures)} of {len(mine)} cases"]
    if (depends := contrast(failed, passed, found.features)) is not None:
        parts.append(str(depends))
    return ", ".join(parts)


def what(found: Signature) -> str:
    """The failure in a few words, and where: 'dQ, dK are wrong', 'race on dq_sum, in the backward kernel'."""
    names = ", ".join(_TITLES.get(name, name) for name in found.tensors)
    if found.kind in _NUMBERS and names:
        said = f"{names} {'is' if len(found.tensors) == 1 else 'are'} {_NUMBERS[found.kind]}"
    else:
        kind = f"not as for a follow-up case ({found.kind})" if found.oracle == "metamorphic" else found.kind
        said = kind.replace("_", " ") + (f" on {names}" if names else "")
    if found.kind in ("raised", "refused") and found.place:
        said += f" {found.place}"
    where = [f"in the {found.kernel} kernel"] if found.kernel else []
    return ", ".join([said, *where, *([f"at {found.line}"] if found.line else [])])


def reproduce(finding: str, files: Sequence[str] = ()) -> str:
    """The command that shows a saved finding again. files: of the targets of one's own that the session had."""
    named = [os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file for file in files]
    return shlex.join(["attnfuzz", "repro", finding, *(word for file in named for word in ("--target-file", file))])


def _found(record: Record, records: Sequence[Record], ended: Settlement | None) -> _Found:
    settled = next((one for one in ended.settled if one.of(record)), None) if ended is not None else None
    explained = (r for r in records if r.status == "again" and r.finding == record.finding and r is not record)
    return _Found(record, settled, (record, *explained))


def _grouped(found: Sequence[_Found]) -> list[tuple[_Found, list[tuple[_Found, str]]]]:
    """The best finding of each group that is probably one bug, with the others of the group and why."""
    groups: list[tuple[_Found, list[tuple[_Found, str]]]] = []
    for one in sorted(found, key=lambda one: one.rank):
        for best, others in groups:
            if why := _related(best, one):
                others.append((one, why))
                break
        else:
            groups.append((one, []))
    return groups


def _related(one: _Found, other: _Found) -> str:
    """Why two findings are probably one bug; '': no sign of it."""
    for a, b in ((one, other), (other, one)):
        met = {cause(x).id for x in a.settled.others} if a.settled is not None else set()
        if cause(b.signature).id in met:
            return "smaller cases of one fail as the other does"
    return probably_one(one.signature, other.signature)


def _lines(found: _Found, records: Sequence[Record], files: Sequence[str]) -> list[str]:
    record = found.record
    lines = [f"NEW {record.target}: {headline(found.signature, found.failures, records)}", f"    {record.message}"]
    if found.settled is not None and found.settled.note:
        lines.append(f"    {found.settled.note}")
    if found.settled is not None and found.settled.minimal and (options := needs(found.signature)):
        lines.append(f"    no smaller case fails without {', '.join(ordered(options))}")
    return [*lines, f"    {reproduce(record.finding, files)}"]


def _own(record: Record, records: Sequence[Record]) -> bool:
    """True if it is the first of the records with its file."""
    return next(r for r in records if r.finding == record.finding) is record


def _note(record: Record, ended: Settlement | None) -> str:
    one = next((one for one in ended.settled if one.of(record)), None) if ended is not None else None
    return f" ({one.note})" if one is not None and one.note else ""
