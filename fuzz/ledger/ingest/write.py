"""Writes Batches: every row is an upsert by its natural key, so whatever is sent again counts once.

A Batch is one short transaction. Rows of runs belong to one session each, and one process writes a session, so writers
meet only in the tables of names (locks.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, bindparam, cast, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from fuzz.ledger.grouping import aliases, encoded, grouped
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.tables.rows import (
    OUTCOMES,
    Batch,
    BisectionRow,
    EventRow,
    FindingRow,
    MeasurementRow,
    ReplayRow,
    RunRow,
    SessionRow,
    Single,
)

RATIO = 1000  # run.ratio is in thousandths of the error budget
DURATION = 10_000  # run.duration is in tenths of a millisecond
_MOST = 2**31 - 1
_OUTCOME: dict[str, int] = {name: number for number, name in enumerate(OUTCOMES)}


def write(ledger: Ledger, batch: Batch) -> None:
    """Writes the rows of a session. Raises sqlalchemy.exc.SQLAlchemyError: then nothing of the batch is written."""
    with ledger.write() as connection:
        _Writer(ledger, connection, batch).write()


def write_single(ledger: Ledger, rows: Iterable[Single]) -> None:
    """Writes rows that belong to no session; those that are there already stay as they are.

    Raises KeyError for a row about a signature that the ledger does not have.
    """
    with ledger.write() as connection:
        for row in rows:
            values: dict[str, Any] = {"uid": row.uid, "at": row.at}
            if isinstance(row, MeasurementRow):
                table = schema.measurement
                values |= {"series": row.series, "value": row.value, "unit": row.unit}
            else:
                values["signature_id"] = _signature(connection, row.signature)
            if isinstance(row, EventRow):
                table = schema.event
                archs = ",".join(row.archs)
                values |= {"kind": row.kind, "link": row.link, "archs": archs, "until": row.until, "author": row.author}
            else:
                values |= {
                    "hardware_id": ledger.names.hardware(connection, row.hardware),
                    "toolchain_id": ledger.names.toolchain(connection, row.toolchain),
                    "revision_id": ledger.names.revision(connection, row.revision),
                }
            if isinstance(row, BisectionRow):
                table = schema.bisection
                same = ("history", "good", "bad", "suspects", "probability", "confident", "failed", "runs")
                values |= {name: getattr(row, name) for name in same}
                values["first"] = msgspec.json.encode(row.first).decode()
            if isinstance(row, ReplayRow):
                table = schema.replay
                values |= {"arch": row.arch, "failed": row.failed, "runs": row.runs}
            upsert(connection, table, ["uid"], [values], change=())


def upsert(
    connection: Connection,
    table: Table,
    keys: Sequence[str],
    rows: Sequence[dict[str, Any]],
    change: Sequence[str] | None = None,
) -> None:
    """Inserts rows; of those whose key is there, the columns in `change` are replaced (None: all but the keys)."""
    if not rows:
        return
    names = list(rows[0])
    changed = [name for name in names if name not in keys] if change is None else list(change)
    made: Any
    values: Any = list(rows)
    if connection.dialect.name == "postgresql":  # a list for each column takes half the time of rows
        columns = [func.unnest(cast(bindparam(name), postgresql.ARRAY(table.c[name].type))) for name in names]
        made = postgresql.insert(table).from_select(names, select(*columns))
        values = {name: [row[name] for row in rows] for name in names}
    else:
        made = sqlite.insert(table)
    if changed:
        made = made.on_conflict_do_update(index_elements=keys, set_={name: made.excluded[name] for name in changed})
    else:
        made = made.on_conflict_do_nothing(index_elements=keys)
    connection.execute(made, values)


def bits(numbers: Iterable[int]) -> bytes:
    """A set of small numbers: number n is bit n % 8 of byte n // 8."""
    word = 0
    for number in numbers:
        word |= 1 << number
    return word.to_bytes((word.bit_length() + 7) // 8, "little")


class _Writer:
    """One batch in its transaction."""

    def __init__(self, ledger: Ledger, connection: Connection, batch: Batch) -> None:
        self._connection, self._names, self._batch = connection, ledger.names, batch
        self._targets = self._names.targets(connection, self._named_targets())
        self._features = self._names.features(connection, self._named_features())
        self._session = self._write_session(batch.session)

    def write(self) -> None:
        """Writes all of it."""
        numbers = grouped(self._connection, (one.signature for one in self._batch.findings), self._targets)
        numbers |= aliases(self._connection, {run.signature for run in self._batch.runs} - {"", *numbers})
        self._many(schema.run, ("session_id", "target_id", "place"), [self._run(r, numbers) for r in self._batch.runs])
        self._write_findings(numbers)
        self._write_sums()

    def _named_targets(self) -> set[str]:
        b = self._batch
        named = {*b.session.archs, *(r.target for r in b.runs), *(one.signature.target for one in b.findings)}
        return named | {t.target for t in b.tallies} | {t.target for t in b.timings}

    def _named_features(self) -> dict[str, None]:
        found = dict.fromkeys(name for run in self._batch.runs for name in run.features)
        return found | dict.fromkeys(name for row in self._batch.coverage for name in (row.feature, row.other))

    def _write_session(self, row: SessionRow) -> int:
        values = {
            "uid": row.uid,
            "night": row.night,
            "began": row.began,
            "ended": row.ended,
            "device": row.device,
            "seed": row.seed,
            "planned": row.planned,
            "command": row.command,
            "folder": row.folder,
            "settings": msgspec.json.encode(row.settings).decode(),
            "hardware_id": self._names.hardware(self._connection, row.hardware),
            "toolchain_id": self._names.toolchain(self._connection, row.toolchain),
            "revision_id": self._names.revision(self._connection, row.revision),
        }
        table = schema.session
        number = self._connection.scalar(select(table.c.id).where(table.c.uid == row.uid))
        if number is None:
            upsert(self._connection, table, ["uid"], [values])
            number = self._connection.scalar(select(table.c.id).where(table.c.uid == row.uid))
        else:
            self._connection.execute(update(table).where(table.c.id == number).values(values))
        assert number is not None
        archs = [
            {"session_id": number, "target_id": self._targets[name], "arch": arch} for name, arch in row.archs.items()
        ]
        upsert(self._connection, schema.session_target, ["session_id", "target_id"], archs)
        return int(number)

    def _run(self, row: RunRow, numbers: dict[str, int]) -> dict[str, Any]:
        return {
            "target_id": self._targets[row.target],
            "place": row.place,
            "case_id": int(row.case_id, 16),
            "outcome": _OUTCOME[row.outcome],
            "signature_id": numbers.get(row.signature),
            "ratio": _whole(row.ratio * RATIO),
            "duration": _whole(row.seconds * DURATION),
            "features": bits(self._features[name] for name in row.features),
        }

    def _write_findings(self, numbers: dict[str, int]) -> None:
        """Findings of the session that are one in the ledger are one row: the best of them, with all that they met."""
        best: dict[int, FindingRow] = {}
        for row in self._batch.findings:
            number = numbers[row.signature.id]
            best[number] = _one(best[number], row) if number in best else row
        self._many(schema.finding, ("session_id", "signature_id"), [_finding(n, row) for n, row in best.items()])

    def _write_sums(self) -> None:
        b = self._batch
        tallies = [
            {
                "target_id": self._targets[t.target],
                "outcome": _OUTCOME[t.outcome],
                "cases": t.cases,
                "seconds": t.seconds,
            }
            for t in b.tallies
        ]
        timings = [
            {"target_id": self._targets[t.target], **_fields(t, "phase", "cases", "seconds", "p50", "p95", "most")}
            for t in b.timings
        ]
        coverage = [
            {**_pair(self._features[c.feature], self._features[c.other]), **_fields(c, "cases", "failed")}
            for c in b.coverage
        ]
        compiles = [_fields(c, "arch", "status", "kernels", "seconds") for c in b.compiles]
        if tallies:  # an outcome may be gone, as where a hang was confirmed as a failure
            gone = delete(schema.tally).where(schema.tally.c.session_id == self._session)
            self._connection.execute(gone)
        self._many(schema.tally, ("session_id", "target_id", "outcome"), tallies)
        self._many(schema.timing, ("session_id", "target_id", "phase"), timings)
        self._many(schema.coverage, ("session_id", "feature_id", "other_id"), coverage)
        self._many(schema.compiled, ("session_id", "arch", "status"), compiles)

    def _many(self, table: Table, keys: Sequence[str], rows: list[dict[str, Any]]) -> None:
        upsert(self._connection, table, keys, [{"session_id": self._session, **row} for row in rows])


def _finding(number: int, row: FindingRow) -> dict[str, Any]:
    return {
        "signature_id": number,
        **_fields(row, "status", "outcome", "at", "met", "failed", "probed", "minimal", "message", "note", "file"),
        "content": encoded(row.signature),
        "case": None if row.case is None else msgspec.json.encode(row.case).decode(),
        "after": msgspec.json.encode(row.after).decode() if row.after else None,
        "evidence": zlib.compress(row.evidence.encode()) if row.evidence else None,
    }


def _one(one: FindingRow, other: FindingRow) -> FindingRow:
    """Two findings of a session as one: that which was confirmed, minimised, met first."""
    rank = {"new": 0, "known": 1, "unconfirmed": 2}
    first = min(one, other, key=lambda row: (rank[row.status], not row.minimal, row.at))
    return msgspec.structs.replace(
        first, met=one.met + other.met, failed=one.failed + other.failed, probed=one.probed + other.probed
    )


def _pair(one: int, other: int) -> dict[str, int]:
    return {"feature_id": min(one, other), "other_id": max(one, other)}


def _signature(connection: Connection, uid: str) -> int:
    found = connection.scalar(select(schema.alias.c.signature_id).where(schema.alias.c.uid == uid))
    if found is None:
        raise KeyError(uid)
    return int(found)


def _fields(row: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _whole(value: float) -> int:
    """A number for a column of 32 bits; what is larger, or no number, as its largest."""
    return min(round(value), _MOST) if value < _MOST else _MOST
