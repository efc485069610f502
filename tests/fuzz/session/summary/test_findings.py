"""A session's lines about its findings: one line that tells, the best first, those that are probably one together."""

from __future__ import annotations

import msgspec

from fuzz.core.case import Case
from fuzz.core.verdict import Signature
from fuzz.session.records import Record, Settled, Settlement
from fuzz.session.summary.findings import findings, what
from oracles.problem import Problem

CASE = Case("t", Problem((8,), (8,), 1, 1, 8, 8, "float32"))
DQ = Signature("t", "wrong", "accuracy", ("dq",), features=("softcap",))


def record(case: str, outcome="pass", status="", finding="", sign=None, features=()) -> Record:
    return Record(
        "w", "s", "t", case, outcome, {}, features=features, status=status, finding=finding, signature=sign,
        message=f"message of {case}",
    )  # fmt: skip


def settled(case: str, finding: str, sign: Signature, **changed) -> Settled:
    one = Settled("w", "s", case, "new", sign, sign, finding, failed=5, probed=5, minimal=True, at=1.0)
    return msgspec.structs.replace(one, **changed)


def test_the_first_line_says_what_how_often_and_on_which_feature_it_depends() -> None:
    bad = [record(f"bad{i}", "fail", "again", "x.json", DQ, ("softcap", "gqa")) for i in range(6)]
    good = [record(f"good{i}", features=("gqa",)) for i in range(48)]
    good += [record(f"capped{i}", features=("softcap",)) for i in range(5)]
    first = record("bad", "fail", "new", "x.json", DQ, ("softcap",))
    lines = findings([first, *bad, *good], (), Settlement([settled("bad", "x.json", DQ)]))
    assert lines == [
        "NEW t: dQ is wrong, in 7 of 60 cases, all with softcap (7 of 12 fail; none of 48 without)",
        "    message of bad",
        "    no smaller case fails without softcap",
        "    attnfuzz repro x.json",
    ]


def test_a_finding_that_was_not_looked_into_says_so_and_comes_last() -> None:
    other = Signature("t", "wrong", "accuracy", ("lse",))
    records = [record("a", "fail", "new", "a.json", DQ), record("b", "fail", "new", "b.json", other)]
    ended = Settlement([settled("a", "a.json", DQ, note="saved as it was met"), settled("b", "b.json", other)])
    lines = findings(records, (), ended)
    assert lines[0].startswith("NEW t: LSE is wrong") and "    saved as it was met" in lines


def test_findings_that_are_probably_one_stand_together_with_the_reason() -> None:
    race, apart = (Signature("t", "race", "emulator", (name,), kernel="backward") for name in ("dk", "dv"))
    out = Signature("t", "out_of_bounds", "emulator", ("dk",), kernel="backward")
    signs = {"a": race, "b": apart, "c": out}
    records = [record(name, "fail", "new", f"{name}.json", sign) for name, sign in signs.items()]
    ended = Settlement([settled(name, f"{name}.json", sign) for name, sign in signs.items()])
    heads = [line for line in findings(records, (), ended) if line.startswith(("NEW", "    probably"))]
    assert heads == [
        "NEW t: race on dK, in the backward kernel, in 1 of 3 cases",
        "    probably one with the next one: same tensor, dk of the backward kernel",
        "NEW t: out of bounds on dK, in the backward kernel, in 1 of 3 cases",
        "NEW t: race on dV, in the backward kernel, in 1 of 3 cases",
    ]


def test_smaller_cases_that_fail_as_another_finding_does_tell_that_they_are_one() -> None:
    other = Signature("t", "hang", "runner")
    records = [record("a", "fail", "new", "a.json", DQ), record("b", "hang", "new", "b.json", other)]
    ended = Settlement([settled("a", "a.json", DQ, others=(other,)), settled("b", "b.json", other)])
    assert "    probably one with the next one: smaller cases of one fail as the other does" in findings(
        records, (), ended
    )


def test_what_does_not_show_again_is_said_apart() -> None:
    (line, command) = findings([msgspec.structs.replace(
        record("a", "hang", "unconfirmed", "q/a.json", Signature("t", "hang", "runner")), case=CASE
    )])  # fmt: skip
    assert line == "NOT SEEN AGAIN t: message of a" and command == "    attnfuzz repro q/a.json"


def test_the_failure_in_a_few_words() -> None:
    assert what(msgspec.structs.replace(DQ, tensors=("dk", "dq"), kind="nan")) == "dK, dQ are NaN"
    raised = Signature("t", "raised", "protocol", place="TypeError", line="mine.py:9")
    assert what(raised) == "raised TypeError, at mine.py:9"
    assert what(Signature("t", "hang", "emulator", kernel="backward")) == "hang, in the backward kernel"
