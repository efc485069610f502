"""Claims: a failure that a killed worker was minimising is reported all the same, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from runner_tools import case

from fuzz.core.signature import signature
from fuzz.core.verdict import Finding, Verdict
from fuzz.corpus.entry import Entry
from fuzz.corpus.store import load_all
from fuzz.session import claims
from fuzz.session.claims import Claims
from fuzz.session.records import Reader, Record, sizes

CASE = case("wrong")
VERDICT = Verdict(CASE.id, "fail", (Finding("accuracy", "wrong", "O is wrong", "o"),))
FOUND = signature(CASE, VERDICT)
ENTRY = Entry.as_met(CASE, "fail", FOUND, device="host")
RECORD = Record("w0", "shard", CASE.target, CASE.id, "fail", {"total": 1.0}, message="O is wrong", case=CASE)


@pytest.fixture
def killed(tmp_path: Path) -> Claims:
    """Claims of a session whose worker was killed while it minimised."""
    made = Claims(tmp_path)
    assert made.take(FOUND, ENTRY, RECORD)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    path = tmp_path / "claims" / FOUND.id
    claim = msgspec.json.decode(path.read_bytes(), type=claims.Claim)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(claim, pid=process.pid)))
    return made


def test_one_worker_minimises_and_the_others_count(tmp_path):
    made = Claims(tmp_path)
    assert made.take(FOUND, ENTRY, RECORD) and not Claims(tmp_path).take(FOUND, ENTRY, RECORD)
    made.settle(FOUND)
    assert not made.take(FOUND, ENTRY, RECORD) and made.recover() == 0


def test_a_claim_of_a_process_that_is_gone_is_taken_over(killed, tmp_path):
    assert killed.take(FOUND, ENTRY, RECORD) and not killed.take(FOUND, ENTRY, RECORD)
    assert killed.recover() == 0, "its new owner lives"


def test_what_nobody_took_over_is_reported_as_it_was_met_once(killed, tmp_path):
    assert killed.recover() == 1 and killed.recover() == 0
    (record,) = Reader(tmp_path).new()
    assert (record.status, record.case_id, record.message) == ("new", CASE.id, "O is wrong")
    (entry,) = load_all(tmp_path / "findings")
    assert entry.case == CASE and entry.source.endswith("not minimised")
    assert record.finding == str(tmp_path / "findings" / entry.name)


def test_another_process_with_the_same_number_is_not_the_owner(killed, tmp_path, monkeypatch):
    path = tmp_path / "claims" / FOUND.id
    claim = msgspec.json.decode(path.read_bytes(), type=claims.Claim)
    assert msgspec.structs.replace(claim, pid=1, born=claim.born - 3600).abandoned


def test_a_report_that_was_written_is_not_written_again(killed, tmp_path):
    from fuzz.session.records import Recorder

    recorder = Recorder(tmp_path, "w0")
    recorder.add(msgspec.structs.replace(RECORD, status="new", finding="findings/x.json"))
    recorder.close()
    assert killed.recover() == 0 and not (tmp_path / "findings").exists()


def test_records_of_a_session_before_in_the_same_folder_are_not_counted(tmp_path):
    from fuzz.session.records import Recorder

    recorder = Recorder(tmp_path, "w0")
    recorder.add(RECORD)
    reader = Reader(tmp_path, sizes(tmp_path))
    recorder.add(RECORD)
    recorder.close()
    assert len(list(reader.new())) == 1
