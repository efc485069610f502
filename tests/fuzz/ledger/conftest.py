"""Every test that asks for `place` or `ledger` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest

from fuzz.ledger.database import Ledger

NO_POSTGRES = "PostgreSQL's binaries are missing (Debian: apt-get install postgresql)"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[postgres.Server]:
    """A PostgreSQL server; its database `filled` has the tables."""
    if postgres.binaries() is None:
        pytest.skip(NO_POSTGRES)
    folder = tmp_path_factory.mktemp("postgres")
    for parent in (folder, *folder.parents[:3]):  # its own user has to get there
        if parent != Path("/tmp"):
            parent.chmod(0o755)
    with postgres.server(folder) as found:
        Ledger(found.database()).close()
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place without a ledger."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite")
    return request.getfixturevalue("server").database()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of SQLite's with the tables."""
    path = tmp_path_factory.mktemp("made") / "ledger.sqlite"
    Ledger(str(path)).close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place with a ledger that has the tables, and nothing in them."""
    if request.param == "postgresql":
        return request.getfixturevalue("server").database("ledger0")
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(request.getfixturevalue("made").read_bytes())
    return str(path)


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    """An open ledger."""
    with Ledger(place) as found:
        yield found
