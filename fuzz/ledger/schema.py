"""The tables. docs/reference/ledger.md explains them; migrations/ creates them.

A run is the row that there are millions of, so it holds numbers only: about 50 bytes in SQLite. Names, signatures and
environments stand once in tables of their own; sums over a session's runs (tally, timing, coverage) beside them, so
that a report over months reads no runs.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    false,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _number() -> Column[int]:
    return Column("id", Integer, primary_key=True, autoincrement=True)


def _to(table: str, name: str = "", *, primary_key: bool = False, index: bool = False) -> Column[int]:
    return Column(
        f"{name or table}_id",
        Integer,
        ForeignKey(f"{table}.id"),
        primary_key=primary_key,
        autoincrement=False,
        nullable=False,
        index=index,
    )


def _environment() -> tuple[Column[int], Column[int], Column[int]]:
    return _to("hardware"), _to("toolchain"), _to("revision")


target = Table("target", metadata, _number(), Column("name", Text, nullable=False, unique=True))

feature = Table(
    "feature",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # the bit in run.features
    Column("name", Text, nullable=False, unique=True),
)

hardware = Table(
    "hardware",
    metadata,
    _number(),
    Column("uid", Text, nullable=False, unique=True),
    Column("host", Text, nullable=False),
    Column("cpu", Text, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("machine", Text, nullable=False),
    Column("gpu", Text, nullable=False),
)

toolchain = Table("toolchain", metadata, _number(), Column("uid", Text, nullable=False, unique=True))

package = Table(
    "package",
    metadata,
    _to("toolchain", primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Text, nullable=False),
)

revision = Table(
    "revision",
    metadata,
    _number(),
    Column("uid", Text, nullable=False, unique=True),
    Column("commit", Text, nullable=False),
    Column("changed", Boolean, nullable=False),
    Column("at", Double, nullable=False),
)

session = Table(
    "session",
    metadata,
    _number(),
    Column("uid", Text, nullable=False, unique=True),
    Column("night", Text, nullable=False, index=True),
    Column("began", Double, nullable=False),
    Column("ended", Double),
    Column("device", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("planned", Integer, nullable=False),
    Column("command", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("settings", Text, nullable=False),
    *_environment(),
)

session_target = Table(
    "session_target",
    metadata,
    _to("session", primary_key=True),
    _to("target", primary_key=True),
    Column("arch", Text, nullable=False),
    sqlite_with_rowid=False,
)

signature = Table(
    "signature",
    metadata,
    _number(),
    Column("uid", Text, nullable=False, unique=True),
    _to("target", index=True),
    Column("kind", Text, nullable=False),
    Column("content", Text, nullable=False),
)

alias = Table(
    "alias",
    metadata,
    Column("uid", Text, primary_key=True),
    _to("signature", index=True),
    sqlite_with_rowid=False,
)

run = Table(
    "run",
    metadata,
    _to("session", primary_key=True),
    Column("target_id", SmallInteger, ForeignKey("target.id"), primary_key=True),
    Column("outcome", SmallInteger, nullable=False),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("signature_id", Integer, ForeignKey("signature.id")),
    Column("case_id", BigInteger, nullable=False),
    Column("ratio", Integer, nullable=False),
    Column("duration", Integer, nullable=False),
    Column("features", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
Index(
    "ix_run_signature",
    run.c.signature_id,
    sqlite_where=run.c.signature_id.is_not(None),
    postgresql_where=run.c.signature_id.is_not(None),
)

finding = Table(
    "finding",
    metadata,
    _to("session", primary_key=True),
    _to("signature", primary_key=True, index=True),
    Column("status", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("met", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("probed", Integer, nullable=False),
    Column("minimal", Boolean, nullable=False, server_default=false()),
    Column("message", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("file", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("case", Text),
    Column("after", Text),
    Column("evidence", LargeBinary),
)

tally = Table(
    "tally",
    metadata,
    _to("session", primary_key=True),
    _to("target", primary_key=True),
    Column("outcome", SmallInteger, primary_key=True, autoincrement=False),
    Column("cases", Integer, nullable=False),
    Column("seconds", Double, nullable=False),
    sqlite_with_rowid=False,
)

timing = Table(
    "timing",
    metadata,
    _to("session", primary_key=True),
    _to("target", primary_key=True),
    Column("phase", Text, primary_key=True),
    Column("cases", Integer, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("p50", Double, nullable=False),
    Column("p95", Double, nullable=False),
    Column("most", Double, nullable=False),
    sqlite_with_rowid=False,
)

coverage = Table(
    "coverage",
    metadata,
    _to("session", primary_key=True),
    _to("feature", primary_key=True),
    _to("feature", "other", primary_key=True),
    Column("cases", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    sqlite_with_rowid=False,
)

compiled = Table(
    "compiled",
    metadata,
    _to("session", primary_key=True),
    Column("arch", Text, primary_key=True),
    Column("status", Text, primary_key=True),
    Column("kernels", Integer, nullable=False),
    Column("seconds", Double, nullable=False),
    sqlite_with_rowid=False,
)

replay = Table(
    "replay",
    metadata,
    _number(),
    Column("uid", Text, nullable=False, unique=True),
    _to("signature", index=True),
    Column("at", Double, nullable=False),
    Column("arch", Text, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("runs", Integer, nullable=False),
    *_environment(),
)

event = Table(
    "event",
    metadata,
    _number(),
    Column("uid", Text, nullable=False, unique=True),
    _to("signature", index=True),
    Column("at", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("link", Text, nullable=False),
    Column("archs", Text, nullable=False),
    Column("until", Text, nullable=False),
    Column("author", Text, nullable=False),
)

measurement = Table(
    "measurement",
    metadata,
    _number(),
    Column("uid", Text, nullable=False, unique=True),
    Column("series", Text, nullable=False, index=True),
    Column("at", Double, nullable=False),
    Column("value", Double, nullable=False),
    Column("unit", Text, nullable=False),
    *_environment(),
)
