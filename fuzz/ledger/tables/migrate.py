"""Brings a ledger to the tables of this version, with Alembic; nothing is imported where it has them already.

A new version of the tables: change schema.py, add migrations/versions/000N_*.py with what turns the version before into
it, and set HEAD. A test holds the migrated database against schema.py.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from fuzz.ledger.errors import LedgerError
from fuzz.ledger.tables.locks import one_writer

HEAD = "0002"
MIGRATIONS = Path(__file__).parent / "migrations"
_VERSIONS = "alembic_version"


def upgrade(connection: Connection, place: str, *, create: bool = True) -> None:
    """Upgrades within the connection's transaction, one process at a time.

    create  False: raises LedgerError for a database without a ledger
    Raises LedgerError for a ledger of a newer version.
    """
    if (found := version(connection)) == HEAD:
        return
    one_writer(connection)
    if (found := version(connection)) == HEAD:  # another process was quicker
        return
    if not found and not create:
        raise LedgerError(f"ledger {place}: there is none; `attnfuzz run` and `attnfuzz import` make one")
    if found > HEAD:
        raise LedgerError(f"ledger {place}: of a newer version of attnfuzz (tables {found}, this one knows {HEAD})")
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def version(connection: Connection) -> str:
    """The version of the tables; '' where there are none."""
    if not inspect(connection).has_table(_VERSIONS):
        return ""
    return connection.execute(text(f"SELECT version_num FROM {_VERSIONS}")).scalar() or ""
