"""Rows of a ledger as the values that write.py takes: write's mirror image, for `attnfuzz export`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from fuzz.core.verdict import Signature
from fuzz.ledger.grouping import decoded
from fuzz.ledger.ingest.write import DURATION, RATIO
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.tables.rows import (
    OUTCOMES,
    Batch,
    BisectionRow,
    CompileRow,
    CoverageRow,
    EventRow,
    FindingRow,
    Hardware,
    MeasurementRow,
    ReplayRow,
    Revision,
    RunRow,
    SessionRow,
    Single,
    TallyRow,
    TimingRow,
)

RUNS = 500  # of a list


@dataclass(frozen=True)
class Selection:
    """Contents of an export.

    nights    names of nights; empty: all
    sessions  ids of sessions; empty: all of the nights
    runs      False: sums and findings alone, no runs
    """

    nights: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    runs: bool = True

    @property
    def everything(self) -> bool:
        """True if no session is left out."""
        return not self.nights and not self.sessions


def signatures_of(ledger: Ledger) -> list[Signature]:
    """Every signature, in the order in which they were met: so they are grouped alike elsewhere."""
    table = schema.signature.c
    with ledger.read() as connection:
        return [decoded(text) for text in connection.scalars(select(table.content).order_by(table.id))]


def sessions_of(ledger: Ledger, which: Selection) -> Iterator[tuple[Batch, Iterator[list[RunRow]]]]:
    """Each session, without runs; and its runs in lists of RUNS, which have to be read before the next session."""
    s = schema.session.c
    query = select(s.id).order_by(s.began)
    if which.nights:
        query = query.where(s.night.in_(which.nights))
    if which.sessions:
        query = query.where(s.uid.in_(which.sessions))
    with ledger.read() as connection:
        names = _Names(connection)
        for number in connection.scalars(query).all():
            yield _batch(connection, names, number), _runs(connection, names, number) if which.runs else iter(())


def singles_of(ledger: Ledger, which: Selection) -> Iterator[Single]:
    """Replays, events and bisections; measurements where no session is left out."""
    with ledger.read() as connection:
        names = _Names(connection)
        for row in connection.execute(select(schema.replay).order_by(schema.replay.c.id)):
            sign = names.signatures[row.signature_id]
            yield ReplayRow(row.uid, sign, row.at, row.arch, row.failed, row.runs, **names.environment(row))
        for row in connection.execute(select(schema.event).order_by(schema.event.c.id)):
            sign, archs = names.signatures[row.signature_id], tuple(filter(None, row.archs.split(",")))
            yield EventRow(row.uid, sign, row.at, row.kind, row.link, archs, row.until, row.author)
        for row in connection.execute(select(schema.bisection).order_by(schema.bisection.c.id)):
            same = ("uid", "at", "history", "good", "bad", "suspects", "probability", "confident", "failed", "runs")
            yield BisectionRow(
                **{name: getattr(row, name) for name in same},
                signature=names.signatures[row.signature_id],
                first=msgspec.json.decode(row.first, type=tuple[tuple[str, str], ...]),
                **names.environment(row),
            )
        for row in connection.execute(select(schema.measurement).order_by(schema.measurement.c.id)):
            if which.everything:
                yield MeasurementRow(row.uid, row.series, row.at, row.value, row.unit, **names.environment(row))


class _Names:
    """Names by their numbers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.targets = self._column(schema.target, "name")
        self.features = self._column(schema.feature, "name")
        self.signatures = self._column(schema.signature, "uid")
        self._toolchains: dict[int, dict[str, str]] = {}

    def environment(self, row: Any) -> dict[str, Any]:
        """Fields `hardware`, `toolchain` and `revision` of a row."""
        h, r, p = schema.hardware, schema.revision, schema.package.c
        hardware = self._connection.execute(select(h).where(h.c.id == row.hardware_id)).one()
        revision = self._connection.execute(select(r).where(r.c.id == row.revision_id)).one()
        if row.toolchain_id not in self._toolchains:
            query = select(p.name, p.version).where(p.toolchain_id == row.toolchain_id)
            self._toolchains[row.toolchain_id] = {one.name: one.version for one in self._connection.execute(query)}
        return {
            "hardware": Hardware(hardware.host, hardware.cpu, hardware.cpus, hardware.machine, hardware.gpu),
            "toolchain": self._toolchains[row.toolchain_id],
            "revision": Revision(revision.commit, revision.changed, revision.at),
        }

    def _column(self, table: Any, name: str) -> dict[int, str]:
        return {row[0]: row[1] for row in self._connection.execute(select(table.c.id, table.c[name]))}


def _batch(connection: Connection, names: _Names, number: int) -> Batch:
    def rows(table: Any) -> Any:
        return connection.execute(select(table).where(table.c.session_id == number))

    return Batch(
        session=_session(connection, names, number),
        findings=tuple(_finding(row) for row in rows(schema.finding)),
        tallies=tuple(
            TallyRow(names.targets[r.target_id], OUTCOMES[r.outcome], r.cases, r.seconds) for r in rows(schema.tally)
        ),
        timings=tuple(
            TimingRow(names.targets[r.target_id], r.phase, r.cases, r.seconds, r.p50, r.p95, r.most)
            for r in rows(schema.timing)
        ),
        coverage=tuple(
            CoverageRow(names.features[r.feature_id], names.features[r.other_id], r.cases, r.failed)
            for r in rows(schema.coverage)
        ),
        compiles=tuple(CompileRow(r.arch, r.status, r.kernels, r.seconds) for r in rows(schema.compiled)),
    )


def _session(connection: Connection, names: _Names, number: int) -> SessionRow:
    s, t = schema.session, schema.session_target.c
    row = connection.execute(select(s).where(s.c.id == number)).one()
    archs = connection.execute(select(t.target_id, t.arch).where(t.session_id == number).order_by(t.target_id))
    return SessionRow(
        uid=row.uid,
        began=row.began,
        night=row.night,
        ended=row.ended,
        device=row.device,
        seed=row.seed,
        planned=row.planned,
        command=row.command,
        folder=row.folder,
        settings=msgspec.json.decode(row.settings),
        archs={names.targets[one.target_id]: one.arch for one in archs},
        **names.environment(row),
    )


def _finding(row: Any) -> FindingRow:
    fields = ("status", "outcome", "at", "met", "failed", "probed", "minimal", "message", "note", "file")
    found = {
        **{name: getattr(row, name) for name in fields},
        "signature": msgspec.json.decode(row.content),
        "case": row.case and msgspec.json.decode(row.case),
        "after": msgspec.json.decode(row.after or "[]"),
        "evidence": zlib.decompress(row.evidence).decode() if row.evidence else "",
    }
    return msgspec.convert(found, FindingRow)


def _runs(connection: Connection, names: _Names, number: int) -> Iterator[list[RunRow]]:
    r = schema.run.c
    query = select(schema.run).where(r.session_id == number).order_by(r.target_id, r.place)
    for some in connection.execute(query).partitions(RUNS):
        yield [
            RunRow(
                target=names.targets[row.target_id],
                place=row.place,
                case_id=f"{row.case_id:012x}",
                outcome=OUTCOMES[row.outcome],
                ratio=row.ratio / RATIO,
                seconds=row.duration / DURATION,
                features=tuple(names.features[bit] for bit in _bits(row.features)),
                signature=names.signatures.get(row.signature_id, ""),
            )
            for row in some
        ]


def _bits(some: bytes) -> Iterator[int]:
    word = int.from_bytes(some, "little")
    while word:
        low = word & -word
        yield low.bit_length() - 1
        word ^= low
