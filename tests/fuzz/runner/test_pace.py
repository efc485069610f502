"""Limits follow what a session's runs took: raised at once, lowered after some runs, never below the floor."""

from __future__ import annotations

import pytest

from fuzz.runner.limits import HOST, for_device
from fuzz.runner.pace import FIRST, LEAST, MARGIN, Pace

KERNEL = ("mine", "True", "run")


def test_a_kernel_that_has_not_run_has_what_is_announced_and_at_least_the_floor() -> None:
    assert Pace(0.5).limit(KERNEL, 3.0) == 3.0
    assert Pace(0.5).limit(KERNEL, 0.01) == 0.5


def test_one_run_that_took_longer_raises_the_limit_of_the_next_without_bound() -> None:
    pace = Pace(0.5)
    pace.ended(KERNEL, 0.5, 40.0)
    assert pace.limit(KERNEL, 0.5) == MARGIN * 40.0
    assert pace.limit(("mine", "False", "run"), 0.5) == 0.5  # the backward's pace says nothing of the forward's


def test_larger_runs_may_take_longer_in_proportion_and_smaller_ones_as_long() -> None:
    pace = Pace(0.5)
    pace.ended(KERNEL, 2.0, 3.0)
    assert pace.limit(KERNEL, 16.0) == MARGIN * 3.0 * 8
    assert pace.limit(KERNEL, 0.5) == MARGIN * 3.0
    pace.ended(KERNEL, 16.0, 4.0)  # a run of that size is better evidence than one in proportion
    assert pace.limit(KERNEL, 16.0) == MARGIN * 4.0


def test_enough_fast_runs_lower_a_limit_within_bounds() -> None:
    pace = Pace(0.5)
    for _ in range(FIRST - 1):
        pace.ended(KERNEL, 30.0, 0.01)
    assert pace.limit(KERNEL, 30.0) == 30.0
    pace.ended(KERNEL, 30.0, 0.01)
    assert pace.limit(KERNEL, 30.0) == pytest.approx(30.0 * LEAST)
    assert pace.limit(KERNEL, 0.6) == 0.5


def test_a_hang_is_called_one_at_ten_times_the_limit_on_every_device() -> None:
    assert HOST.confirm == for_device("cuda:0").confirm == 10.0
