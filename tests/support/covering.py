"""Parameters of a product of choices: daily, a subset in which all choices meet; nightly, the whole product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*axes: Sequence[Any], strength: int = 2) -> list[Any]:
    """Every case of the product, as pytest parameters; those that the daily run can do without are marked nightly.

    axes       the values of each parameter
    strength   2: in the daily cases every two values of different parameters meet; 1: every value occurs

    Greedy, and the same on every call: a case with the most combinations that are not met yet, and of those one whose
    values occurred least.
    """
    cases = list(product(*axes))
    places = list(combinations(range(len(axes)), strength))
    missing = {met for at in range(len(cases)) for met in _met(cases[at], places, axes)}
    used: Counter[tuple[int, int]] = Counter()
    chosen = set()
    while missing:
        gains = [
            (len(missing & _met(case, places, axes)), -sum(used[one] for one in enumerate(_numbers(case, axes))))
            for case in cases
        ]
        best = gains.index(max(gains))
        chosen.add(best)
        missing -= _met(cases[best], places, axes)
        used.update(enumerate(_numbers(cases[best], axes)))
    return [nightly_unless(at in chosen, *case) for at, case in enumerate(cases)]


def nightly_unless(daily: bool, *values: Any) -> Any:
    """Parameters of one case."""
    return pytest.param(*values, marks=[] if daily else pytest.mark.nightly)


def daily(values: Sequence[Any], chosen: Sequence[Any]) -> list[Any]:
    """Parameters of a test with one parameter, of which the daily run takes `chosen`."""
    assert set(chosen) <= set(values)
    return [nightly_unless(value in chosen, value) for value in values]


def _numbers(case: tuple[Any, ...], axes: Sequence[Sequence[Any]]) -> list[int]:
    return [list(axis).index(value) for value, axis in zip(case, axes, strict=True)]


def _met(case: tuple[Any, ...], places: Sequence[tuple[int, ...]], axes: Sequence[Sequence[Any]]) -> set[Any]:
    numbers = _numbers(case, axes)
    return {(place, tuple(numbers[i] for i in place)) for place in places}
