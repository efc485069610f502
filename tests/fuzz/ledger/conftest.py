"""Every test that asks for `place` or `ledger` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import postgres
import pytest

from fuzz.ledger.errors import LedgerError
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.database import Ledger

NO_POSTGRES = "PostgreSQL's binaries are missing (Debian: apt-get install postgresql)"


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """A PostgreSQL server, one for each process of the tests."""
    if postgres.binaries() is None:
        pytest.skip(NO_POSTGRES)
    with postgres.server() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place without a ledger."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite")
    server = request.getfixturevalue("server")
    server.drop_tables()
    return server.url


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of SQLite's with the tables."""
    path = tmp_path_factory.mktemp("made") / "ledger.sqlite"
    Ledger(str(path)).close()
    return path


@pytest.fixture
def another(made: Path, tmp_path: Path) -> Callable[[str], Ledger]:
    """A further ledger, of SQLite, in a file of that name: to be closed by who asks for it."""

    def one(name: str) -> Ledger:
        (tmp_path / name).write_bytes(made.read_bytes())
        return Ledger(str(tmp_path / name))

    return one


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place with a ledger that has the tables, and nothing in them."""
    if request.param == "postgresql":
        return _without_rows(request.getfixturevalue("server"))
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(request.getfixturevalue("made").read_bytes())
    return str(path)


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    """An open ledger."""
    with Ledger(place) as found:
        yield found


def _without_rows(server: postgres.Server) -> str:
    """The database's URL, with the tables of this version and nothing in them."""
    try:
        with Ledger(server.url, create=False):
            pass
        server.empty_tables(list(schema.metadata.tables))
    except LedgerError:  # none, or that of a test which made it another version's
        server.drop_tables()
        Ledger(server.url).close()
    return server.url
