"""Long block lists: every session has them, without a GPU as checks of the metadata alone."""

from __future__ import annotations

import random

import pytest

from fuzz.core.refusal import refusal
from fuzz.judging.judge import execute
from fuzz.session.draw import drawer_of, explore, seed_cases
from fuzz.session.plan import plan
from fuzz.session.settings import Settings
from fuzz.targets.blocksparse import long_lists
from fuzz.targets.blocksparse.case_blocks import case_blocks
from fuzz.targets.blocksparse.devices import emulator_there, toolchain_there
from fuzz.targets.registry import load

pytestmark = pytest.mark.skipif(not (toolchain_there() and emulator_there()), reason="needs toolchain and emulator")


def judged(name: str, case):
    return execute(case, load(name), lambda phase, limit: None)


def longest_lists(case) -> dict[str, tuple[int, int]]:
    """Entries of the longest list of masked blocks, and of the longest one of full blocks, in both directions."""
    blocks = case_blocks(case, "").launched
    return {
        name: (int(lists.partial.count.max()), int(lists.full.count.max()))
        for name, lists in (("rows", blocks.forward), ("columns", blocks.backward))
    }


def longest(case) -> int:
    """Entries of the longest list."""
    return max(max(pair) for pair in longest_lists(case).values())


def test_a_session_begins_with_long_rows_and_columns_that_are_right() -> None:
    cases = long_lists.seed_cases("blocksparse")
    column, row = map(longest_lists, cases)
    assert (column["columns"], row["rows"]) == ((128, 64), (96, 128))
    for case in cases:
        verdict = judged("blocksparse", case)
        assert (verdict.outcome, verdict.kernel) == ("pass", "") and "the case asks for no run" in verdict.reason


def test_drawn_lists_are_as_long_as_they_should_be_and_right() -> None:
    target, counts = load("blocksparse"), set[int]()
    for seed in range(12):
        case = target.draw_long_lists(random.Random(seed), 3)
        assert refusal(target, case) is None and not target.runs(case)
        assert target.builds(case, target.arch()) == ()
        assert judged("blocksparse", case).outcome == "pass"
        counts.add(longest(case))
    assert min(counts) >= 13 and max(counts) >= 96


def test_sessions_draw_them() -> None:
    target, alone = load("blocksparse"), 0
    for seed in range(1, 5):
        settings, drawn = Settings(cases=100, seed=seed, targets=("blocksparse",)), []
        for shard in plan(settings):
            explore(shard, drawer_of(target, settings), drawn.append, seed_cases(shard, target, settings))
        alone += sum(not target.runs(case) for case in drawn[len(target.seed_cases()) + len(target.kernel_choices()) :])
    assert alone >= 6


def test_a_column_of_32_that_loses_a_block_is_found_among_the_first_cases() -> None:
    name = "blocksparse!column_of_32_loses_its_last"
    first = load(name).seed_cases()[:2]
    assert [judged(name, case).outcome for case in first] == ["fail", "pass"]
    finding = judged(name, first[0]).findings[0]
    assert finding.oracle == "block_lists" and "m_block 191" in finding.message
