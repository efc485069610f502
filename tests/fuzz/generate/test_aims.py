"""The stated shares of a session's cases are there, counted over fixed seeds."""

from __future__ import annotations

import random

import pytest
import torch

from fuzz.core.case import Case
from fuzz.generate.aims import LATE_SHARE, PLAIN_SHARE, TILE, ZERO_SCALE_SHARE
from fuzz.generate.cases import MEDIUM, SMALL, Size, _case
from fuzz.targets.registry import load
from oracles.masks import Full
from oracles.problem import dense_mask

COUNT = 400


def drawn(name: str, size: Size) -> list[Case]:
    target = load(name)
    return [_case(random.Random(seed), target, size.within(target.session_size), 1) for seed in range(COUNT)]


def plain(case: Case) -> bool:
    p = case.problem
    options = (p.bias, p.scale, p.softcap or None)
    return p.backward and p.mask == Full() and not p.ragged and options == (None,) * 3 and bool(p.len_q and p.len_k)


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
        "scale of 0": (sum(case.problem.scale == 0 for case in cases) / COUNT, ZERO_SCALE_SHARE),
    }
    assert all(share >= least for share, least in shares.values()), shares
    assert shares["plain"][0] + shares["late"][0] < 0.4  # most cases are left to chance


def test_cases_with_an_aim_are_within_the_budget() -> None:
    for case in drawn("torch.sdpa.math", Size(300, 2)):
        assert case.problem.pairs <= max(300, case.problem.heads_q * case.problem.batch)
