"""Budgets of keys in two calls: a right merge by LSE is within them, one whose LSE has no gradient is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from half_precision_attention import HalfPrecisionAttention
from msgspec.structs import replace as with_fields

from fuzz.core.case import Case, Inputs
from fuzz.targets.merge_by_lse import merged
from fuzz.tensors.arena import build
from oracles import accuracy
from oracles.error_budget.same_precision import same_precision
from oracles.gradients import gradients
from oracles.masks import Causal, Prefix
from oracles.numerics import FUSED
from oracles.outputs import Outputs
from oracles.problem import Dtype, Problem, dense_mask
from oracles.reference.attention import reference

SIZE = 16  # keys of a block
MERGED = replace(FUSED, merged=SIZE)
PROBLEM = Problem((96,), (112,), 2, 2, 32, 32, "float16", mask=Causal("bottom_right"))


def judged(p: Problem, style: Any, *, detached: bool = False) -> accuracy.Judgement:
    """Two calls, and what puts them together; detached: without the gradients of their LSEs."""
    x = build(Case("any", p, Inputs(2, style)), "cpu").tensors()
    q, k, v = (tensor.detach().requires_grad_() for tensor in (x.q, x.k, x.v))
    odd = torch.arange(p.len_k) // SIZE % 2 == 1
    parts = [
        HalfPrecisionAttention.apply(q, k, v, dense_mask(p) & keys, p.scale_value)  # type: ignore[no-untyped-call]
        for keys in (~odd, odd)
    ]
    o, lse = merged([(o, lse.detach() if detached else lse) for o, lse in parts])
    assert o.dtype == p.torch_dtype and x.do is not None
    got = Outputs(o.detach(), lse.detach(), *gradients(o, [q, k, v], x.do))
    right = reference(p, x.q, x.k, x.v, do=x.do)
    return accuracy.judge(p, got, right, same_precision(p, x.q, x.k, x.v, do=x.do, numerics=MERGED))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("style", ["normal", "large", "needle", "adversarial", "constant", "integers"])
def test_a_right_merge_is_within_its_budget(style: str, dtype: Dtype) -> None:
    for mask in (PROBLEM.mask, Prefix(SIZE)):  # the odd call has no key at all under the second
        found = judged(with_fields(PROBLEM, dtype=dtype, mask=mask), style)
        assert found.findings == () and found.ratio < 0.6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_merge_whose_lse_has_no_gradient_is_wrong(dtype: Dtype) -> None:
    found = judged(with_fields(PROBLEM, dtype=dtype), "normal", detached=True)
    assert {f.tensor for f in found.findings} == {"dq", "dk"}


def test_two_calls_make_little_more_noise_than_one() -> None:
    x = build(Case("any", PROBLEM, Inputs(2, "normal")), "cpu").tensors()
    one, two = (same_precision(PROBLEM, x.q, x.k, x.v, do=x.do, numerics=n).noise for n in (FUSED, MERGED))
    for name, noise in two.items():
        assert 1.0 <= float(noise.mean() / getattr(one, name).mean()) < 2.0, name
