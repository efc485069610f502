"""Lists by way of ranges, of tuples and of halves: right on the emulated GPU, and refused elsewhere."""

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("numba")

from blocksparse_shown import INTERVALS, _of

from fuzz.core.refusal import refusal
from fuzz.judging.judge import execute
from fuzz.targets.registry import load
from oracles.masks import Documents


@pytest.mark.parametrize("source", ["ranges", "linear"])
def test_lists_of_another_source_give_the_right_answer(source):
    case = _of(150, 150, mask=Documents((40, 90)), variant=INTERVALS | {"source": source})
    found = execute(case, load("blocksparse"), lambda phase, limit: None)
    assert found.outcome == "pass", found


def test_other_masks_have_no_other_source():
    assert refusal(load("blocksparse"), _of(variant={"source": "linear"})) is not None


def test_sequences_that_differ_have_no_ranges():
    ragged = _of((150, 90), (150, 90), mask=Documents((40, 90)), variant=INTERVALS | {"source": "ranges"})
    assert "ranges" in str(refusal(load("blocksparse"), ragged))


@pytest.mark.parametrize("schedule", ["shuffled", "planned"])
def test_lists_whose_blocks_were_halved_give_the_right_answer(schedule):
    case = _of(150, 200, mask=Documents((40, 90)), variant={"tile_n": 64, "lists": "halved", "schedule": schedule})
    found = execute(case, load("blocksparse"), lambda phase, limit: None)
    assert found.outcome == "pass", found
    assert refusal(load("blocksparse"), _of(variant={"tile_n": 128, "lists": "halved"})) is not None


def test_sessions_draw_halves_above_head_dim_128_alone():
    for dim, halved in ((128, False), (136, True)):
        p = _of(150, 200).problem.edited(dim=dim, dim_v=dim, dtype="float16")
        ways = load("blocksparse").variants_for(p)
        assert any(way["lists"] == "halved" for way in ways) == halved
