"""A session's folder in the ledger: what of it arrives, and that nothing counts twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from ledger_sessions import DQ, ENVIRONMENT, SessionFolder, case_of

from fuzz.compiling import Build
from fuzz.compiling.pool import Ended
from fuzz.core.verdict import Signature
from fuzz.ledger.errors import LedgerError
from fuzz.ledger.ingest.feed import take_in
from fuzz.ledger.query import read
from fuzz.ledger.query.signatures import signature, signatures
from fuzz.ledger.tables import schema
from fuzz.ledger.tables.database import Ledger
from fuzz.session.precompile.compile_records import write_compiled
from fuzz.session.records import Session

LSE = Signature("t", "wrong", "accuracy", ("lse",), features=("gqa",))


def contents(ledger: Ledger) -> dict[str, list[tuple]]:
    """Every row of every table."""
    with ledger.read() as connection:
        tables = schema.metadata.sorted_tables
        return {t.name: sorted(map(tuple, connection.execute(t.select())), key=repr) for t in tables}


@pytest.fixture
def session(tmp_path: Path) -> SessionFolder:
    """Eight cases pass, two fail of one bug, of which one is looked into."""
    made = SessionFolder(tmp_path / "session")
    made.passes(*range(8))
    made.settles(made.fails(9, msgspec.structs.replace(DQ, features=("softcap", "gqa"))))
    made.fails(8, msgspec.structs.replace(DQ, features=("softcap", "gqa", "causal")))
    return made


def test_a_session_says_what_it_ran_and_where(ledger, session):
    take_in(ledger, session.path)
    (row,) = read.sessions(ledger).to_dict("records")
    assert (row["session"], row["night"], row["cases"], row["failing"], row["planned"]) == ("id0", "night0", 10, 2, 10)
    assert (row["host"], row["commit"], row["device"], row["seed"]) == ("host", "c0ffee", "host", 7)
    assert row["seconds"] == pytest.approx(12.5) and row["ended"] is not None
    versions = read.packages(ledger)
    assert dict(zip(versions["name"], versions["version"], strict=True)) == dict(ENVIRONMENT.packages)
    tallies = read.tallies(ledger)[["target", "arch", "outcome", "cases"]]
    assert sorted(map(tuple, tallies.to_numpy())) == [("t", "sm_90a", "fail", 2), ("t", "sm_90a", "pass", 8)]


def test_a_run_keeps_case_outcome_features_and_signature(ledger, session):
    take_in(ledger, session.path)
    runs, names = read.runs(ledger, "id0"), read.feature_names(ledger)
    row = runs[runs["place"] == 9].iloc[0]
    assert (row.case_id, row.outcome, row.ratio, row.seconds) == (case_of(9).id, "fail", 0.125, 1.25)
    assert {names[i] for i in names if i // 8 < len(row.features) and row.features[i // 8] >> i % 8 & 1} == {
        "gqa",
        "softcap",
    }
    assert set(runs[runs["outcome"] == "fail"]["signature"]) == {DQ.id}
    assert set(runs[runs["outcome"] == "pass"]["signature"]) == {""}


def test_sums_are_those_of_the_cases(ledger, session):
    take_in(ledger, session.path)
    pairs = read.coverage(ledger).set_index(["feature", "other"])
    assert pairs.index.size == 3
    assert tuple(pairs.loc[("gqa", "gqa")]) == (10, 2) and tuple(pairs.loc[("softcap", "softcap")]) == (5, 1)
    assert tuple(pairs.loc[("gqa", "softcap")]) == (5, 1)
    timings = read.timings(ledger).set_index("phase")
    assert timings.loc["run", ["cases", "seconds", "p50", "most"]].tolist() == [10, 5.0, 0.5, 0.5]


def test_a_finding_has_its_case_evidence_and_number_of_cases(ledger, session):
    take_in(ledger, session.path)
    (known,) = signatures(ledger)
    assert known.signature == DQ and known.met == 2 and known.life.state == "new"
    assert known.best.case == case_of(9) and known.best.minimal and known.life.rate.failed == 5
    assert known.best.evidence is not None and known.best.evidence.evidence == {"gpu": "busy"}
    (row,) = read.findings(ledger).to_dict("records")
    assert (row["signature"], row["met"], row["cases"], row["arch"]) == (DQ.id, 2, 10, "sm_90a")


def test_kernels_are_counted_once_by_arch_and_by_how_they_first_ended(ledger, session):
    build = Build.of("toy_kernels:copies", {}, "sm_90a")
    other = Build.of("toy_kernels:fails", {}, "sm_90a")
    write_compiled(session.path, [Ended(build, "built", 2.5), other])
    write_compiled(session.path, [build, other])  # of the session that goes on
    take_in(ledger, session.path)
    rows = read.compiles(ledger)[["arch", "status", "kernels", "seconds"]]
    assert sorted(map(tuple, rows.to_numpy())) == [("sm_90a", "built", 1, 2.5), ("sm_90a", "cached", 1, 0.0)]


@pytest.mark.parametrize("moved", [False, True])
def test_a_session_counts_once_however_often_it_is_imported(ledger, session, tmp_path, moved):
    take_in(ledger, session.path)
    before = contents(ledger)
    if moved:
        shutil.copytree(session.path, tmp_path / "moved")
        take_in(ledger, tmp_path / "moved")
        assert read.sessions(ledger)["cases"].tolist() == [10] and len(contents(ledger)["run"]) == 10
    else:
        take_in(ledger, session.path)
        assert contents(ledger) == before


def test_a_session_that_goes_on_is_that_of_one_that_was_never_cut_off(ledger, tmp_path, another):
    part, whole = SessionFolder(tmp_path / "part"), SessionFolder(tmp_path / "whole")
    part.passes(0, 1, 2)
    part.fails(5)
    take_in(ledger, part.path)
    assert read.sessions(ledger)["cases"].tolist() == [4]
    part.passes(3, 4, worker="w1")
    for folder in (part, whole):
        if folder is whole:
            whole.passes(0, 1, 2, 3, 4)
            whole.fails(5)
    take_in(ledger, part.path)
    resumed = read.runs(ledger, "id0")
    with another("other.sqlite") as other:
        take_in(other, whole.path)
        pd.testing.assert_frame_equal(resumed, read.runs(other, "id0"))
        names = ["target", "outcome", "cases", "seconds"]
        pd.testing.assert_frame_equal(read.tallies(ledger)[names], read.tallies(other)[names])


def test_one_bug_of_two_nights_is_one_signature(ledger, tmp_path):
    for day, features in enumerate([("softcap",), ("softcap", "causal")]):
        night = SessionFolder(tmp_path / str(day), day)
        sign = msgspec.structs.replace(DQ, features=features)
        night.settles(night.fails(1, sign), sign)
    other = SessionFolder(tmp_path / "2", 2)
    other.settles(other.fails(1, LSE), LSE)
    for day in range(3):
        take_in(ledger, tmp_path / str(day))
    found = {known.uid: known for known in signatures(ledger)}
    assert found[DQ.id].sessions == 2 and found[DQ.id].life.state == "open"
    assert found[LSE.id].sessions == 1 and found[LSE.id].life.state == "new"
    later = msgspec.structs.replace(DQ, features=("softcap", "causal"))
    assert signature(ledger, later.id).uid == DQ.id
    with pytest.raises(LedgerError, match="no signature has this id"):
        signature(ledger, "ffff")


def test_a_failure_that_did_not_show_again_is_flaky_and_one_of_the_corpus_is_expected(ledger, tmp_path):
    night, next_night = SessionFolder(tmp_path / "0"), SessionFolder(tmp_path / "1", 1)
    night.fails(1, DQ, "hang", status="unconfirmed")
    night.fails(2, LSE, status="known", finding="lse.json")
    next_night.passes(1)
    for folder in (night, next_night):
        take_in(ledger, folder.path)
    states = {known.signature.tensors: known.life for known in signatures(ledger)}
    assert states["lse",].state == "expected" and states["lse",].link == "lse.json"
    assert states["dq",].state == "flaky" and states["dq",].rate.failed == 1


def test_a_folder_of_an_old_version_is_imported(ledger, tmp_path):
    old = SessionFolder(tmp_path / "old")
    session = msgspec.json.decode((old.path / "session.json").read_bytes(), type=Session)
    plain = {"settings": session.settings, "machine": {"python": "3.11", "gpu": "NVIDIA H100, 570.1"}, "since": 1.7e9}
    (old.path / "session.json").write_bytes(msgspec.json.encode(plain))
    old.passes(0, 1)
    path = old.path / "records-w0.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"index":1,', b""))  # older records do not say their place
    uid = take_in(ledger, old.path)
    assert take_in(ledger, old.path) == uid
    (row,) = read.sessions(ledger).to_dict("records")
    assert (row["cases"], row["gpu"], row["night"]) == (2, "NVIDIA H100", "2023-11-14")


@pytest.mark.parametrize("content", [None, "{", '{"settings": 3}'])
def test_a_folder_that_is_no_session_is_said_in_one_line(ledger, tmp_path, content):
    if content is not None:
        (tmp_path / "session.json").write_text(content)
    with pytest.raises(LedgerError, match=str(tmp_path)):
        take_in(ledger, tmp_path)
