"""Rows equal in dO alone, or in Q alone, share errors: budgets of dK, dV and dBias know it, and no others do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
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
    norm = (first[:, :1, :1] ** 2 @ (second**2).mT).sqrt() * first.shape[-1] ** 0.5 * ROUNDOFF
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
        axes = [a for a, full in enumerate((problem.bias.batch, problem.bias.heads, problem.bias.rows, True)) if not full]
        found["dbias"] = ds.sum(axes, keepdim=True)
    return replace(right, **found)


def _ratio(problem: Problem, t: Tensors, got: Outputs) -> dict[str, float]:
    judged = judge(problem, got, reference(problem, **t), same_precision(problem, **t))
    return {name: worst.ratio for name, worst in judged.worst.items()}


def _nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    find = RowSets.find
    monkeypatch.setattr(
        RowSets, "find", staticmethod(lambda *given, **options: replace(find(*given, **options), q=None, do=None))
    )


CASES = [
    pytest.param(PLAIN, "do", "s", ("dk",), id="dk"),
    pytest.param(replace(PLAIN, softcap=0.7), "do", "s", ("dk",), id="dk, softcap"),
    pytest.param(GROUP, "do", "hs", ("dk",), id="dk, group"),
    pytest.param(replace(GROUP, heads_q=32), "do", "h", ("dk",), id="dk, rows equal over heads"),
    pytest.param(replace(PLAIN, bias=ROWS_SUMMED), "do", "s", ("dbias",), id="dbias, rows summed"),
    pytest.param(replace(GROUP, bias=ROWS_SUMMED), "do", "s", ("dbias",), id="dbias, rows summed, group"),
    pytest.param(replace(GROUP, bias=Bias(rows=False)), "do", "hs", ("dbias",), id="dbias, rows and heads summed"),
    pytest.param(replace(GROUP, heads_q=32, bias=HEADS_SUMMED), "do", "h", ("dbias",), id="dbias, heads summed"),
    pytest.param(GROUP, "q", "s", ("dv", "dk"), id="dv"),
    pytest.param(replace(GROUP, softcap=0.7), "q", "hs", ("dv",), id="dv, softcap"),
]


@pytest.mark.parametrize(("problem", "name", "along", "tensors"), CASES)
def test_errors_that_rows_share(
    problem: Problem, name: str, along: str, tensors: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = _inputs(problem, name, along)
    for size in (1.0, 2.0, 4.0, 20.0, 60.0):
        print(size, _ratio(problem, t, _answers(problem, t, name, size)))
    _nothing_shared(monkeypatch)
    for size in (1.0, 2.0, 4.0, 20.0, 60.0):
        print('none', size, _ratio(problem, t, _answers(problem, t, name, size)))
