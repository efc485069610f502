"""Native sparse attention end to end: the honest fake passes, each liar is found for its own lie, and reduced."""

from __future__ import annotations

import random

import pytest
from covering import nightly_unless
from runner_tools import FAKES

from fuzz.core.case import Case, Inputs
from fuzz.core.case_limits import Size
from fuzz.core.refusal import refusal
from fuzz.generate.cases import drawer
from fuzz.judging.judge import execute
from fuzz.minimize import minimize
from fuzz.targets.registry import targets
from oracles.native_sparse.problem import NativeSparse
from oracles.problem import Problem

TARGETS = {name: target for name, target in targets(FAKES).items() if name.startswith("fake.native_sparse")}
HONEST = TARGETS["fake.native_sparse"]
PACKED = NativeSparse(
    (130, 0, 75), 4, 2, 16, "bfloat16", "packed", compress_block_size=16, num_selected_blocks=3, window_size=40,
    q_tile=64, w_k=True, w_v=True, w_gate=True,
)  # fmt: skip
PADDED = PACKED.edited(lengths=(140, 140), layout="padded", dtype="float16")
RELATIONS = ("sparse_alone", "sparse_future_changed", "sparse_wider_window", "sparse_zero_gates", "poison", "no_grad")
# The earliest tensor that each lie is seen in.
LIES = {
    "leak": "o",
    "window_lost": "dq",
    "gates_swapped": "o",
    "future_block": "blocks",
    "widened": "o",
    "divides_by_c": "o",
}
SMALL = Size(1 << 15, 8, 200)


def judged(problem, name="fake.native_sparse", relations=(), seed=3):
    case = Case(name, problem, Inputs(seed=seed), repeats=2, relations=relations)
    return execute(case, TARGETS[name], lambda phase, limit: None)


@pytest.mark.parametrize(
    ("problem", "causal"),
    [
        nightly_unless((problem, causal) in ((PACKED, "strict"), (PADDED, True)), problem, causal)
        for problem in (PACKED, PADDED)
        for causal in (True, False, "strict")
    ],
    ids=lambda value: ("packed" if value is PACKED else "padded") if isinstance(value, NativeSparse) else str(value),
)
def test_the_honest_fake_passes(problem, causal):
    verdict = judged(problem.edited(causal=causal), relations=RELATIONS)
    assert (verdict.outcome, verdict.findings) == ("pass", ())
    assert 0 < verdict.ratio < 0.8


def test_groups_of_compressed_blocks_are_judged():
    problem = PADDED.edited(lengths=(300,), compress_block_size=2, num_cmp_selected_blocks=1, w_gate=False)
    verdict = judged(problem, relations=("sparse_zero_gates", "sparse_alone"))
    assert (verdict.outcome, verdict.findings) == ("pass", ())


@pytest.mark.parametrize("name", LIES)
def test_each_liar_is_found_for_its_own_lie(name):
    verdict = judged(PACKED, f"fake.native_sparse.{name}")
    assert verdict.outcome == "fail"
    tensors = [f.tensor for f in verdict.findings if f.oracle in ("accuracy", "selection")]
    assert LIES[name] in tensors
    assert "o" not in tensors or LIES[name] != "dq"


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["", *LIES])
def test_a_session_of_sixty_cases(name):
    target = TARGETS["fake.native_sparse" + f".{name}" * bool(name)]
    drawn, draw = drawer(target, SMALL, 2), random.Random(11)
    cases = [case for case in (drawn(draw) for _ in range(60)) if refusal(target, case) is None]
    assert len(cases) > 50
    bad = [v for v in (execute(case, target, lambda phase, limit: None) for case in cases) if v.bad]
    assert bool(bad) == bool(name), bad[:1]


@pytest.mark.nightly
def test_a_reduction_keeps_what_the_failure_needs():
    name = "fake.native_sparse.gates_swapped"
    target = TARGETS[name]
    found = minimize(
        Case(name, PACKED, Inputs(seed=3), repeats=1),
        lambda case: execute(case, target, lambda phase, limit: None),
        allowed=lambda case: refusal(target, case) is None,
        max_runs=40,
    )
    smallest = found.case.problem
    assert isinstance(smallest, NativeSparse)
    assert smallest.w_gate and not (smallest.w_k or smallest.w_v or smallest.backward)
    assert (smallest.heads_q, len(smallest.lengths), smallest.causal) == (1, 1, False)
    assert smallest.len_q < 16
    assert "w_gate" in found.needs


def test_a_target_is_for_problems_of_one_operation():
    attention = Case("fake.native_sparse", Problem((8,), (8,), 1, 1, 8, 8, "float16"))
    sparse = Case("fake.honest", PADDED)
    assert "native_sparse_attention" in refusal(HONEST, attention).why
    assert "native_sparse_attention" in refusal(targets(FAKES)["fake.honest"], sparse).why


def test_a_target_that_hides_its_selection_is_told_so():
    class Silent(type(HONEST)):
        def answered(self, case, tensors):
            o, outputs = super().answered(case, tensors)
            return o, type(outputs)(outputs.o)

    verdict = execute(Case("silent", PADDED, repeats=1), Silent(), lambda phase, limit: None)
    assert [f.kind for f in verdict.findings] == ["missing_tensor"]
    assert "blocks" in verdict.findings[0].message
