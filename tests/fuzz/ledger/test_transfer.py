"""JSON Lines: what one ledger has is in the other one, once, whichever databases they are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from ledger_sessions import DQ, SessionFolder

from fuzz.core.verdict import Signature
from fuzz.ledger.errors import LedgerError
from fuzz.ledger.ingest.feed import take_in
from fuzz.ledger.ingest.write import write_single
from fuzz.ledger.query import read
from fuzz.ledger.query.signatures import signatures
from fuzz.ledger.query.unload import Selection
from fuzz.ledger.tables.database import Ledger
from fuzz.ledger.tables.rows import BisectionRow, EventRow, Hardware, MeasurementRow, ReplayRow, Revision
from fuzz.ledger.transfer import export, load

FRAMES = (
    "sessions", "tallies", "timings", "compiles", "findings", "packages", "changes", "replays", "events",
    "bisections", "measurements",
)  # fmt: skip
WHERE = {"hardware": Hardware("host"), "toolchain": {"python": "3.11"}, "revision": Revision("c0ffee")}
ALL = Selection()


def frames(ledger: Ledger) -> dict[str, pd.DataFrame]:
    """Everything that the read side says."""
    found = {name: getattr(read, name)(ledger) for name in FRAMES}
    found["coverage"] = read.coverage(ledger, by_night=True).sort_values(
        ["night", "feature", "other"], ignore_index=True
    )
    for session in found["sessions"]["session"]:
        runs, names = read.runs(ledger, session), read.feature_names(ledger)
        has = [{names[i] for i in names if i // 8 < len(b) and b[i // 8] >> i % 8 & 1} for b in runs["features"]]
        found[session] = runs.assign(features=[sorted(one) for one in has])
    return found


def same(one: Ledger, other: Ledger) -> None:
    """Asserts that two ledgers say the same."""
    a, b = frames(one), frames(other)
    assert a.keys() == b.keys()
    for name, frame in a.items():
        pd.testing.assert_frame_equal(frame, b[name], obj=name)
    assert [(k.uid, k.life, k.met, k.best) for k in signatures(one)] == [
        (k.uid, k.life, k.met, k.best) for k in signatures(other)
    ]


def fill(ledger: Ledger, folder: Path) -> None:
    """Two nights of one bug, and what was said of it."""
    for day in range(2):
        night = SessionFolder(folder / str(day), day)
        night.passes(0, 1, 2, 3)
        night.settles(night.fails(5))
        take_in(ledger, night.path)
    singles = [
        ReplayRow("r1", DQ.id, 1.7e9 + 5, "sm_90a", 1, 3, **WHERE),
        EventRow("e1", DQ.id, 1.7e9 + 6, "expect", "issues/1", ("sm_90a",), "2100-01-01", "somebody"),
        BisectionRow(
            "b1", DQ.id, 1.7e9 + 8, "commits", "a", "d", 3, (("b", "x"), ("c", "")), 0.9, False, 2, 5, **WHERE
        ),
        MeasurementRow("m1", "forward", 1.7e9 + 7, 2.5, "TFLOP/s", **WHERE),
    ]
    write_single(ledger, singles)


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_an_import_of_an_export_is_the_same_ledger_once_or_twice(ledger, tmp_path, name, another):
    with another("from.sqlite") as source:
        fill(source, tmp_path)
        assert export(source, str(tmp_path / name), ALL) == 2
        for _ in range(2):
            assert load(ledger, str(tmp_path / name)) == 2
            same(source, ledger)


def test_a_ledger_goes_out_as_it_came_in(ledger, tmp_path, another):
    fill(ledger, tmp_path)
    export(ledger, str(tmp_path / "out.jsonl"), ALL)
    with another("to.sqlite") as other:
        load(other, str(tmp_path / "out.jsonl"))
        same(ledger, other)
        export(other, str(tmp_path / "again.jsonl"), ALL)
    first, second = (sorted((tmp_path / name).read_text().splitlines()) for name in ("out.jsonl", "again.jsonl"))
    assert len(first) == len(second)


def test_two_machines_with_the_same_bug_have_one_signature(ledger, tmp_path, another):
    alike = Signature("t", "wrong", "accuracy", ("dq",), features=("softcap", "causal"))
    for day, sign in enumerate((DQ, alike)):
        night = SessionFolder(tmp_path / str(day), day)
        night.settles(night.fails(1, sign), sign)
        with another(f"{day}.sqlite") as one:
            take_in(one, night.path)
            export(one, str(tmp_path / f"{day}.jsonl"), ALL)
        load(ledger, str(tmp_path / f"{day}.jsonl"))
    (known,) = signatures(ledger)
    assert known.sessions == 2 and known.life.state == "open"


def test_some_nights_or_no_runs_can_be_exported(ledger, tmp_path, another):
    fill(ledger, tmp_path)
    assert export(ledger, str(tmp_path / "one.jsonl"), Selection(nights=("night1",), runs=False)) == 1
    with another("to.sqlite") as other:
        load(other, str(tmp_path / "one.jsonl"))
        assert read.sessions(other)["session"].tolist() == ["id1"] and read.runs(other, "id1").empty
        assert read.sessions(other)["cases"].tolist() == [5]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> list[str]:
    """Lines of an export."""
    folder = tmp_path_factory.mktemp("exported")
    with Ledger(str(folder / "from.sqlite")) as source:
        fill(source, folder)
        export(source, str(folder / "all.jsonl"), ALL)
    return (folder / "all.jsonl").read_text().splitlines()


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (0, '{"format":"attnfuzz-ledger","version":2}', "version 2; this program reads version 1"),
        (0, '{"format":"other","version":1}', "no export of a ledger"),
        (0, '{"target":"t"}', "line 1"),
        (1, "{", "line 2"),
        (1, '{"type":"unheard"}', "line 2"),
        (2, '{"type":"runs","session":"x","targets":[],"features":[],"signatures":[],"runs":[]}', "do not follow it"),
        (-1, '{"type":"event","uid":"e","signature":"ffffffff","at":1,"kind":"expect"}', "no line before it has"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_line(tmp_path, exported, number, line, message, another):
    lines = list(exported)
    lines[number] = line
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with another("to.sqlite") as ledger, pytest.raises(LedgerError, match=message) as error:
        load(ledger, str(path))
    assert str(path) in str(error.value)


def test_a_torn_file_is_refused_and_its_whole_counts_once_after_it(tmp_path, exported, another):
    whole = ("\n".join(exported) + "\n").encode()
    torn, path = tmp_path / "torn.jsonl.gz", tmp_path / "whole.jsonl.gz"
    path.write_bytes(gzip.compress(whole))
    torn.write_bytes(path.read_bytes()[:-40])
    with another("to.sqlite") as ledger:
        with pytest.raises(LedgerError, match="torn"):
            load(ledger, str(torn))
        load(ledger, str(path))
        assert read.sessions(ledger)["cases"].tolist() == [5, 5]


def test_every_line_says_its_type(exported):
    kinds = [json.loads(line).get("type") for line in exported[1:]]
    assert kinds == ["signature", "session", "runs", "session", "runs", "replay", "event", "bisection", "measurement"]


def test_bisections_are_read_with_their_revisions(ledger, tmp_path):
    fill(ledger, tmp_path)
    (row,) = read.bisections(ledger).to_dict("records")
    assert row["signature"] == DQ.id and row["first"] == [["b", "x"], ["c", ""]]
    assert (row["history"], row["probability"], row["confident"], row["suspects"]) == ("commits", 0.9, False, 3)
