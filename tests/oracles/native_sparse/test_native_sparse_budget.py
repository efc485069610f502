"""The budget: its runs without rounding are the reference, and what rounds once more than it says stands out."""

from __future__ import annotations

import pytest
import torch

from oracles.accuracy import judge_with
from oracles.native_sparse.budget import budget, rounded_run
from oracles.native_sparse.problem import NativeSparse
from oracles.native_sparse.reference import reference
from oracles.numerics import FUSED
from oracles.outputs import Outputs

P = NativeSparse(
    (130, 0, 200), 4, 2, 16, "bfloat16", "packed", compress_block_size=16, num_selected_blocks=3, window_size=40,
    q_tile=64, w_k=True, w_v=True, w_gate=True,
)  # fmt: skip


def made(p):
    generator = torch.Generator().manual_seed(1)
    shape = p.shapes()
    return {n: torch.randn(shape[n], generator=generator).to(p.torch_dtype) for n in ("q", "k", "v", "do", *p.weights)}


@pytest.mark.parametrize("causal", [True, False, "strict"])
@pytest.mark.parametrize("gated", [True, False])
def test_runs_that_round_nowhere_are_the_reference(causal, gated):
    p = P.edited(causal=causal, w_gate=gated)
    given = made(p)
    right = reference(p, given)
    found = rounded_run(p, given, right.choices(), FUSED, None)
    assert sorted(found) == sorted(name for name, _ in right.items())
    for name, x in right.items():
        torch.testing.assert_close(found[name], x, rtol=1e-11, atol=1e-11)


def test_rounding_is_within_the_budget_and_a_percent_is_not():
    given = made(P)
    measured = budget(P, given)
    right = measured.reference
    stored = {name: x.to(P.torch_dtype) for name, x in right.items()}
    assert judge_with(measured, Outputs(**stored)).ratio == 0
    other = rounded_run(P, given, right.choices(), FUSED, 99)
    assert judge_with(measured, Outputs(**{n: x.to(P.torch_dtype) for n, x in other.items()})).ratio < 0.7
    for name, x in right.items():
        wrong = stored | {name: (x * 1.03).to(P.torch_dtype)}
        assert [f.tensor for f in judge_with(measured, Outputs(**wrong)).findings] == [name], name


def test_what_fp32_has_no_normal_number_for_may_be_zero():
    p = P.edited(lengths=(130,), w_k=False, w_v=False, w_gate=False)
    given = made(p)
    given["do"] *= 2.0**-119
    measured = budget(p, given)
    right = {name: x.to(p.torch_dtype) for name, x in measured.reference.items()}
    tiny = torch.finfo(torch.float32).smallest_normal
    assert ((right["dk"] != 0) & (right["dk"].abs() < tiny)).any()
    flushed = right | {"dk": torch.where(right["dk"].abs() < tiny, 0.0, right["dk"].float()).to(p.torch_dtype)}
    assert judge_with(measured, Outputs(**flushed)).ratio < 1
    assert judge_with(measured, Outputs(**(right | {"dk": right["dk"] * 0}))).ratio > 1


def test_a_key_whose_probabilities_fp32_takes_for_zero_may_have_no_gradient():
    """The last key is in the last query's window alone, which all but ignores it; gradients are large."""
    p = P.edited(lengths=(130,), w_k=False, w_v=False, w_gate=False, causal="strict")
    given = made(p)
    given["q"][-1] = given["q"][-1, :1] * 8
    score = p.scale_value * given["q"][-1, 0].float().square().sum()
    given["k"][-1] = (given["q"][-1, :2].float() * (-60.0 / score)).to(p.torch_dtype)
    measured = budget(p, given)
    right = {name: x.to(p.torch_dtype) for name, x in measured.reference.items()}
    tiny = torch.finfo(torch.float32).smallest_normal
    assert (right["dk"][-1, 1].abs() > 4 * tiny).any()
    right["dk"][-1, 1] = 0.0
    assert judge_with(measured, Outputs(**right)).ratio < 1
    right["dk"][0] = 0.0
    assert judge_with(measured, Outputs(**right)).ratio > 1
