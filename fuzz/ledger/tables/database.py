"""Ledger: a database opened by URL, SQLite or PostgreSQL, with the tables of this version in it.

SQLite: one file in WAL mode. Writers wait for one another (BUSY seconds at most), readers wait for nobody. Not on a
network file system, where WAL does not work: machines that share a ledger use PostgreSQL, or files of `export`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from fuzz.ledger.errors import LedgerError
from fuzz.ledger.tables.migrate import upgrade
from fuzz.ledger.tables.names import Names

BUSY = 60.0  # seconds that a writer waits for others
CONNECT = 10  # seconds until PostgreSQL has to answer


class Ledger:
    """An open ledger. `place` is its URL or file, as users gave it. Safe to use from several threads.

    create  False: raises LedgerError where there is none yet
    Raises LedgerError, in one line, for a URL of another database, a driver that is not installed, a database that does
    not answer, a file that is none, and a ledger of a newer version.
    """

    def __init__(self, place: str, *, create: bool = True) -> None:
        self.place = place
        self.url = _url(place)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        if self.sqlite:
            _check_file(Path(str(self.url.database)), place, create)
        self.engine = _engine(self.url, place)
        self.names = Names()
        try:
            with self.write() as connection:
                upgrade(connection, place, create=create)
        except SQLAlchemyError as error:
            self.engine.dispose()
            raise LedgerError(f"ledger {self.shown}: {_reason(error)}") from None
        except LedgerError:
            self.engine.dispose()
            raise

    @property
    def shown(self) -> str:
        """The place without a password."""
        return str(self.url.database) if self.sqlite else self.url.render_as_string()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections."""
        self.engine.dispose()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write: committed at the end, nothing of it after an exception. Keep it short."""
        try:
            with self.engine.connect().execution_options(attnfuzz_write=True) as connection, connection.begin():
                yield connection
        except BaseException:
            self.names.forget()
            raise

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the ledger, whatever is written meanwhile."""
        options: dict[str, Any] = {} if self.sqlite else {"isolation_level": "REPEATABLE READ"}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection


def _url(place: str) -> URL:
    """The URL of a place: a URL with '://', else a file of SQLite's."""
    if "://" not in place:
        return URL.create("sqlite", database=place)
    try:
        url = make_url(place)
    except ArgumentError:
        raise LedgerError(f"ledger {place}: no URL: postgresql://user@host/database, or a file") from None
    backend = url.get_backend_name()
    if backend in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and url.database:
        return url.set(drivername="sqlite")
    raise LedgerError(f"ledger {place}: a ledger is a file (SQLite) or postgresql://…, not {backend}")


def _check_file(path: Path, place: str, create: bool) -> None:
    if not path.exists():
        if not create:
            raise LedgerError(f"ledger {place}: there is none; `attnfuzz run` and `attnfuzz import` make one")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"ledger {place}: {error.strerror or error}") from None
    elif not path.is_file():
        raise LedgerError(f"ledger {place}: is no file")


def _engine(url: URL, place: str) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY, "check_same_thread": False})
        event.listen(engine, "connect", _sqlite_connected)
        event.listen(engine, "begin", _sqlite_begins)
        return engine
    try:
        return create_engine(url, pool_size=2, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT})
    except ModuleNotFoundError:
        raise LedgerError(f"ledger {place}: needs psycopg (pip install 'attnfuzz[postgres]')") from None


def _sqlite_connected(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # `_sqlite_begins` begins transactions
    connection.execute("PRAGMA synchronous=NORMAL")  # in WAL mode a power failure may cost the last commits, no more
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA cache_size=-32768")
    until = time.monotonic() + BUSY
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:  # this statement does not wait for others by itself
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _sqlite_begins(connection: Connection) -> None:
    """A transaction that is to write takes the lock at once: one that asks for it later may be refused for ever."""
    writes = connection.get_execution_options().get("attnfuzz_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _reason(error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().split("\n")[0] or type(cause).__name__
