"""Opening a ledger, its tables, and many writers at once."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from ledger_sessions import DQ, SessionFolder
from sqlalchemy import func, select, text

from fuzz.ledger.errors import LedgerError
from fuzz.ledger.ingest.feed import take_in
from fuzz.ledger.ingest.write import bits, write
from fuzz.ledger.query import read
from fuzz.ledger.query.signatures import signatures
from fuzz.ledger.tables import migrate, schema
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.tables.rows import FAILING, OUTCOMES, Batch, RunRow, SessionRow

WRITERS = 8
FORK = multiprocessing.get_context("fork")


def test_the_migrations_make_the_tables_of_the_schema(empty):
    with Ledger(empty) as ledger, ledger.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []
        assert migrate.version(connection) == migrate.HEAD
        assert sorted(path.name[:4] for path in (migrate.MIGRATIONS / "versions").glob("0*.py"))[-1] == migrate.HEAD


def test_a_ledger_of_a_newer_version_is_refused(place):
    with Ledger(place) as ledger, ledger.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(LedgerError, match="newer version of attnfuzz"):
        Ledger(place)


def test_a_ledger_that_is_only_read_is_not_made(empty):
    with pytest.raises(LedgerError, match="there is none"):
        Ledger(empty, create=False)


def test_a_transaction_that_fails_leaves_nothing(ledger):
    with pytest.raises(KeyError), ledger.write() as connection:
        ledger.names.targets(connection, ["gone"])
        raise KeyError
    write(ledger, batch("s", [run("t", 0)]))
    assert read.tallies(ledger).empty and read.runs(ledger, "s")["target"].tolist() == ["t"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("mysql://host/x", "not mysql"),
        ("://", "no URL"),
        ("/proc/none/ledger.sqlite", "No such file"),
        ("/tmp", "is no file"),
        ("postgresql://nobody:secret@127.0.0.1:1/x", "refused"),
    ],
)
def test_a_place_that_is_none_is_said_in_one_line_without_its_password(place, message):
    with pytest.raises(LedgerError, match=message) as error:
        Ledger(place)
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    (tmp_path / "x.sqlite").write_bytes(b"no database " * 1000)
    with pytest.raises(LedgerError, match="not a database"):
        Ledger(str(tmp_path / "x.sqlite"))


def test_without_psycopg_the_message_names_the_extra(monkeypatch):
    real = builtins.__import__

    def missing(name, *arguments, **keywords):
        if name.partition(".")[0] == "psycopg":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(LedgerError, match=r"pip install 'attnfuzz\[postgres\]'"):
        Ledger("postgresql://fuzz@db/ledger")


def test_the_table_of_outcomes_has_all_of_them_at_their_places():
    assert OUTCOMES[:6] == ("pass", "fail", "hang", "crash", "flake", "reject") and set(OUTCOMES) >= FAILING
    assert bits([0, 3, 9]) == b"\x09\x02" and bits([]) == b""


def batch(session: str, runs: list[RunRow]) -> Batch:
    """A batch of a session."""
    return Batch(SessionRow(session, 1.0, "night", archs={"t": "host"}), tuple(runs))


def run(target: str, place: int, **changed) -> RunRow:
    """A case that passes, with a feature that many writers add at once."""
    return RunRow(target, place, f"{place:012x}", "pass", features=(f"variant:x={place % 7}",), **changed)


def writer(place: str, number: int, start: float) -> None:
    """A process that writes a session, each of whose rows is sent twice, and a finding that others have too."""
    time.sleep(max(0.0, start - time.time()))
    with Ledger(place) as ledger:
        for first in range(0, 100, 20):
            rows = [run("t", place) for place in range(first, first + 20)]
            write(ledger, batch(f"s{number}", rows))
            write(ledger, batch(f"s{number}", rows))


def test_many_processes_write_into_a_new_ledger_at_once(empty):
    start = time.time() + 0.2
    processes = [FORK.Process(target=writer, args=(empty, number, start)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    with Ledger(empty) as ledger, ledger.read() as connection:
        counts = connection.execute(select(func.count()).select_from(schema.run).group_by(schema.run.c.session_id))
        assert sorted(row[0] for row in counts) == [100] * WRITERS
        names = connection.scalars(select(schema.feature.c.name)).all()
        assert len(names) == len(set(names)) and {f"variant:x={i}" for i in range(7)} <= set(names)
        assert connection.scalar(select(func.max(schema.feature.c.id))) == len(names) - 1


def taker(place: str, folder: Path) -> None:
    """A process that imports a session."""
    with Ledger(place) as ledger:
        take_in(ledger, folder)


def test_one_bug_that_many_machines_meet_at_once_is_one_signature(place, tmp_path):
    folders = [SessionFolder(tmp_path / str(day), day) for day in range(4)]
    for folder in folders:
        folder.settles(folder.fails(1))
    processes = [FORK.Process(target=taker, args=(place, folder.path)) for folder in folders]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    with Ledger(place) as ledger:
        (known,) = signatures(ledger)
        assert (known.uid, known.sessions) == (DQ.id, 4)


def test_a_writer_that_is_killed_leaves_whole_batches_and_its_session_counts_once_after(place, tmp_path):
    folder = SessionFolder(tmp_path / "s", cases=20_000)
    folder.passes(*range(6000))
    process = FORK.Process(target=taker, args=(place, folder.path))
    process.start()
    with Ledger(place) as ledger:
        until = time.monotonic() + 60
        while read.sessions(ledger).empty and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        with ledger.read() as connection:
            there = connection.scalar(select(func.count()).select_from(schema.run))
        assert there in (2000, 4000, 6000)
        assert read.sessions(ledger)["cases"].tolist() == [there]
        take_in(ledger, folder.path)
        assert read.sessions(ledger)["cases"].tolist() == [6000] and len(read.runs(ledger, "id0")) == 6000


def test_a_reader_sees_one_state_while_others_write(ledger):
    write(ledger, batch("s", [run("t", 0)]))
    count = select(func.count()).select_from(schema.run)
    with ledger.read() as connection:
        assert connection.scalar(count) == 1
        write(ledger, batch("s", [run("t", 1)]))
        assert connection.scalar(count) == 1
    with ledger.read() as connection:
        assert connection.scalar(count) == 2


def test_a_run_is_small(tmp_path):
    with Ledger(str(tmp_path / "l.sqlite")) as ledger:
        features = tuple(f"variant:x={i}" for i in range(20))
        rows = [
            RunRow("t", i, f"{i * 0x9E3779B97F4A % 2**48:012x}", "pass", i / 1e4, i / 1e3, features)
            for i in range(5000)
        ]
        write(ledger, batch("s", rows))
    with sqlite3.connect(tmp_path / "l.sqlite") as connection:
        (size,) = connection.execute("SELECT sum(pgsize) FROM dbstat WHERE name = 'run'").fetchone()
    assert size / 5000 < 64
