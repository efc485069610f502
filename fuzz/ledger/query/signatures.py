"""Read side: the signatures of a ledger, each with its life and the case that shows it best."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Row, select

from fuzz.core.case import Case
from fuzz.core.verdict import Signature, Verdict
from fuzz.ledger.errors import LedgerError
from fuzz.ledger.grouping import decoded
from fuzz.ledger.life import STATES, Life, Step, life
from fuzz.ledger.query.history import histories, newest_night
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.database import Ledger


@dataclass(frozen=True)
class Found:
    """The finding that shows a signature best: confirmed, minimised, the newest.

    session   id of its session; night, commit of that
    case      the saved case, and the cases that have to be run before it; evidence: the verdict of a failure as it was
              met. None where the session did not keep it
    """

    session: str
    night: str
    commit: str
    status: str
    outcome: str
    at: float
    met: int
    failed: int
    probed: int
    minimal: bool
    message: str
    note: str
    file: str
    case: Case | None
    after: tuple[Case, ...]
    evidence: Verdict | None


@dataclass(frozen=True)
class Known:
    """A signature of the ledger.

    uid       its id; number: in the tables
    sessions  that met it; met: cases that it explains in all of them
    history   what its life follows from
    """

    uid: str
    number: int
    signature: Signature
    life: Life
    sessions: int
    met: int
    best: Found
    history: tuple[Step, ...]


def signatures(ledger: Ledger, now: float | None = None) -> list[Known]:
    """Every signature, in the order of life.STATES, those that failed last first."""
    found = _signatures(ledger, None, time.time() if now is None else now)
    return sorted(found, key=lambda one: (STATES.index(one.life.state), -one.life.last))


def signature(ledger: Ledger, uid: str, now: float | None = None) -> Known:
    """The signature with an id, the beginning of one, or the id of a finding that is one with it. Raises LedgerError
    where there is none, or more than one."""
    alias = schema.alias.c
    with ledger.read() as connection:
        query = select(alias.signature_id).where(alias.uid.startswith(uid, autoescape=True)).distinct()
        numbers = [row.signature_id for row in connection.execute(query)] if uid else []
    if len(numbers) != 1:
        many = f"{len(numbers)} signatures begin with it" if numbers else "no signature has this id"
        raise LedgerError(f"signature {uid}: {many}; `attnfuzz ledger list` lists them")
    (found,) = _signatures(ledger, numbers[0], time.time() if now is None else now)
    return found


def _signatures(ledger: Ledger, number: int | None, now: float) -> list[Known]:
    s = schema.signature.c
    query = select(s.id, s.uid, s.content)
    with ledger.read() as connection:
        rows = connection.execute(query if number is None else query.where(s.id == number)).all()
        steps, newest = histories(connection, number), newest_night(connection)
        best = _best(connection, number)
    return [
        Known(
            uid=row.uid,
            number=row.id,
            signature=decoded(row.content),
            life=life(steps[row.id], now, newest),
            sessions=best[row.id][1],
            met=best[row.id][2],
            best=best[row.id][0],
            history=tuple(steps[row.id]),
        )
        for row in rows
        if row.id in best
    ]


def _best(connection: Any, number: int | None) -> dict[int, tuple[Found, int, int]]:
    """By signature: the best finding, the number of sessions, the number of cases."""
    f, s, r = schema.finding.c, schema.session.c, schema.revision.c
    light = select(f.session_id, f.signature_id, f.status, f.minimal, f.at, f.met)
    rows = connection.execute(light if number is None else light.where(f.signature_id == number)).all()
    by: dict[int, list[Row[Any]]] = {}
    for row in rows:
        by.setdefault(row.signature_id, []).append(row)
    found = {}
    for one, its in by.items():
        best = max(its, key=lambda row: (row.status != "unconfirmed", row.minimal, row.at))
        query = (
            select(schema.finding, s.uid, s.night, r.commit)
            .join(schema.session, s.id == f.session_id)
            .join(schema.revision, r.id == s.revision_id)
            .where(f.session_id == best.session_id, f.signature_id == one)
        )
        found[one] = (_found(connection.execute(query).one()), len(its), sum(row.met for row in its))
    return found


def _found(row: Any) -> Found:
    names: Sequence[str] = ("status", "outcome", "at", "met", "failed", "probed", "minimal", "message", "note", "file")
    return Found(
        session=row.uid,
        night=row.night,
        commit=row.commit,
        **{name: getattr(row, name) for name in names},
        case=_read(row.case, Case),
        after=_read(row.after, tuple[Case, ...]) or (),
        evidence=_read(row.evidence and zlib.decompress(row.evidence), Verdict),
    )


def _read(text: str | bytes | None, kind: Any) -> Any:
    """JSON of the ledger as a value; None where there is none, or none that this version can read."""
    with suppress(msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(text, type=kind) if text else None
    return None
