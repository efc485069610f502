"""Spread lengths: 16 remainders in a case, and all 64 in four quarters."""

from __future__ import annotations

import random

from fuzz.generate.remainders import QUARTERS, TILE, quarter, spread_lengths


def test_the_quarters_share_out_all_remainders() -> None:
    assert sorted(n for c in range(QUARTERS) for n in quarter(c)) == list(range(TILE))


def test_each_quarter_meets_every_four_rows_in_either_order() -> None:
    for c in range(QUARTERS):
        assert {n // 4 for n in quarter(c)} == set(range(16)) == {n % 16 for n in quarter(c)}


def test_lengths_are_of_one_tile_or_two_and_a_few_cases_have_all_remainders() -> None:
    met: set[int] = set()
    for seed in range(16):
        lengths = spread_lengths(random.Random(seed))
        assert len(lengths) == 16 and min(lengths) >= 1 and max(lengths) <= 2 * TILE
        assert tuple(sorted(n % TILE for n in lengths)) in {tuple(sorted(quarter(c))) for c in range(QUARTERS)}
        met |= {n % TILE for n in lengths}
    assert met == set(range(TILE))
