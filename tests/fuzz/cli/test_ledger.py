"""The commands about the ledger, from the command line."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from judge_tools import FAKES
from ledger_sessions import DQ, SessionFolder, case_of

from fuzz.cli.main import main
from fuzz.core.case import load
from fuzz.core.verdict import Signature
from fuzz.ledger.query import read
from fuzz.ledger.tables.database import Ledger
from fuzz.session.records import Reader

HONEST = Signature("fake.honest", "wrong", "accuracy", ("dq",), features=("softcap",))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with one signature, made by an import; the environment names it."""
    monkeypatch.setenv("ATTNFUZZ_LEDGER", str(tmp_path / "ledger.sqlite"))
    night = SessionFolder(tmp_path / "s")
    night.passes(0, 1)
    night.settles(night.fails(5))
    assert main(["import", str(night.path)]) == 0
    return str(tmp_path / "ledger.sqlite")


def test_the_list_says_state_rate_and_what(place, capsys):
    assert main(["ledger", "list"]) == 0
    shown = capsys.readouterr().out
    assert DQ.id in shown and "new" in shown and "5 of 5" in shown and "dQ is wrong" in shown and "sm_90a" in shown
    assert main(["ledger", "list", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["signature"], found["state"], found["failed"], found["runs"]) == (DQ.id, "new", 5, 5)
    assert main(["ledger", "list", "--state", "fixed"]) == 0
    assert capsys.readouterr().out == "no signature\n"


def test_a_signature_is_shown_with_its_case(place, tmp_path, capsys):
    assert main(["ledger", "show", DQ.id[:4], "--case", str(tmp_path / "case.json")]) == 0
    shown = capsys.readouterr().out
    assert "0 of 10 passes on sm_90a" in shown and "needs softcap" in shown
    assert load(tmp_path / "case.json") == case_of(5)


def test_what_is_expected_can_be_taken_back(place, capsys):
    said = ["ledger", "expect", DQ.id, "--link", "issues/1", "--arch", "sm_90..sm_103", "--until", "2999-01-01"]
    assert main(said) == 0 and capsys.readouterr().out.endswith("expected\n")
    assert main(["ledger", "show", DQ.id]) == 0 and "expected until 2999-01-01: issues/1" in capsys.readouterr().out
    assert main(["ledger", "unexpect", DQ.id]) == 0 and capsys.readouterr().out.endswith("new\n")
    assert main(["ledger", "expect", DQ.id, "--link", "x", "--arch", "sm_90.."]) == 2
    assert "a range is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["ledger", "show", "ffff"], "no signature has this id"),
        (["ledger", "list", "--ledger", "none"], "this command needs one"),
        (["ledger", "list", "--ledger", "nowhere.sqlite"], "there is none"),
        (["import", "nowhere.jsonl"], "nowhere.jsonl"),
        (["run", "--ledger", "mysql://host/x"], "not mysql"),
    ],
)
def test_a_mistake_is_said_in_one_line(place, capsys, command, message):
    assert main(command) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_ledger_goes_through_a_file(place, tmp_path, capsys):
    assert main(["export", str(tmp_path / "all.jsonl.gz")]) == 0
    assert len(gzip.decompress((tmp_path / "all.jsonl.gz").read_bytes()).splitlines()) == 4
    other = str(tmp_path / "other.sqlite")
    assert main(["import", str(tmp_path / "all.jsonl.gz"), str(tmp_path / "s"), "--ledger", other]) == 0
    with Ledger(other) as ledger:
        assert read.sessions(ledger)["cases"].tolist() == [3]


def test_a_figure_is_kept(place):
    assert main(["ledger", "measure", "forward", "512.5", "TFLOP/s"]) == 0
    with Ledger(place) as ledger:
        (row,) = read.measurements(ledger).to_dict("records")
    assert (row["series"], row["value"], row["unit"]) == ("forward", 512.5, "TFLOP/s") and row["commit"]


def test_replays_close_a_signature_and_open_it_again(tmp_path, monkeypatch, capsys):
    """A target that is right closes it; what fails opens it again. One that is not here is not run."""
    monkeypatch.setenv("ATTNFUZZ_LEDGER", str(tmp_path / "ledger.sqlite"))
    honest = SessionFolder(tmp_path / "0", 0, target="fake.honest", arch="host")
    honest.settles(honest.fails(5, HONEST), HONEST)
    liar = Signature("fake.wrong_shape", "wrong_shape", "contract", ("o",))
    wrong = SessionFolder(tmp_path / "1", 1, target="fake.wrong_shape", arch="host")
    wrong.settles(wrong.fails(5, liar), liar)
    absent = SessionFolder(tmp_path / "2", 2)
    absent.settles(absent.fails(5))
    assert main(["import", *(str(tmp_path / str(day)) for day in range(3))]) == 0
    capsys.readouterr()
    files = [word for file in FAKES for word in ("--target-file", file)]
    assert main(["ledger", "replay", "--device", "host", *files]) == 1
    shown = capsys.readouterr().out
    assert f"{HONEST.id}: 0 of 10 runs failed on host: fixed" in shown
    assert f"{liar.id}: 10 of 10 runs failed on host: open" in shown
    assert f"{DQ.id}: not run: target 't' is not known" in shown


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_session_that_is_killed_and_resumed_counts_once_in_the_ledger(tmp_path, backend):
    import postgres

    if backend == "sqlite":
        killed_and_resumed(tmp_path, str(tmp_path / "ledger.sqlite"))
    elif postgres.binaries() is None:
        pytest.skip("PostgreSQL's binaries are missing (Debian: apt-get install postgresql)")
    else:
        with postgres.server() as server:
            killed_and_resumed(tmp_path, server.url)


def killed_and_resumed(tmp_path: Path, place: str) -> None:
    """Kills a session with SIGKILL once the ledger has some of its cases, and resumes it."""
    folder = tmp_path / "session"
    options = ["--ledger", place, "--jobs", "2"]
    command = [sys.executable, "-m", "fuzz.cli.main", "run", *options]
    (honest,) = (file for file in FAKES if file.endswith("honest.py"))
    new = ["--target", "fake.honest", "--target-file", honest, "--cases", "600", "--corpus", ""]
    new += ["--size", "small", "--output-dir", str(folder)]
    running = subprocess.Popen([*command, *new], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    Ledger(place).close()
    with Ledger(place) as ledger:
        until = time.monotonic() + 120
        while (read.sessions(ledger).empty or not read.sessions(ledger)["cases"].sum()) and time.monotonic() < until:
            time.sleep(0.1)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        before = int(read.sessions(ledger)["cases"].sum())
        assert 0 < before < 600
        subprocess.run([*command, "--resume", str(folder)], check=True, capture_output=True, timeout=240)
        (row,) = read.sessions(ledger).to_dict("records")
        runs = read.runs(ledger, row["session"])
    records = list(Reader(folder).new())
    assert row["cases"] == len(runs) == 600
    assert sorted(runs["case_id"]) == sorted(record.case_id for record in records)
