"""The feature that failures depend on: named where it is clear-cut, else nothing."""

from __future__ import annotations

import random

from fuzz.session.summary.contrast import CHANCE, contrast


def cases(*features: str, count: int = 1) -> list[frozenset[str]]:
    return [frozenset(features)] * count


def test_a_feature_that_all_failures_have_and_nothing_that_passes_is_named() -> None:
    found = contrast(cases("softcap", "gqa", count=7), cases("gqa", count=53))
    assert str(found) == "all with softcap (all of them fail; none of 53 without)"


def test_it_says_how_many_with_the_feature_pass() -> None:
    found = contrast(cases("softcap", count=7), cases("softcap", count=5) + cases(count=48))
    assert str(found) == "all with softcap (7 of 12 fail; none of 48 without)"


def test_what_is_always_missing_is_named_too() -> None:
    found = contrast(cases("gqa", count=8), cases("packed", "gqa", count=50))
    assert str(found) == "all without packed (all of them fail; none of 50 with)"


def test_a_feature_that_the_minimised_case_needs_is_preferred() -> None:
    failed, passed = cases("softcap", "tail", count=9), cases("tail", count=1) + cases(count=50)
    assert "softcap" in str(contrast(failed, passed))
    assert "tail" in str(contrast(failed, passed, likely=("tail",)))


def test_nothing_is_said_of_few_failures_or_of_none_that_pass() -> None:
    assert contrast(cases("softcap", count=2), cases(count=20) + cases("softcap", count=6)) is None
    assert contrast(cases("softcap", count=9), []) is None
    assert contrast([], cases("softcap", count=9)) is None


def test_nothing_is_said_of_a_feature_that_some_failure_lacks() -> None:
    assert contrast(cases("softcap", count=8) + cases("gqa"), cases("gqa", count=50)) is None


def test_features_that_have_nothing_to_do_with_it_are_hardly_ever_named() -> None:
    draw = random.Random(5)
    names = [f"f{i}" for i in range(75)]
    named = 0
    for _ in range(300):
        drawn = [frozenset(name for name in names if draw.random() < 0.3) for _ in range(60)]
        named += contrast(drawn[:6], drawn[6:]) is not None
    assert named <= 3 * CHANCE * 300
