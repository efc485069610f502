"""Rows equal in dO alone, or in Q alone, share errors: budgets of dK, dV and dBias know it, and no others do."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from oracles.accuracy import judge, same_precision
from oracles.error_budget.half_repeated import RowSets
from oracles.masks import Causal, Full
from oracles.outputs import Outputs
from oracles.problem import Bias, Problem, shapes
from oracles.reference.attention import reference

Tensors = dict[str, Tensor]
ROWS_SUMMED, HEADS_SUMMED = Bias(heads=True, rows=False), Bias(heads=False, rows=True)
SIZES = {"dim": 32, "dim_v": 16, "dtype": "float32", "scale": 0.05}
PLAIN = Problem(lengths_q=(63, 63), lengths_k=(62, 62), heads_q=2, heads_kv=2, mask=Causal(), **SIZES)
GROUP = Problem(lengths_q=(40,), lengths_k=(33,), heads_q=8, heads_kv=1, mask=Full(), **SIZES)
ROUNDOFF = 2.0**-24
LARGE = replace(GROUP, scale=0.4, dim=64)
SHARED_BY = {"s": (2,), "h": (1,), "hs": (1, 2)}


def _inputs(problem: Problem, name: str, along: str) -> Tensors:
    """Tensors with means that are not 0, and equal rows of `name` ('q', 'do') along 's' or 'h'; '': no row is equal."""
    g = torch.Generator().manual_seed(3)
    names = ("q", "k", "v", "do") + (("bias",) if problem.bias else ())
    t = {n: torch.randn(shapes(problem)[n], generator=g) for n in names}
    for n in ("q", "do"):
        t[n] += 1.0
    for axis in SHARED_BY.get(along, ()):
        t[name] = t[name].narrow(axis, 0, 1).expand(t[name].shape).contiguous()
    return t


def _answers(problem: Problem, t: Tensors, name: str, size: float) -> Outputs:
    """The right answers, in fp64, but for the error of one dot product per key, `size` roundoffs of its terms' norm
    times the root of their number. It is dO . v_j with name = 'do', q . k_j with 'q', and all rows have the same one.
    """
    wide = {n: x.double() for n, x in t.items()}
    k, v = (wide[n].repeat_interleave(problem.group, 1) for n in "kv")
    first, second = (wide["q"], k) if name == "q" else (wide["do"], v)
    norm = (first**2 @ (second**2).mT).sqrt() * first.shape[-1] ** 0.5 * ROUNDOFF
    signs = torch.randint(2, (problem.batch, problem.heads_kv, 1, problem.len_k), generator=torch.Generator()) * 2 - 1
    error = size * norm * signs.repeat_interleave(problem.group, 1)
    raw = wide["q"] @ k.mT * problem.scale_value
    if name == "q":
        raw = raw + error * problem.scale_value
    bent = torch.tanh(raw / problem.softcap) if problem.softcap else raw
    scores = (bent * problem.softcap if problem.softcap else raw) + wide.get("bias", torch.zeros(1))
    if problem.mask == Causal():
        there = torch.ones(problem.len_q, problem.len_k, dtype=torch.bool).tril()
        scores = scores.masked_fill(~there, -torch.inf)
    p = scores.softmax(-1)
    dp, chain = wide["do"] @ v.mT, 1 - bent**2 if problem.softcap else 1.0
    delta = (p * dp).sum(-1, keepdim=True)
    ds = p * (dp + (error if name == "do" else 0.0) - delta)

    def by_head(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, problem.group)).sum(2)

    right = reference(problem, **t)
    found = {"dk": by_head((ds * chain).mT @ wide["q"]) * problem.scale_value, "dv": by_head(p.mT @ wide["do"])}
    if problem.bias is not None:
        axes = [
            a for a, full in enumerate((problem.bias.batch, problem.bias.heads, problem.bias.rows, True)) if not full
        ]
        found["dbias"] = ds.sum(axes, keepdim=True)
    return dataclasses.replace(right, **found)


def _ratios(problem: Problem, t: Tensors, got: Outputs) -> dict[str, float]:
    judged = judge(problem, got, reference(problem, **t), same_precision(problem, **t))
    return {name: worst.ratio for name, worst in judged.worst.items()}


def _count_none_as_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    find = RowSets.find
    monkeypatch.setattr(
        RowSets,
        "find",
        staticmethod(lambda *given, **options: dataclasses.replace(find(*given, **options), q=None, do=None)),
    )


@pytest.mark.parametrize(
    ("problem", "name", "along", "tensors", "size"),
    [
        pytest.param(PLAIN, "do", "s", ("dk",), 1.3, id="dk"),
        pytest.param(replace(PLAIN, softcap=0.7), "do", "s", ("dk",), 1.6, id="dk, softcap"),
        pytest.param(GROUP, "do", "hs", ("dk",), 1.0, id="dk, group"),
        pytest.param(replace(GROUP, heads_q=32), "do", "h", ("dk",), 1.0, id="dk, heads"),
        pytest.param(replace(PLAIN, bias=ROWS_SUMMED), "do", "s", ("dbias",), 1.5, id="dbias of rows"),
        pytest.param(replace(GROUP, bias=ROWS_SUMMED), "do", "s", ("dbias",), 1.5, id="dbias of rows, group"),
        pytest.param(replace(GROUP, bias=Bias(rows=False)), "do", "hs", ("dbias",), 2.0, id="dbias of rows and heads"),
        pytest.param(replace(GROUP, heads_q=32, bias=HEADS_SUMMED), "do", "h", ("dbias",), 1.5, id="dbias of heads"),
        pytest.param(LARGE, "q", "s", ("dk", "dv"), 1.0, id="dk and dv of equal queries"),
        pytest.param(replace(PLAIN, scale=0.4, dim=64), "q", "s", ("dk", "dv"), 1.3, id="the same, causal"),
        pytest.param(replace(LARGE, softcap=20.0), "q", "hs", ("dk", "dv"), 1.3, id="the same, softcap"),
        pytest.param(replace(LARGE, bias=ROWS_SUMMED), "q", "hs", ("dbias",), 3.0, id="dbias of equal queries"),
    ],
)
def test_shared_errors_of_some_roundings_pass_and_faults_do_not(
    problem: Problem, name: str, along: str, tensors: tuple[str, ...], size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = _inputs(problem, name, along)
    got = _answers(problem, t, name, size)
    known = _ratios(problem, t, got)
    assert all(known[x] < 0.9 for x in tensors), known
    faulty = _ratios(problem, t, _answers(problem, t, name, 20 * size))
    assert all(faulty[x] > 1 for x in tensors), faulty
    _count_none_as_shared(monkeypatch)
    unknown = _ratios(problem, t, got)
    assert all(unknown[x] > 1 for x in tensors), unknown


def test_the_emulated_answers_are_right_without_an_error() -> None:
    problem = replace(GROUP, softcap=0.7, bias=Bias(rows=False))
    t = _inputs(problem, "do", "s")
    assert max(_ratios(problem, t, _answers(problem, t, "do", 0.0)).values()) < 0.01


@pytest.mark.parametrize("name", ["q", "do"])
def test_exact_dot_products_share_no_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    t = {n: (4 * x).round() / 4 for n, x in _inputs(GROUP, name, "s").items()}
    found = same_precision(GROUP, **t).noise
    _count_none_as_shared(monkeypatch)
    for (tensor, x), (_, y) in zip(found.items(), same_precision(GROUP, **t).noise.items(), strict=True):
        assert torch.equal(x, y), tensor


@pytest.mark.parametrize("name", ["q", "do"])
def test_budgets_of_half_precision_products_know_nothing_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(GROUP, dtype="bfloat16")
    t = {n: x.bfloat16() for n, x in _inputs(problem, name, "s").items()}
    found = same_precision(problem, **t).noise
    monkeypatch.setattr(RowSets, "find", None)
    for (tensor, x), (_, y) in zip(found.items(), same_precision(problem, **t).noise.items(), strict=True):
        assert torch.equal(x, y), tensor


def test_shared_errors_are_summed_set_by_set() -> None:
    """Sets of three sizes, one of them with rows that are equal in Q too, against a loop over the sets."""
    g = torch.Generator().manual_seed(0)
    q, errors = torch.randn(2, 9, 4, generator=g), torch.randn(2, 9, 5, generator=g)
    ids = torch.tensor([[0, 1, 0, 2, 1, 0, 3, 3, 0], [4, 5, 6, 7, 8, 8, 8, 5, 9]])
    q[0, 7], errors[0, 7] = q[0, 6], errors[0, 6]
    sets = RowSets.find(q, ids[..., None].float(), lambda _: True)
    assert sets.both is not None and sets.q is None and sets.do is not None
    right = torch.zeros(2, 5, 4)
    for b in range(2):
        for value in (0, 1, 8, 5):
            rows = (ids[b] == value).nonzero().flatten()
            right[b] += (errors[b, rows].mT @ q[b, rows]) ** 2 - (errors[b, rows] ** 2).mT @ q[b, rows] ** 2
    assert torch.allclose(sets.of_products(sets.do, errors, q), right.clamp_min(0), atol=1e-5)
