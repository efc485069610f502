"""One writer at a time, where the order of writing matters: new tables, new names, new signatures."""

from __future__ import annotations

from sqlalchemy import Connection, text

_LOCK = 0x6174746E  # number of PostgreSQL's advisory lock


def one_writer(connection: Connection) -> None:
    """Until the transaction's end no other one is past this call. SQLite has one writer at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
