"""Lists by way of ranges, of tuples and of halves: right on the emulated GPU, and refused elsewhere."""

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("numba")

from blocksparse_shown import INTERVALS, _of

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.judging.judge import execute
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.registry import load
from oracles.masks import Documents
from oracles.problem import Problem


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


TURNED = {"mask": "none", "products": "wgmma", "schedule": "turned", "slots": 2}


@pytest.mark.nightly
def test_lists_of_a_full_mask_may_begin_with_their_third_block():
    problem = Problem((763,), (256,), 2, 1, 128, 128, "float16")
    case = Case("blocksparse", problem, variant=TURNED, repeats=1)
    blocks = blocks_of(case)
    assert blocks.backward.full.to_padded(6)[1].tolist() == [[[[2, 3, 4, 5, 0, 1]] * 2]]
    assert blocks.schedule.alike and blocks.schedule.group_split == 1 and not blocks.merged
    found = execute(case, load("blocksparse"), lambda phase, limit: None)
    assert found.outcome == "pass", found


def test_lists_of_other_masks_are_not_turned():
    for variant in (TURNED | {"mask": "bits"}, TURNED | {"keys": "split"}):
        problem = Problem((763,), (256,), 2, 1, 128, 128, "float16")
        assert "turned" in str(refusal(load("blocksparse"), Case("blocksparse", problem, variant=variant)))


def test_sessions_draw_halves_above_head_dim_128_alone():
    for dim, halved in ((128, False), (136, True)):
        p = _of(150, 200).problem.edited(dim=dim, dim_v=dim, dtype="float16")
        ways = load("blocksparse").variants_for(p)
        assert any(way["lists"] == "halved" for way in ways) == halved
