"""The ledger beside a running session."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest
from ledger_sessions import SessionFolder

from fuzz.ledger.errors import LedgerError
from fuzz.ledger.ingest import feed
from fuzz.ledger.ingest.beside import beside
from fuzz.ledger.place import DEFAULT
from fuzz.ledger.query import read
from fuzz.ledger.tables.database import Ledger


def test_the_ledger_follows_a_session_and_has_all_of_it_at_its_end(place, tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "PERIOD", 0.05)
    monkeypatch.setattr(feed, "SUMS", 0.0)
    session = SessionFolder(tmp_path / "s")
    session.passes(0, 1, 2)
    with Ledger(place) as ledger:
        with beside(place)(session.path) as line:
            until = time.monotonic() + 60
            while read.coverage(ledger).empty and time.monotonic() < until:
                time.sleep(0.05)
            (row,) = read.sessions(ledger).to_dict("records")
            assert row["cases"] == 3 and math.isnan(row["ended"])
            session.passes(3, 4)
            session.settles(session.fails(5))
        assert line() == f"ledger: {ledger.shown}"
        (row,) = read.sessions(ledger).to_dict("records")
        assert (row["cases"], row["failing"]) == (6, 1) and row["ended"] > 0
        assert read.findings(ledger)["met"].tolist() == [1]


def test_a_default_ledger_that_cannot_be_written_costs_a_line(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNFUZZ_LEDGER")
    monkeypatch.chdir(tmp_path)
    (tmp_path / Path(DEFAULT).parent).write_text("a file, no folder")
    session = SessionFolder(tmp_path / "s")
    with beside(None)(session.path) as line:
        session.passes(0)
    assert line().startswith("the ledger is not up to date: ") and line().endswith(f"attnfuzz import {session.path}")


def test_a_ledger_that_was_asked_for_is_tried_before_the_session(tmp_path, monkeypatch):
    with pytest.raises(LedgerError, match="is no file"):
        beside(str(tmp_path))
    monkeypatch.setenv("ATTNFUZZ_LEDGER", str(tmp_path))
    with pytest.raises(LedgerError, match="is no file"):
        beside(None)


def test_without_a_ledger_nothing_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with beside("none")(tmp_path) as line:
        pass
    assert line() == "" and not list(tmp_path.iterdir())


def test_packages_of_the_ledger_that_are_missing_cost_a_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fuzz.ledger.ingest.feed", None)
    session = SessionFolder(tmp_path / "s")
    with beside(str(tmp_path / "ledger.sqlite"))(session.path) as line:
        session.passes(0)
    assert line().startswith("no ledger: ") and line().endswith(f"attnfuzz import {session.path}")
