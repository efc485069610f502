"""Pictures and reports for people."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import warm_start
from rich.console import Console

from fuzz.cli.show_case import picture
from fuzz.cli.show_case import show as show_case
from fuzz.core.case import Case
from fuzz.core.verdict import Finding, Location, Signature, Verdict, Worst
from fuzz.session.records import Record
from fuzz.session.summary.findings import findings
from fuzz.session.summary.follow import progress_note
from fuzz.session.summary.report import coverage, show
from oracles.masks import Blocks, Causal, PerHead, Prefix
from oracles.problem import Problem

P = Problem((128,), (128,), 2, 1, 16, 16, "float32")


def problem(mask, len_q: int = 128, len_k: int = 128) -> Problem:
    return Problem((len_q,), (len_k,), 2, 1, 16, 16, "float32", mask=mask)


def test_a_tile_is_full_partial_or_empty() -> None:
    drawn = picture(problem(Causal(), 4, 4)).splitlines()
    assert [line.split()[1] for line in drawn[1:]] == ["█···", "██··", "███·", "████"]
    blocks = picture(problem(Blocks(16, 16, ("FM.", ".F.")), 32, 48)).splitlines()
    assert blocks[0].endswith("one character is 2 x 1 tokens")
    assert blocks[1].split()[1] == "█" * 16 + blocks[1].split()[1][16:32] + "·" * 16
    assert set(blocks[1].split()[1][16:32]) <= set("█▒·")


@pytest.mark.parametrize(("len_q", "len_k"), [(1, 1), (24, 64), (25, 65), (1000, 3), (3, 1000), (65_536, 65_536)])
def test_pictures_of_any_size_fit(len_q: int, len_k: int) -> None:
    drawn = picture(problem(Prefix(1), len_q, len_k)).splitlines()
    assert len(drawn) <= 25 and all(len(line) <= 7 + 64 for line in drawn[1:])


def test_a_picture_comes_without_warnings() -> None:
    code = "from fuzz.cli.show_case import picture\nfrom oracles.problem import Problem\n"
    code += "picture(Problem((9,), (9,), 1, 1, 16, 16, 'float32'))"
    done = warm_start.run(["-c", code])
    assert done.returncode == 0 and done.stderr == ""  # PyTorch warns once in a process of an operation in beta


def test_an_empty_sequence_has_no_picture() -> None:
    assert picture(problem(Causal(), 0, 5)) == "(no pairs: 0 queries, 5 keys)"


def test_wrong_rows_are_marked() -> None:
    drawn = picture(problem(Causal(), 24, 24), bad_rows=(22, 24)).splitlines()
    assert [line.endswith("wrong") for line in drawn[1:]] == [False] * 22 + [True] * 2


def test_a_failing_case_shows_numbers_place_and_evidence() -> None:
    finding = Finding("accuracy", "wrong", "O is wrong: at batch 0", "o", Location(0, 1, (3, 4), pattern="one row"))
    verdict = Verdict("x", "fail", (finding,), worst=(Worst("o", 9.0, "row", 0, 1, 3),), evidence={"exit": "SIGSEGV"})
    text = _printed(
        lambda console: show_case(Case("t", problem(PerHead((Causal(), Prefix(2))), 8, 8)), verdict, console)
    )
    for part in ("O is wrong: at batch 0", "query head 1", "◀ wrong", "SIGSEGV", "9"):
        assert part in text


def test_the_progress_line_says_what_is_compiled_and_what_was_found() -> None:
    compiling = "compiling 81 kernels, 34 done"
    assert progress_note(compiling, cases=0, new=0, left=0, hangs=0) == compiling
    assert progress_note("", cases=2, new=1, left=0, hangs=1) == "1 new finding · 1 hang"
    assert progress_note("", cases=60, new=2, left=3, hangs=0) == "2 new findings, 3 failures to look into"


def test_a_report_names_each_new_finding_once_with_its_command() -> None:
    records = [
        _record("fail", "new", "c/x.json"),
        _record("fail", "again", "c/x.json"),
        _record("fail", "known", "k.json"),
    ]
    lines = findings(records)
    assert lines == [
        "NEW t: O is wrong, in 2 of 3 cases",
        "    broken",
        "    attnfuzz repro c/x.json",
        "known k.json (met 1 times)",
    ]
    assert findings(records, (str(Path.cwd() / "a b.py"), "/opt/k.py"))[2] == (
        "    attnfuzz repro c/x.json --target-file 'a b.py' --target-file /opt/k.py"
    )
    text = _printed(lambda console: show(records, 2.0, console))
    assert "Cases by target" in text and "1.5 cases/s" in text


def test_coverage_names_what_was_never_drawn() -> None:
    text = coverage([Record("w", "l", "t", "i", "pass", {}, features=("padded", "causal", "gqa"))])
    assert "pairs of features: 3" in text and "Never drawn:" in text and "softcap" in text


def _record(outcome, status: str = "", finding: str = "") -> Record:
    sign = Signature("t", "wrong", "accuracy", ("o",)) if status else None
    return Record(
        "w", "l", "t", "id", outcome, {"total": 0.5}, status=status, finding=finding, message="broken", signature=sign
    )


def _printed(show_it) -> str:
    stream = io.StringIO()
    show_it(Console(file=stream, width=140))
    return stream.getvalue()
