"""Histories of signatures out of the tables: what life.py makes their lives of."""

from __future__ import annotations

from sqlalchemy import Connection, select

from fuzz.ledger.life import Expected, Replayed, Seen, Step, Unexpected
from fuzz.ledger.tables import schema


def histories(connection: Connection, signature: int | None = None) -> dict[int, list[Step]]:
    """The steps of every signature, or of one, by its number."""
    found: dict[int, list[Step]] = {}
    for number, step in [
        *_seen(connection, signature),
        *_replayed(connection, signature),
        *_said(connection, signature),
    ]:
        found.setdefault(number, []).append(step)
    return found


def newest_night(connection: Connection) -> str:
    """The night of the session that began last; '' where there is none."""
    s = schema.session.c
    return connection.scalar(select(s.night).order_by(s.began.desc()).limit(1)) or ""


def _seen(connection: Connection, signature: int | None) -> list[tuple[int, Step]]:
    f, s, at = schema.finding.c, schema.session.c, schema.session_target.c
    query = (
        select(f.signature_id, f.at, s.began, s.night, at.arch, f.failed, f.probed, f.status, f.file)
        .join_from(schema.finding, schema.session, s.id == f.session_id)
        .join(schema.signature, schema.signature.c.id == f.signature_id)
        .outerjoin(
            schema.session_target, (at.session_id == f.session_id) & (at.target_id == schema.signature.c.target_id)
        )
        .order_by(s.began)
    )
    if signature is not None:
        query = query.where(f.signature_id == signature)
    steps: list[tuple[int, Step]] = []
    for row in connection.execute(query):
        known = row.status == "known"
        steps.append(
            (
                row.signature_id,
                Seen(
                    at=row.at or row.began,
                    night=row.night,
                    arch=row.arch or "",
                    failed=max(row.failed, 1),
                    runs=max(row.probed, row.failed, 1),
                    known=known,
                    link=row.file if known else "",
                ),
            )
        )
    return steps


def _replayed(connection: Connection, signature: int | None) -> list[tuple[int, Step]]:
    r = schema.replay.c
    query = select(r.signature_id, r.at, r.arch, r.failed, r.runs).order_by(r.at)
    if signature is not None:
        query = query.where(r.signature_id == signature)
    return [(row.signature_id, Replayed(row.at, row.arch, row.failed, row.runs)) for row in connection.execute(query)]


def _said(connection: Connection, signature: int | None) -> list[tuple[int, Step]]:
    e = schema.event.c
    query = select(e.signature_id, e.at, e.kind, e.link, e.archs, e.until).order_by(e.at)
    if signature is not None:
        query = query.where(e.signature_id == signature)
    steps: list[tuple[int, Step]] = []
    for row in connection.execute(query):
        archs = tuple(filter(None, row.archs.split(",")))
        step = Expected(row.at, row.link, archs, row.until) if row.kind == "expect" else Unexpected(row.at)
        steps.append((row.signature_id, step))
    return steps
