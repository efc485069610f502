"""Outcome of each failure of a session: the signature that it counts under, and the case that was saved for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz.core.case import Case
from fuzz.core.signature import cause
from fuzz.core.verdict import Signature
from fuzz.corpus.entry import Entry
from fuzz.ledger.tables.rows import FindingRow, FindingStatus
from fuzz.session import records
from fuzz.session.failures.confirm import runs_for
from fuzz.session.records import Record, Session, Settlement, settlement


@dataclass(frozen=True)
class Settled:
    """A failure, and what it was settled as.

    one    what the session wrote when it looked into it, or into the one that explains it; None: nobody did
    entry  the saved case; None: its file is gone
    own    the failure is the very one that was looked into
    """

    record: Record
    signature: Signature
    status: FindingStatus
    one: records.Settled | None = None
    entry: Entry | None = None
    own: bool = False

    def row(self, met: int) -> FindingRow:
        """The finding, of which the session met `met` cases."""
        record, one, entry = self.record, self.one, self.entry
        case: Case | None = record.case if entry is None else entry.case
        explained = entry is not None and entry.known
        note = one.note if one is not None else ""
        again = runs_for(record.verdict) if self.status == "unconfirmed" and record.verdict is not None else 0
        return FindingRow(
            signature=self.signature,
            status=self.status,
            outcome=record.outcome if entry is None else entry.expect,
            at=record.at,
            met=met,
            failed=one.failed if one is not None else 1,
            probed=one.probed if one is not None else 1 + again,
            minimal=one is not None and one.minimal,
            message=(one.message if one is not None else "") or record.message,
            note=entry.explanation if explained and entry is not None else note,
            file=one.finding if one is not None else record.finding,
            case=case,
            after=() if entry is None else entry.after,
            evidence="" if record.verdict is None else msgspec.json.encode(record.verdict).decode(),
        )


def settled_as(folder: Path, session: Session, failures: Iterable[Record]) -> Iterator[Settled]:
    """Each failure with what it was settled as, in their order, one after the other."""
    ended = settlement(folder)
    return (_settled(folder, session, ended, record) for record in failures)


def _settled(folder: Path, session: Session, ended: Settlement, record: Record) -> Settled:
    assert record.signature is not None
    raw = cause(record.signature)
    if record.status == "known":
        entry = _entry(folder, session, record.finding)
        kept = entry.signature if entry is not None else None
        return Settled(record, _of(kept or raw, record), "known", entry=entry)
    if record.status == "unconfirmed":
        return Settled(record, raw, "unconfirmed", entry=_entry(folder, session, record.finding))
    one = ended.of(record)
    if one is None:  # the session was cut off
        return Settled(record, raw, "new")
    main = next((s for s in ended.settled if s.finding == one.finding and s.status == "new"), one)
    entry = _entry(folder, session, main.finding)
    if main.status == "known" and entry is not None and entry.signature is not None:
        return Settled(record, _of(entry.signature, record), "known", main, entry, own=main.of(record))
    status: FindingStatus = (
        "unconfirmed" if main.status == "unconfirmed" else "known" if main.status == "known" else "new"
    )
    return Settled(record, _of(main.signature, record), status, main, entry, own=main.of(record))


def _of(signature: Signature, record: Record) -> Signature:
    """A signature of the record's own target: the corpus has cases for every target."""
    if signature.target == record.target:
        return signature
    return msgspec.structs.replace(signature, target=record.target)


def _entry(folder: Path, session: Session, finding: str) -> Entry | None:
    """The saved case of a finding, from the corpus or from the session's folder."""
    if not finding:
        return None
    name = Path(finding).name
    corpus = str(session.settings.get("corpus", ""))
    places = [Path(finding), folder / "findings" / name, folder / "quarantine" / name]
    for path in [*places, Path(corpus) / name] if corpus else places:
        with suppress(OSError, msgspec.DecodeError, ValueError):
            return msgspec.json.decode(path.read_bytes(), type=Entry)
    return None
