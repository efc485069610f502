"""The rule for change points."""

from __future__ import annotations

import numpy as np

from fuzz.dashboard.collect.change_points import LEAST, change_points


def series(*levels: tuple[float, int], noise: float = 0.01, seed: int = 0) -> list[float]:
    draw = np.random.default_rng(seed)
    return [float(level * (1 + noise * draw.standard_normal())) for level, count in levels for _ in range(count)]


def test_a_step_is_found_where_it_is() -> None:
    (shift,) = change_points(series((10, 20), (11, 20)))
    assert shift.index == 20
    assert abs(shift.before - 10) < 0.1 and abs(shift.after - 11) < 0.1
    assert shift.p < 0.001


def test_several_steps_are_found() -> None:
    assert [one.index for one in change_points(series((10, 15), (12, 15), (9, 15)))] == [15, 30]


def test_noise_alone_has_hardly_ever_one() -> None:
    alarms = sum(bool(change_points(series((10, 60), noise=0.05, seed=seed))) for seed in range(300))
    assert alarms <= 3  # the level is 1 % a series


def test_outliers_and_short_excursions_are_none() -> None:
    assert not change_points([*series((10, 20)), 50.0, *series((10, 20), seed=1)])
    assert not change_points(series((10, 20), (13, LEAST - 1), (10, 20)))


def test_a_shift_that_is_certain_but_small_is_none() -> None:
    assert not change_points(series((10, 100), (10.1, 100), noise=0.001))


def test_short_and_constant_series_have_none() -> None:
    assert not change_points([]) and not change_points([1.0] * 50) and not change_points([1, 1, 1, 1, 2, 2, 2, 2])
