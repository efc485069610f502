"""The compiled loops give what the PyTorch expressions give that they stand for, up to the order of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracles.error_budget.same_precision as same_precision_module
from fuzz.core.case import Case
from fuzz.generate.cases import strategy
from fuzz.session.draw import drawer_of
from fuzz.session.settings import Settings
from fuzz.targets.registry import load
from fuzz.tensors.arena import build
from fuzz.tensors.coded_values import _block, _threes, fives
from fuzz.tensors.values import bits_at_once, normals
from oracles import accuracy
from oracles.error_budget.budget import Budget, Slot, _sigma
from oracles.error_budget.pair_variance import Gradients, Scores
from oracles.error_budget.rounding_units import equal_terms
from oracles.error_budget.same_precision import Same, same_precision
from oracles.numerics import CPU_FLASH, CUDNN, EAGER, EFFICIENT, EXACT, FLEX_EAGER, FUSED, Numerics
from oracles.outputs import Outputs
from oracles.problem import Problem
from oracles.reference import backend, numba_loops
from oracles.reference.attention import reference

T = TypeVar("T")
NUMERICS = {
    "fused": FUSED,
    "exact": EXACT,
    "eager": EAGER,
    "flex": FLEX_EAGER,
    "flash": CPU_FLASH,
    "efficient": EFFICIENT,
    "cudnn": CUDNN,
}
DRAWN = given(strategy(drawer_of(load("torch.sdpa.math"), Settings(size="small"))), st.sampled_from(sorted(NUMERICS)))
MANY = settings(max_examples=80, deadline=None, database=None, derandomize=True)


@contextmanager
def definition() -> Iterator[None]:
    """PyTorch's expressions inside, which are otherwise for other devices."""
    backend._enabled = False
    try:
        yield
    finally:
        backend._enabled = True


def both(work: Callable[[], T]) -> tuple[T, T]:
    """What the loops and what the definition make of it."""
    one = work()
    with definition():
        return one, work()


def close(one: Tensor | None, other: Tensor | None, relative: float = 1e-5) -> bool:
    """Equal up to the order of sums; infinities and NaN where the other has them."""
    if one is None or other is None:
        return one is other
    return torch.allclose(one, other, rtol=relative, atol=1e-37, equal_nan=True)


def compared(kind: type, apart: list[str]) -> Callable[[Any], Any]:
    """`variances` of Scores or Gradients, which names in `apart` where loop and definition differ for a pair."""

    def variances(self: Any) -> Any:
        mine, theirs = self._by_numba(), self._by_torch()
        for name in (field.name for field in fields(theirs)):
            if not close(getattr(mine, name), getattr(theirs, name)):
                apart.append(f"{kind.__name__}: {name}")
        return mine

    return variances


def asked(case: Case, numerics: Numerics) -> tuple[Problem, Outputs, Callable[[], Same]]:
    """A case's problem, its reference and its same-precision run."""
    given_ = build(case, "cpu").tensors()
    more = {"bias": given_.bias, "do": given_.do}
    right = reference(case.problem, given_.q, given_.k, given_.v, **more)
    return (
        case.problem,
        right,
        lambda: same_precision(case.problem, given_.q, given_.k, given_.v, **more, numerics=numerics),
    )


@MANY
@DRAWN
def test_what_is_asked_of_pairs_is_the_definitions(case: Case, name: str) -> None:
    _, _, run = asked(case, NUMERICS[name])
    apart: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Scores, Gradients):
            patch.setattr(kind, "variances", compared(kind, apart))
        run()
    assert not apart


@MANY
@DRAWN
def test_the_noise_is_the_definitions(case: Case, name: str) -> None:
    """Of the same variances: O's is what two sums differ by, so that the order of theirs would show in it."""
    _, _, run = asked(case, NUMERICS[name])
    original, seen = same_precision_module._deviation, []

    def deviation(*given: Any) -> Tensor:
        mine, theirs = both(lambda: original(*given))
        seen.append(close(mine, theirs))
        return mine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(same_precision_module, "_deviation", deviation)
        run()
    assert seen and all(seen)


@MANY
@DRAWN
def test_the_budget_is_the_definitions(case: Case, name: str) -> None:
    problem, right, run = asked(case, NUMERICS[name])
    same = run()
    mine, theirs = both(lambda: Budget.of(problem, right, same))
    assert torch.equal(mine.low.nan_to_num(), theirs.low.nan_to_num())
    assert close(mine.sigma, theirs.sigma, 1e-4)


@MANY
@DRAWN
def test_the_judgement_is_the_definitions(case: Case, name: str) -> None:
    """Of answers within their budget, near it, and beyond."""
    problem, right, run = asked(case, NUMERICS[name])
    same = run()
    budget = Budget.of(problem, right, same)
    for times in (1.0, 2.0, 40.0):
        got = Outputs(**{n: _stray(x, getattr(same.noise, n) * times).to(_dtype(problem, n)) for n, x in right.items()})
        mine, theirs = both(lambda got=got: accuracy.judge_with(budget, got))
        assert [f.tensor for f in mine.findings] == [f.tensor for f in theirs.findings]
        assert mine.worst.keys() == theirs.worst.keys()
        for tensor, worst in theirs.worst.items():
            found = mine.worst[tensor]
            assert found.ratios == pytest.approx(worst.ratios, rel=1e-4, abs=1e-9), tensor
            assert worst.ratios["element"] == 0 or found.at == worst.at, tensor


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("tensor", ["o", "lse", "dq", "dk", "dv"])
def test_what_is_not_finite_never_passes(value: float, tensor: str) -> None:
    case = Case("x", Problem((70,), (50,), 2, 1, 16, 16, "bfloat16"))
    problem, right, run = asked(case, FUSED)
    budget = Budget.of(problem, right, run())
    got = {n: x.to(_dtype(problem, n)) for n, x in right.items()}
    got[tensor].view(-1)[37] = value
    assert accuracy._passed(budget, Outputs(**got)) is None
    got[tensor].view(-1)[37] = getattr(right, tensor).view(-1)[37].to(got[tensor].dtype)
    assert accuracy._passed(budget, Outputs(**got)) is not None


def test_the_largest_is_finite() -> None:
    x = torch.tensor([0.5, -3.0, torch.inf, torch.nan, -torch.inf])
    assert numba_loops.largest(x.numpy()) == 3.0
    assert numba_loops.largest(x[2:].numpy()) == 0.0


@pytest.mark.parametrize("keys", [1, 2, 3, 31, 64, 129])
@pytest.mark.parametrize("largest", [True, False])
def test_blocks_of_keys_are_the_definitions(keys: int, largest: bool) -> None:
    rows = 40
    drawn = bits_at_once(keys, "k", rows * keys, "cpu").view(rows, keys)
    causal = torch.arange(keys) <= torch.arange(rows)[:, None] * 3
    pick = bits_at_once(keys, "q", rows, "cpu")
    for kept in (causal, drawn % 3 > 0, drawn % 50 == 0, torch.ones_like(causal), torch.zeros_like(causal)):
        mine, theirs = both(lambda kept=kept: _block(kept, pick, largest=largest))
        assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


def test_small_integers_are_the_definitions() -> None:
    drawn = torch.cat([bits_at_once(1, "q", 5_000, "cpu"), torch.tensor([0, -1, -5, 2**63 - 1, -(2**63)])]).view(5, -1)
    assert (drawn < 0).any() and (drawn > 0).any()
    for of in (fives, _threes):
        mine, theirs = both(lambda of=of: of(drawn))
        assert torch.equal(mine, theirs) and mine.unique().numel() == (5 if of is fives else 3)


def test_numbers_of_equal_terms_are_the_definitions_to_the_bit() -> None:
    """Also of what is not finite, 0, or beyond fp32's range when it is squared."""
    special = torch.tensor([torch.nan, torch.inf, 0.0, 1e-38, 1e30, 1.0])
    odd = torch.cartesian_prod(special, special, special).T.contiguous()
    sizes = 10.0 ** torch.tensor([-30.0, -9.0, 0.0, 12.0])[:, None]
    usual = normals(3, {"q": (4, 500), "k": (4, 500), "v": (4, 500)}, "cpu")
    of_sums = tuple(x.abs() * sizes for x in usual.values())
    for sums in (tuple(odd), of_sums, (of_sums[0], of_sums[0], of_sums[0] * of_sums[0])):
        mine, theirs = both(lambda sums=sums: equal_terms(*sums))
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("dim", [1, 7, 64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sigma_is_the_definitions_also_of_runs_that_are_not_finite(dim: int, dtype: str) -> None:
    problem, rows = Problem((5,), (5,), 1, 1, dim, dim, dtype), 20
    made = normals(5, {"q": (rows * dim,), "k": (2, rows * dim), "v": (rows * dim,)}, "cpu")
    want, noise = made["q"].double(), made["v"].abs() * 1e-3
    runs = (want + made["k"] * 1e-3).float()
    for row, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        runs[row % 2, row * dim] = value
    slot = Slot("o", (1, 1, rows, dim), torch.float32, 0, rows * dim)
    mine, theirs = both(lambda: _sigma(problem, slot, want, runs, 0, noise))
    assert torch.equal(mine.isfinite(), theirs.isfinite())
    assert close(mine[mine.isfinite()], theirs[mine.isfinite()], 1e-6)


def _stray(x: Tensor, by: Tensor) -> Tensor:
    signs = torch.where(torch.arange(x.numel()).view(x.shape) % 3 == 0, -1.0, 1.0)
    return x + torch.where(by.isfinite(), by, 0.0) * signs


def _dtype(problem: Problem, name: str) -> torch.dtype:
    wide = name == "lse" or (name == "dbias" and problem.bias is not None and problem.bias.dtype == "float32")
    return torch.float32 if wide else problem.torch_dtype
