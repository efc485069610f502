"""The stated shares of a session's cases are there, counted over fixed seeds."""

from __future__ import annotations

import random

import pytest
import torch

from fuzz.core.case import Case
from fuzz.generate.aims import LATE_SHARE, NATIVE_SHARE, PLAIN_SHARE, TILE, ZERO_SCALE_SHARE, late_mask, unequal_lengths
from fuzz.generate.cases import MEDIUM, SMALL, Size, _case
from fuzz.generate.masks import Sizes, native_mask
from fuzz.targets.registry import load
from oracles.masks import Causal, Full, Intervals, PerHead, Window
from oracles.problem import dense_mask

COUNT = 400


def drawn(name: str, size: Size) -> list[Case]:
    target = load(name)
    return [_case(random.Random(seed), target, size.within(target.session_size), 1) for seed in range(COUNT)]


def plain(case: Case) -> bool:
    p = case.problem
    options = (p.bias, p.scale, p.softcap or None)
    return p.backward and p.mask == Full() and not p.ragged and options == (None,) * 3 and bool(p.len_q and p.len_k)


def by_a_flag(case: Case) -> bool:
    """Causal as a flag says it, and lengths that differ: neither a bias nor padding makes a mask tensor of it."""
    p = case.problem
    return p.mask == Causal() and p.bias is None and not p.ragged and p.len_q != p.len_k


def starts_late(case: Case) -> bool:
    """A few tokens, of which a row sees none in the first tile of keys and some later, beside a row that does."""
    p = case.problem
    if not TILE < p.len_k <= 300 or p.len_q > 300 or p.mask == Full():
        return False
    kept = dense_mask(p)
    first, later = kept[..., :TILE].any(-1), kept[..., TILE:].any(-1)
    more = -p.len_q % TILE
    late, early = (torch.nn.functional.pad(x, (0, more)).unflatten(-1, (-1, TILE)) for x in (later & ~first, first))
    return bool((late.any(-1) & early.any(-1)).any())


@pytest.mark.parametrize("size", [SMALL, MEDIUM], ids=["small", "medium"])
@pytest.mark.parametrize("name", ["torch.sdpa.math", "sdpa"])
def test_a_session_has_its_shares(name: str, size: Size) -> None:
    cases = drawn(name, size)
    shares = {
        "plain": (sum(map(plain, cases)) / COUNT, PLAIN_SHARE),
        "late": (sum(map(starts_late, cases)) / COUNT, LATE_SHARE),
        "native": (sum(map(by_a_flag, cases)) / COUNT, NATIVE_SHARE),
        "scale of 0": (sum(case.problem.scale == 0 for case in cases) / COUNT, ZERO_SCALE_SHARE),
    }
    assert all(share >= least for share, least in shares.values()), shares
    assert shares["plain"][0] + shares["late"][0] + shares["native"][0] < 0.55  # about half are left to chance


def test_a_kernel_of_a_flag_meets_causal_masks_that_end_a_tile_before_the_queries() -> None:
    """One case in forty and more: tiles below the diagonal that no key fills."""
    cases = [case for case in drawn("sdpa", MEDIUM) if by_a_flag(case)]
    assert sum(case.problem.len_q > case.problem.len_k + TILE for case in cases) > COUNT / 40


def test_half_of_small_cases_have_several_tiles_of_keys() -> None:
    cases = drawn("sdpa", SMALL)
    assert sum(case.problem.len_k > TILE for case in cases) / COUNT > 0.4
    assert sum(0 < case.problem.len_k <= TILE for case in cases) / COUNT > 0.3
    assert sum(case.problem.len_q > TILE > case.problem.len_k for case in cases) / COUNT > 0.05


def test_most_flags_are_given_by_the_plainest_call_and_the_other_ways_stay() -> None:
    cases = [case for case in drawn("sdpa", MEDIUM) if by_a_flag(case)]
    assert 0.5 < sum(not case.variant for case in cases) / len(cases) < 0.9


def test_rows_that_see_a_later_tile_lie_beside_rows_without_keys_now_and_then() -> None:
    draw, found = random.Random(0), []
    for _ in range(60):
        mask = late_mask(draw, frozenset({"intervals"}), 65, 129)
        assert isinstance(mask, Intervals)
        found.append(() in mask.rows)
    assert {True, False} == set(found)


def test_lengths_of_native_cases_differ_either_way_within_the_budget() -> None:
    draw = random.Random(0)
    found = [unequal_lengths(draw, 1 << 14, 320) for _ in range(200)]
    assert all(m != n and m * n <= 1 << 14 and max(m, n) <= 320 for m, n in found)
    assert {m > n for m, n in found} == {True, False}
    assert unequal_lengths(draw, 200, 320) is None and unequal_lengths(draw, 1 << 14, 16) is None


def test_native_masks_are_of_the_kinds_named_and_allowed() -> None:
    sizes, ways = Sizes((100, 100), (130, 130), 2), ("full", "causal_top_left", "window", "per_head")
    draw = random.Random(0)
    found = [native_mask(draw, None, ways, sizes) for _ in range(100)]
    assert {type(mask) for mask in found} == {Full, Causal, Window, PerHead}
    assert all(mask.align == "top_left" for mask in found if isinstance(mask, Causal))
    assert {native_mask(draw, frozenset({"causal"}), ways, sizes) for _ in range(20)} == {Causal()}
    assert native_mask(draw, frozenset({"tokens"}), ways, sizes) is None


def test_cases_with_an_aim_are_within_the_budget() -> None:
    for case in drawn("torch.sdpa.math", Size(300, 2)):
        assert case.problem.pairs <= max(300, case.problem.heads_q * case.problem.batch)
