"""Equal rows err alike: budgets of fp32 gradients know it, and are no looser where rows differ."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from oracles.accuracy import judge, same_precision
from oracles.error_budget.repeated_rows import RepeatedRows
from oracles.error_budget.rounding_units import equal_terms
from oracles.masks import Causal
from oracles.numerics import CPU_FLASH, EXACT
from oracles.outputs import Outputs
from oracles.problem import Bias, Problem, shapes
from oracles.reference.attention import reference

Tensors = dict[str, Tensor]
GAIN = 4.0


def _inputs(problem: Problem, seed: int, gradient: float | None = None) -> Tensors:
    g = torch.Generator().manual_seed(seed)
    names = ("q", "k", "v", "do") + (("bias",) if problem.bias else ())
    t = {n: torch.randn(shapes(problem)[n], generator=g) for n in names}
    if gradient is not None:
        t["do"].fill_(gradient)
    return t


def _at_needles(problem: Problem, t: Tensors, seed: int) -> None:
    """Every query is a multiple of a key."""
    g = torch.Generator().manual_seed(seed)
    pick = torch.randint(problem.len_k, (problem.batch, problem.heads_q, problem.len_q, 1), generator=g)
    k = t["k"].repeat_interleave(problem.group, 1)
    t["q"] = GAIN * k.gather(2, pick.expand(*pick.shape[:3], problem.dim))


def _cpu_flash(problem: Problem, t: Tensors) -> Outputs:
    """PyTorch's flash kernel for CPUs, which recomputes the scores in its backward pass by another product."""
    wide = {n: x.clone().requires_grad_() for n, x in t.items() if n in "qkv"}
    k, v = (wide[n].repeat_interleave(problem.group, 1) for n in "kv")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        o = scaled_dot_product_attention(wide["q"], k, v, scale=problem.scale_value)
    o.backward(t["do"])
    return Outputs(o.detach(), None, wide["q"].grad, wide["k"].grad, wide["v"].grad)


def _ratio(problem: Problem, t: Tensors, got: Outputs) -> float:
    return judge(problem, got, reference(problem, **t), same_precision(problem, **t, numerics=CPU_FLASH)).ratio


def test_many_equal_queries_do_not_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """And would, if every row erred by itself: by how much is the machine's own."""
    ratios = list[tuple[float, float]]()
    for length_k, seed in ((4, 1), (4, 2), (15, 3), (15, 4)):
        heads = {"heads_q": 3, "heads_kv": 3, "dim": 112, "dim_v": 112, "dtype": "float32", "scale": 0.5}
        problem = Problem(lengths_q=(5000,), lengths_k=(length_k,), **heads)
        t = _inputs(problem, seed, gradient=1.0)
        _at_needles(problem, t, seed)
        got = _cpu_flash(problem, t)
        known = _ratio(problem, t, got)
        with monkeypatch.context() as patch:
            patch.setattr(RepeatedRows, "find", staticmethod(lambda *_: None))
            ratios.append((known, _ratio(problem, t, got)))
    assert max(known for known, _ in ratios) < 0.5
    assert max(unknown for _, unknown in ratios) > 1


@pytest.mark.parametrize("gradient", [1.0, None])
def test_rows_that_differ_have_no_twins(gradient: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(
        lengths_q=(64, 64), lengths_k=(33, 33), heads_q=4, heads_kv=2, dim=16, dim_v=16, dtype="float32", mask=Causal()
    )
    t = _inputs(problem, 0, gradient)
    with_twins, find = same_precision(problem, **t).noise, RepeatedRows.find
    monkeypatch.setattr(RepeatedRows, "find", staticmethod(lambda *x: None if len(x) == 2 else find(*x)))
    without = same_precision(problem, **t).noise
    for (name, x), (_, y) in zip(with_twins.items(), without.items(), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize("names", [("q",), ("do",)])
def test_rows_equal_in_one_of_the_two_are_no_twins(names: tuple[str, ...]) -> None:
    problem = Problem(lengths_q=(64,), lengths_k=(33,), heads_q=2, heads_kv=2, dim=16, dim_v=16, dtype="float32")
    t = _inputs(problem, 0)
    for name in names:
        t[name][:] = t[name][:, :, :1]
    assert RepeatedRows.find(t["q"], t["do"]) is None


def test_noise_of_eight_twins_is_that_of_one_row_eight_times() -> None:
    """dK, dV and a dBias without rows; dQ, which no row shares, stays as it is."""
    sizes = {"heads_q": 2, "heads_kv": 2, "dim": 16, "dim_v": 16, "dtype": "float32"}
    bias = Bias(batch=True, heads=True, rows=False, cols=True, grad=True)
    one = Problem(lengths_q=(1,), lengths_k=(33,), bias=bias, **sizes)
    eight = Problem(lengths_q=(8,), lengths_k=(33,), bias=bias, **sizes)
    t = _inputs(one, 0)
    many = t | {n: t[n].expand(1, 2, 8, 16).contiguous() for n in ("q", "do")}
    small, large = same_precision(one, **t).noise, same_precision(eight, **many).noise
    for name in ("dk", "dv", "dbias"):
        found = getattr(large, name) / getattr(small, name)
        assert 7.9 < float(found.median()) < 10, (name, float(found.median()))
    assert torch.allclose(large.dq[:, :, :1], small.dq)


def test_variances_are_merged_within_their_set_and_nothing_else_is() -> None:
    q = torch.tensor([[[1.0, 2.0], [0.0, 5.0], [1.0, 2.0]], [[1.0, 2.0], [-0.0, 5.0], [0.0, 5.0]]])
    repeated = RepeatedRows.find(q, torch.ones(2, 3, 1))
    assert repeated is not None
    found = repeated.merged(torch.tensor([[[4.0], [1.0], [9.0]], [[1.0], [16.0], [4.0]]]))
    assert found.flatten().tolist() == [25.0, 1.0, 0.0, 1.0, 36.0, 0.0]


def test_twins_of_query_heads_are_found_across_the_group() -> None:
    q = torch.arange(6.0).view(1, 3, 2)
    again = torch.cat([q, q], 1)
    repeated = RepeatedRows.find(again, torch.ones(1, 6, 4))
    assert repeated is not None
    merged = repeated.merged(torch.ones(1, 2, 3, 5))  # heads and rows apart
    assert merged[0, 0].eq(4).all() and merged[0, 1].eq(0).all()
    assert math.isclose(float(merged.sum()), 60)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sums_of_few_different_terms_err_by_what_each_of_them_is_rounded_by(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added one after the other in fp32, as a product on a GPU does; also where other terms come between."""
    problem = Problem(lengths_q=(2048,), lengths_k=(3,), heads_q=32, heads_kv=32, dim=2, dim_v=1, dtype="float32")
    t = _inputs(problem, seed, gradient=1.0)
    _at_needles(problem, t, seed)
    probs = (t["q"] @ t["k"].mT * problem.scale_value).softmax(-1)
    dv = torch.zeros(1, 32, 3, 1)
    for row in range(problem.len_q):
        dv += probs[:, :, row, :, None]
    right = reference(problem, **t).dv
    assert right is not None

    def farthest() -> float:
        noise = same_precision(problem, **t, numerics=EXACT).noise.dv
        assert noise is not None
        return float(((dv - right) / noise).abs().max())

    assert farthest() < 2
    monkeypatch.setattr(RepeatedRows, "counted", lambda self, terms: terms * 0)
    assert farthest() > 6


def test_terms_are_counted_where_they_are_not_too_small() -> None:
    q = torch.tensor([[[1.0], [2.0], [1.0], [1.0]]])
    repeated = RepeatedRows.find(q, torch.ones(1, 4, 1))
    assert repeated is not None
    found = repeated.counted(torch.tensor([[[1.0, 1e-9], [0.5, 3.0], [1.0, 1e-9], [1.0, 1e-9]]]))
    assert found[0].tolist() == [[9.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]


def _terms(*x: Tensor) -> list[float]:
    found = equal_terms(*(torch.stack([(y**n).sum() ** (2 if n == 1 else 1) for y in x]) for n in (1, 2, 4)))
    return found.tolist()


def test_equal_terms_are_counted_beside_zeros_and_no_others_are() -> None:
    g = torch.Generator().manual_seed(0)
    same, few = torch.full((100,), 0.3), torch.cat([torch.full((40,), -2.0), torch.zeros(960)])
    assert _terms(same, few, torch.ones(1)) == pytest.approx([100, 40, 1], rel=1e-3)
    normal, uniform = torch.randn(1000, generator=g), torch.rand(1000, generator=g)
    signs = torch.randint(2, (1000,), generator=g) * 2.0 - 1
    found = _terms(normal, uniform, signs, torch.zeros(5))
    assert found[0] < 1e-3 and found[1] < 10 and found[2] < 1e-3 and found[3] == 0
