"""Runs at one revision: what its process answers, and what becomes of one that ends or cannot run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fuzz.bisect import trial
from fuzz.bisect.journal import Journal, Question
from fuzz.bisect.revisions import BisectError, Place, Revision, Untestable
from fuzz.bisect.search import Tried
from fuzz.bisect.trial import Trials
from fuzz.core.case import Case
from fuzz.core.verdict import Signature
from oracles.problem import Problem

CASE = Case("mine", Problem((8,), (8,), 1, 1, 8, 8, "float32", backward=False))
WRONG = """{"verdict": {"case_id": "1", "outcome": "fail",
 "findings": [{"oracle": "accuracy", "kind": "wrong", "message": "wrong", "tensor": "o"}]}}""".replace("\n", "")
PASSES = '{"verdict": {"case_id": "1", "outcome": "pass"}}'
REFUSES = '{"verdict": {"case_id": "1", "outcome": "reject", "reason": "no such option"}}'


class Here:
    """Every revision is this folder."""

    @contextmanager
    def prepare(self, revision: Revision) -> Iterator[Place]:
        yield Place(sys.executable, (), Path.cwd(), ())


def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, wanted: Signature | None = None) -> Trials:
    child = tmp_path / "child.py"
    child.write_text(script)
    monkeypatch.setattr(trial, "CHILD", child)
    return Trials(Here(), tmp_path / "case.json", CASE, wanted, "host")  # type: ignore[arg-type]


def answers(*lines: str) -> str:
    return f"import sys\nfor line, _ in zip({list(lines)!r}, sys.stdin):\n    print(line, flush=True)\n"


def test_each_run_is_one_answer_of_one_process(tmp_path: Path, monkeypatch) -> None:
    made = trials(tmp_path, monkeypatch, answers(WRONG, PASSES, WRONG))
    with made.at(Revision("r")) as run:
        assert [run(), run(), run()] == ["failed", "clean", "failed"]


def test_another_failure_than_the_one_looked_for_is_told_apart(tmp_path: Path, monkeypatch) -> None:
    for tensor, result in (("o", "failed"), ("lse", "other")):
        wanted = Signature("mine", "wrong", "accuracy", (tensor,))
        with trials(tmp_path, monkeypatch, answers(WRONG), wanted).at(Revision("r")) as run:
            assert run() == result


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (answers('{"untestable": "ImportError: no torch"}'), "ImportError: no torch"),
        (answers(REFUSES), "refuses the case: no such option"),
        (answers('{"verdict": {"outcome": 3}}'), "not one that this version reads"),
        ("import sys; sys.exit('out of disk')", "ended with 1: out of disk"),
    ],
)
def test_a_revision_that_cannot_run_says_why(tmp_path: Path, monkeypatch, script: str, why: str) -> None:
    with pytest.raises(Untestable, match=why), trials(tmp_path, monkeypatch, script).at(Revision("r")) as run:
        run()


def test_a_journal_is_read_again_and_loses_half_a_line_at_most(tmp_path: Path) -> None:
    question = Question("1", "here", ("a", "b"), "host", None)
    with Journal(tmp_path, question) as journal:
        journal.add("b", "failed")
        journal.add("b", "clean")
        journal.skip("a", "does not import")
        with pytest.raises(BisectError, match="a search is running"):
            Journal(tmp_path, question)
    with open(tmp_path / "runs.jsonl", "a") as file:
        file.write('{"revision": "b", "res')
    with Journal(tmp_path, question) as journal:
        assert journal.tried == {"b": Tried(failed=1, clean=1), "a": Tried(skipped="does not import")}
        journal.add("b", "other")
    with Journal(tmp_path, question) as journal:
        assert journal.tried["b"] == Tried(1, 1, 1)
    with pytest.raises(BisectError, match="holds another search"):
        Journal(tmp_path, Question("2", "here", ("a", "b"), "host", None))
