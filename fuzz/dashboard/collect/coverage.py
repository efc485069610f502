"""Pairs of features: which were run, how many of their cases failed, and how the covered pairs grew with the cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select

from fuzz.core.features import FEATURES, ordered
from fuzz.dashboard.model import Coverage, Growth
from fuzz.ledger.query import read
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.database import Ledger

if TYPE_CHECKING:
    import pandas as pd

OPTION = "variant:"


def coverage(ledger: Ledger, sessions: pd.DataFrame) -> Coverage:
    """The coverage of all sessions. sessions: as fuzz.ledger.query.read gives them."""
    frame = read.coverage(ledger)
    singles = frame[frame["feature"] == frame["other"]]
    names = [name for name in ordered(singles["feature"]) if not name.startswith(OPTION)]
    place = {name: number for number, name in enumerate(names)}
    shown = frame[frame["feature"].isin(place) & frame["other"].isin(place)]
    pairs = sorted(
        (*sorted((place[one], place[other])), int(cases), int(failed))
        for one, other, cases, failed in zip(
            shown["feature"], shown["other"], shown["cases"], shown["failed"], strict=True
        )
    )
    return Coverage(
        features=tuple(names),
        never=tuple(one.name for one in FEATURES if one.name not in place),
        pairs=tuple((a, b, cases, failed) for a, b, cases, failed in pairs),
        options=len(singles) - len(names),
        growth=growth(ledger, sessions),
    )


def growth(ledger: Ledger, sessions: pd.DataFrame) -> tuple[Growth, ...]:
    """Features and pairs covered after each night, over the cases run until then; options of targets count too."""
    first = _first_covered(ledger)
    found, cases, singles, pairs = [], 0, 0, 0
    for night, rows in sessions.groupby("night", sort=False):
        cases += int(rows["cases"].sum())
        for session in rows["session"]:
            of_session = first.get(session, (0, 0))
            singles, pairs = singles + of_session[0], pairs + of_session[1]
        found.append(Growth(str(night), cases, singles, pairs))
    return tuple(found)


def _first_covered(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """By session: features, and pairs, that no session that began before it had covered."""
    c, s = schema.coverage.c, schema.session.c
    rank = select(s.id, func.row_number().over(order_by=(s.began, s.id)).label("rank")).subquery()
    first = (
        select(c.feature_id, c.other_id, func.min(rank.c.rank).label("rank"))
        .join_from(schema.coverage, rank, rank.c.id == c.session_id)
        .group_by(c.feature_id, c.other_id)
        .subquery()
    )
    single = first.c.feature_id == first.c.other_id
    query = (
        select(s.uid, single.label("single"), func.count().label("pairs"))
        .join_from(first, rank, rank.c.rank == first.c.rank)
        .join(schema.session, s.id == rank.c.id)
        .group_by(s.uid, single)
    )
    found: dict[str, tuple[int, int]] = {}
    with ledger.read() as connection:
        for uid, alone, count in connection.execute(query):
            singles, pairs = found.get(uid, (0, 0))
            found[uid] = (singles + count, pairs) if alone else (singles, pairs + count)
    return found
