"""The peers' rules: they take right answers, and are as blind as their tests are."""

from __future__ import annotations

import pytest
import torch

from oracles.error_budget.same_precision import same_precision
from oracles.masks import Causal, Full
from oracles.numerics import EAGER
from oracles.other_projects import CRITERIA, Question
from oracles.outputs import Outputs
from oracles.problem import Bias, Problem, shapes


def question(seed: int = 0, gain: float = 1.0, **changes) -> Question:
    given = {"lengths_q": (65, 65), "lengths_k": (70, 70), "heads_q": 4, "heads_kv": 2, "dim": 32, "dim_v": 32}
    p = Problem(**(given | {"dtype": "bfloat16"} | changes))
    draw = torch.Generator().manual_seed(seed)
    made = {
        name: (torch.randn(shapes(p)[name], generator=draw) * gain).to(p.torch_dtype)
        for name in ("q", "k", "v", "do", *(["bias"] * (p.bias is not None)))
    }
    return Question(p, **made)


def outputs(of: Question) -> Outputs:
    """As a good kernel gives them: a run in the problem's precision."""
    same = same_precision(of.problem, of.q, of.k, of.v, bias=of.bias, do=of.do, numerics=EAGER)
    return Outputs(**{n: x[0].to(of.problem.torch_dtype) for n, x in same.runs.items()})


PROBLEMS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "float16": {"dtype": "float16"},
    "softcap": {"softcap": 15.0},
    "bias": {"bias": Bias()},
    "packed": {"layout": "packed", "lengths_q": (3, 65), "lengths_k": (9, 70)},
    "ragged": {"lengths_q": (3, 65), "lengths_k": (9, 0)},
}


@pytest.mark.parametrize("rule", [name for name in CRITERIA if name != "flag-gems"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_right_answers_are_taken(rule, name):
    of = question(**PROBLEMS[name])
    assert CRITERIA[rule].passes(of, outputs(of))


def test_flag_gems_takes_right_answers_on_its_small_inputs():
    of = question(gain=0.03, dtype="float16")
    assert CRITERIA["flag-gems"].passes(of, outputs(of))


@pytest.mark.parametrize("rule", CRITERIA)
def test_gross_errors_and_missing_gradients_are_refused(rule):
    of = question()
    good = outputs(of)
    assert not CRITERIA[rule].passes(of, Outputs(**dict(good.items()) | {"o": good.o + 1}))
    assert not CRITERIA[rule].passes(of, Outputs(**dict(good.items()) | {"dk": -good.dk}))
    assert not CRITERIA[rule].passes(of, Outputs(good.o, good.lse))


@pytest.mark.parametrize("rule", CRITERIA)
def test_no_rule_compares_lse(rule):
    of = question(gain=0.05 if rule == "flag-gems" else 1.0, dtype="float16")
    good = outputs(of)
    assert CRITERIA[rule].passes(of, Outputs(**dict(good.items()) | {"lse": good.lse + 7}))


def test_nan_is_refused_but_by_the_rule_that_makes_it_zero():
    of = question()
    good = outputs(of)
    o = good.o.clone()
    o[0, 0, 0] = float("nan")
    with_nan = Outputs(**dict(good.items()) | {"o": o})
    passed = {name for name, rule in CRITERIA.items() if rule.inputs == "case" and rule.passes(of, with_nan)}
    assert passed == {"flash-dmattn"}


def test_a_global_maximum_does_not_see_a_small_row():
    """Of FlashAttention's rule: a row of small values may be wrong by as much as the largest error elsewhere."""
    of = question()
    of.v[:, :, :, :] *= 1.0
    good = outputs(of)
    room = (good.o.float() - of.right.o.float()).abs().max()
    o = good.o.clone()
    row = o[0, 0, 64]
    o[0, 0, 64] = row + (room if room > 0 else 1e-3)
    assert CRITERIA["flash-attention"].passes(of, Outputs(**dict(good.items()) | {"o": o}))
    assert (o[0, 0, 64].float() - of.right.o[0, 0, 64].float()).abs().mean() > 0.5 * room


def test_a_plain_run_has_zeros_where_a_row_has_no_keys():
    of = question(lengths_k=(0, 70), mask=Full())
    assert not of.unfused.o[0].any() and not of.unfused.dq[0].any()
    assert all(torch.isfinite(x).all() for name, x in of.unfused.items())


def test_padding_is_not_compared():
    of = question(lengths_q=(3, 65))
    good = outputs(of)
    o = good.o.clone()
    o[0, :, 3:] = 99.0
    changed = Outputs(**dict(good.items()) | {"o": o})
    assert all(rule.passes(of, changed) for rule in CRITERIA.values() if rule.inputs == "case")
