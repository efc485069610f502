"""The fakes are what they claim: honest ones pass every oracle, and each liar is caught for its own lie. In process."""

from __future__ import annotations

import pytest
from runner_tools import FAKES

from fuzz.core.case import Case
from fuzz.judging.judge import execute
from fuzz.targets.registry import targets
from oracles.masks import Causal, Full, Window
from oracles.problem import Bias, Problem

TARGETS = {name: target for name, target in targets(FAKES).items() if name.startswith("fake.")}

PROBLEMS = {
    "full": Problem((8,), (8,), 1, 1, 8, 8, "float32"),
    "causal, ragged, grouped": Problem((20, 7), (30, 4), 4, 2, 8, 16, "float16", mask=Causal()),
    "no keys at all": Problem((5,), (0,), 2, 2, 8, 8, "float32"),
    "one sequence empty": Problem((5, 0), (0, 6), 2, 1, 8, 8, "bfloat16"),
    "window, softcap, scale": Problem((9,), (33,), 2, 1, 4, 4, "float32", mask=Window(3, 2), softcap=2.0, scale=0.3),
    "bias": Problem((9, 3), (7, 5), 2, 2, 8, 8, "float32", bias=Bias(batch=True, heads=True)),
    "forward only": Problem((9,), (7,), 2, 2, 8, 8, "float16", backward=False),
}
LIES = {
    "ignores_softcap": "accuracy: wrong",
    "ignores_scale": "accuracy: wrong",
    "ignores_mask": "accuracy: wrong",
    "wrong_shape": "protocol: wrong_shape",
    "wrong_dtype": "protocol: wrong_dtype",
    "drops_a_gradient": "protocol: missing_tensor",
    "returns_none": "protocol: raised",
    "copies_the_reference": "protocol: unproven",
    "raises": "protocol: raised",
    "writes_before_an_input": "memory: wrote_outside",
    "writes_after_an_input": "memory: wrote_outside",
    "writes_before_its_output": "memory: wrote_outside",
    "writes_after_its_output": "memory: wrote_outside",
    "changes_an_input": "memory: changed_input",
}


def judged(name: str, problem: Problem, repeats: int = 2):
    """Verdict of one case, without a process of its own."""
    return execute(Case(f"fake.{name}", problem, repeats=repeats), TARGETS[f"fake.{name}"], lambda phase, limit: None)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_honest_fake_passes(problem):
    verdict = judged("honest", problem)
    assert (verdict.outcome, verdict.findings) == ("pass", ())


@pytest.mark.parametrize("name", LIES)
def test_each_liar_is_caught_for_its_own_lie(name):
    problem = Problem((20, 7), (30, 4), 4, 2, 8, 16, "float16", mask=Causal(), softcap=2.0, scale=0.3)
    verdict = judged(name, problem)
    assert verdict.outcome == "fail"
    assert LIES[name] in {f"{found.oracle}: {found.kind}" for found in verdict.findings}


def test_the_flaky_fake_is_wrong_about_one_time_in_ten():
    problem = Problem((4,), (4,), 1, 1, 8, 8, "float32", mask=Full())
    bad = sum(judged("flaky", problem, repeats=1).bad for _ in range(100))
    assert 1 <= bad <= 25  # 1 in 30,000 times it is none, and far less often more
