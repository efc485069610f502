"""The daily cases of a product of choices."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from covering import covering

AXES = ("abc", range(4), (False, True))


def daily_of(found):
    return [case.values for case in found if not case.marks]


@pytest.mark.parametrize("strength", [1, 2])
def test_daily_cases_have_every_combination_and_nightly_ones_the_rest(strength):
    found = covering(*AXES, strength=strength)
    assert [case.values for case in found] == list(product(*AXES))
    for places in combinations(range(3), strength):
        met = {tuple(case[i] for i in places) for case in daily_of(found)}
        assert met == set(product(*(AXES[i] for i in places)))


def test_daily_cases_are_few():
    assert len(daily_of(covering(*AXES, strength=1))) == 4
    assert len(daily_of(covering(*AXES))) <= 14
