"""News since last night: signatures that came, came back or went, and what changed in the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuzz.dashboard.collect.when import iso
from fuzz.dashboard.model import Change, News, TargetRan
from fuzz.ledger.query.signatures import Known
from fuzz.ledger.tables.rows import FAILING

if TYPE_CHECKING:
    import pandas as pd

# What a failure may come from, most likely first; other packages follow by name.
FIRST = ("nvidia-driver", "gpu", "revision", "torch", "nvidia-cutlass-dsl", "triton", "flash-attn-4", "python")
OPEN = frozenset({"new", "regressed", "open", "flaky"})


def news(
    known: Sequence[Known], sessions: pd.DataFrame, tallies: pd.DataFrame, changes: pd.DataFrame, now: float
) -> News:
    """The news of the newest night. The frames are those of fuzz.ledger.query.read."""
    order = list(dict.fromkeys(sessions["night"]))  # sessions come in the order of their beginning
    night, before = ([*order[::-1], "", ""])[:2]
    mine, old = sessions[sessions["night"] == night], sessions[sessions["night"] == before]
    since = float(old["ended"].fillna(old["began"]).max()) if len(old) else 0.0
    return News(
        made=iso(now),
        night=night,
        before=before,
        new=tuple(one.uid for one in known if one.life.state == "new"),
        regressed=tuple(one.uid for one in known if one.life.state == "regressed" and one.life.since > since),
        fixed=tuple(one.uid for one in known if one.life.state == "fixed" and one.life.since > since),
        open=sum(one.life.state in OPEN for one in known),
        environment=environment(changes[changes["night"] == night]),
        sessions=len(mine),
        cases=int(mine["cases"].sum()),
        failing=int(mine["failing"].sum()),
        unfinished=int(mine["cut"].sum()),
        targets=_targets(tallies[tallies["night"] == night]),
    )


def _targets(tallies: pd.DataFrame) -> tuple[TargetRan, ...]:
    found = []
    for target, rows in tallies.groupby("target", sort=True):
        failing = rows[rows["outcome"].isin(FAILING)]["cases"].sum()
        found.append(
            TargetRan(str(target), int(rows["cases"].sum()), int(failing), round(float(rows["seconds"].sum()), 2))
        )
    return tuple(found)


def environment(changes: pd.DataFrame) -> tuple[Change, ...]:
    """Changes of a night, one for each name and pair of versions, however many hosts have it."""
    where: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in changes.itertuples():
        places = where.setdefault((str(row.name), str(row.before), str(row.after)), {})
        places[f"{row.host} ({row.device})"] = None
    found = [Change(*key, where=tuple(places)) for key, places in where.items()]
    return tuple(sorted(found, key=lambda one: (_rank(one.name), one.name)))


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)
