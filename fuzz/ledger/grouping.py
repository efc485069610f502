"""Which findings are one signature of the ledger, over sessions, machines and months.

A session groups its own failures (fuzz/session/failures/one_bug.py), and minimises each cause. Another night reduces
the same bug to a slightly different case, so a finding joins the signature of the ledger that explains it, that it
explains, or that it looks like (fuzz/core/signature.py); else it is a new one. What was decided once stays: `alias`
keeps it by the id of the finding's own signature.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection, insert, select

from fuzz.core.signature import explains, look_alike
from fuzz.core.verdict import Signature
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.locks import one_writer


def grouped(connection: Connection, found: Iterable[Signature], targets: dict[str, int]) -> dict[str, int]:
    """Numbers of the ledger's signatures, by the id of each found one; new ones are added.

    targets  numbers of the targets, by name
    """
    wanted = {one.id: one for one in found}
    if not wanted:
        return {}
    one_writer(connection)
    known = aliases(connection, wanted)
    for uid, one in wanted.items():
        if uid not in known:
            known[uid] = _joined(connection, one, targets[one.target]) or _added(connection, one, targets[one.target])
            connection.execute(insert(schema.alias).values(uid=uid, signature_id=known[uid]))
    return known


def aliases(connection: Connection, uids: Iterable[str]) -> dict[str, int]:
    """Numbers of signatures by the ids of findings, as far as the ledger has them."""
    if not (wanted := list(uids)):
        return {}
    table = schema.alias.c
    query = select(table.uid, table.signature_id).where(table.uid.in_(wanted))
    return {row.uid: row.signature_id for row in connection.execute(query)}


def one_signature(known: Signature, found: Signature) -> bool:
    """True if two findings, of whichever sessions, are one signature."""
    return explains(known, found) or explains(found, known) or look_alike(known, found)


def _joined(connection: Connection, found: Signature, target: int) -> int | None:
    """The oldest signature that `found` is one with."""
    table = schema.signature.c
    rows = connection.execute(select(table.id, table.content).where(table.target_id == target).order_by(table.id))
    for row in rows:
        if one_signature(decoded(row.content), found):
            return int(row.id)
    return None


def _added(connection: Connection, found: Signature, target: int) -> int:
    values = {"uid": found.id, "target_id": target, "kind": found.kind, "content": encoded(found)}
    return connection.execute(insert(schema.signature).values(values).returning(schema.signature.c.id)).scalar_one()


def encoded(found: Signature) -> str:
    """A signature as the ledger keeps it."""
    return msgspec.json.encode(found).decode()


def decoded(text: str) -> Signature:
    """The signature of `encoded`."""
    return msgspec.json.decode(text, type=Signature)
