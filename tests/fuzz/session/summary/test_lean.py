"""Lean records: the end of a session reads in them what it reads in whole ones, and they take little memory."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace
from rich.console import Console

from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Signature, Verdict
from fuzz.session.records import MOST, Record, Settled, Settlement
from fuzz.session.summary.lean import Lean
from fuzz.session.summary.report import show
from oracles.problem import Problem

CASE = Case("torch.sdpa.math", Problem((8,), (8,), 1, 1, 8, 8, "float32"))
DQ = Signature("torch.sdpa.math", "wrong", "accuracy", ("dq",), features=("softcap",))
VERDICT = Verdict(CASE.id, "fail", (Finding("accuracy", "wrong", "dQ is wrong"),))


def read(records: Sequence[Record]) -> list[Record]:
    """The records as they are read from a file: nothing in them is shared."""
    return [msgspec.json.decode(msgspec.json.encode(record), type=Record) for record in records]


def session(good: int, bad: int) -> list[Record]:
    seconds = {"inputs": 0.125, "reference": 0.25, "run": 0.5, "judge": 0.25, "total": 1.125, "draw": 0.125}
    names = tuple(f"feature {number}" for number in range(12))
    passed = Record("w0", "s-0", CASE.target, "id", "pass", seconds, features=names, calls=('{"q": "tensor"}',) * 2)
    failed = replace(
        passed, outcome="fail", signature=DQ, case=CASE, verdict=VERDICT, before=(CASE, CASE), status="met"
    )
    return [
        *(replace(passed, index=number, case_id=f"{number:012x}") for number in range(good)),
        *(replace(failed, index=good + number, case_id=f"f{number:011x}") for number in range(bad)),
    ]


def shown(records: Sequence[Record]) -> str:
    console = Console(file=io.StringIO(), width=200)
    settled = Settled("w0", "s-0", f"f{0:011x}", "new", DQ, DQ, "x.json", failed=5, probed=5, minimal=True, at=1.0)
    ended = Settlement([settled])
    show(ended.apply(records), 12.0, console, ended=ended)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_session_ends_with_the_same_lines() -> None:
    records = session(40, MOST + 3)
    text = shown(records)
    assert "NEW torch.sdpa.math: dQ is wrong" in text and shown(list(Lean()(read(records)))) == text


def test_only_the_first_failures_of_a_cause_keep_what_is_for_looking_into_them() -> None:
    failures = [record for record in Lean()(read(session(1, MOST + 3))) if record.outcome == "fail"]
    assert [record.verdict is not None for record in failures] == [True] * MOST + [False] * 3
    assert [len(record.before) for record in failures] == [2] * MOST + [0] * 3
    assert all(record.case == CASE for record in failures)  # what tells the plainest of them


def test_records_take_less_than_half_of_the_memory() -> None:
    def taken(make) -> int:
        lines = [msgspec.json.encode(record) for record in session(2000, 0)]
        tracemalloc.start()
        kept = make(msgspec.json.decode(line, type=Record) for line in lines)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(kept) == 2000
        return size

    assert taken(lambda records: list(Lean()(records))) < taken(list) / 2
