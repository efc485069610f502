"""What the tests of the judge share: the fakes as targets, run in this process."""

from __future__ import annotations

from pathlib import Path

from fuzz.core.case import Case, Inputs
from fuzz.core.verdict import Verdict
from fuzz.judging.judge import execute
from fuzz.targets.registry import load
from oracles.masks import Causal
from oracles.problem import Problem

_FOLDER = Path(__file__).parents[1] / "fakes"
FAKES = tuple(str(path) for path in sorted(_FOLDER.glob("*.py")) if not path.name.startswith("test_"))
PLAIN = Problem((20, 20), (33, 33), 4, 2, 16, 16, "float32", mask=Causal())


def judge(name: str, problem: Problem = PLAIN, inputs: Inputs | None = None, repeats: int = 2) -> Verdict:
    """The verdict of a target by name, a fake's being 'fake.<name>'."""
    case = Case(name, problem, inputs or Inputs(seed=3), repeats=repeats)
    return execute(case, load(name, FAKES), lambda phase, limit: None)


def kinds(verdict: Verdict) -> set[str]:
    """The kinds of its findings."""
    return {finding.kind for finding in verdict.findings}
