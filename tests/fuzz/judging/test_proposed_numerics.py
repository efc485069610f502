"""A kernel that rounds at another place than it declares: the finding says what it looks like, and stays a finding."""

from __future__ import annotations

from folding_flash import folding_flash
from judge_tools import FAKES, PLAIN
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs
from fuzz.core.support import Support
from fuzz.core.target import Execution, Target, Tensors
from fuzz.core.verdict import Verdict
from fuzz.judging.judge import execute
from fuzz.targets.registry import load
from oracles.masks import Causal
from oracles.numerics import FUSED, Numerics
from oracles.problem import Problem

BACKWARD = Numerics(rescored="k")
PROBLEM = Problem((96,), (128,), 1, 1, 32, 16, "bfloat16", mask=Causal("bottom_right"), scale=0.25)


class Folding(Target):
    """Rounds as `real` says, and declares `numerics`."""

    name = "folding"
    support = Support()

    def __init__(self, real: Numerics, declared: Numerics, lost: int = 0) -> None:
        self.real, self.numerics, self.lost = real, declared, lost

    def run(self, case: Case, tensors: Tensors) -> Execution:
        assert tensors.do is not None
        x = tensors
        return Execution(folding_flash(case.problem, self.real, x.q, x.k, x.v, x.do, self.lost), "folding")


def verdict(target: Target, distribution="large") -> Verdict:
    case = Case("folding", PROBLEM, Inputs(3, distribution), repeats=1)
    return execute(case, target, lambda phase, limit: None)


def test_a_finding_says_which_numerics_would_explain_it_and_stays_one() -> None:
    found = verdict(Folding(BACKWARD, FUSED))
    assert found.outcome == "fail"
    said = "it looks like k scaled and rounded in the backward pass: with Numerics(rescored='k', folded='input')"
    assert said in found.findings[0].message
    assert found.evidence["proposed_numerics"] == {"rescored": "k", "folded": "input"}
    assert verdict(Folding(BACKWARD, BACKWARD)).outcome == "pass"


def test_exact_inputs_are_part_of_what_a_proposal_must_explain() -> None:
    target = Folding(Numerics(rescored="k", folded="float32"), FUSED)
    half = replace(PROBLEM, dtype="float16")
    found = execute(Case("folding", half, Inputs(3, "one_hot"), repeats=1), target, lambda phase, limit: None)
    assert {f.oracle for f in found.findings} == {"exact"}
    assert found.evidence["proposed_numerics"] == {"rescored": "k", "folded": "float32"}


def test_what_no_rounding_explains_has_no_proposal() -> None:
    for target in (Folding(FUSED, FUSED, lost=8), Folding(BACKWARD, FUSED, lost=8)):
        found = verdict(target, "normal")
        assert found.outcome == "fail" and "looks like" not in found.findings[0].message
        assert "proposed_numerics" not in found.evidence
    wrong = execute(Case("fake.ignores_mask", PLAIN), load("fake.ignores_mask", FAKES), lambda phase, limit: None)
    assert "proposed_numerics" not in wrong.evidence
