"""Lists of a causal mask, as a band, in which heads have lists of their own."""

import pytest
import torch

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.judging.judge import execute
from fuzz.targets.blocksparse.block_lists import blocks_of
from fuzz.targets.blocksparse.by_head import causal_by_head, hidden_keys
from fuzz.targets.registry import load
from oracles.masks import And, Causal, Not, PerHead, Prefix
from oracles.problem import Problem

MASK = causal_by_head(0, 128)


def of(mask=MASK, lengths=(300,), **variant):
    problem = Problem(lengths, lengths, 4, 2, 64, 64, "float16", mask=mask)
    return Case("blocksparse", problem, variant={"mask": "band", "tile_m": 64} | variant, repeats=1)


def test_the_mask_says_which_keys_each_head_does_not_see():
    assert hidden_keys(MASK) == (0, 128) and hidden_keys(causal_by_head(64, 0, 192)) == (64, 0, 192)
    causal = Causal("bottom_right")
    others = (causal, PerHead((causal, Prefix(3))), PerHead((Causal(),)), PerHead((And((Causal(), Not(Prefix(3)))),)))
    assert not any(map(hidden_keys, others))


def test_a_head_s_list_has_no_block_that_it_does_not_see():
    blocks = blocks_of(of())
    for lists in (blocks.forward, blocks.backward):
        assert lists.partial.count.shape[:2] == lists.full.count.shape[:2] == (1, 4)
    count = blocks.forward.partial.count + blocks.forward.full.count
    assert count[0].tolist() == [[1, 1, 2, 2, 3], [0, 0, 1, 1, 2]] * 2
    first, second, *again = blocks.forward.full.to_padded(3, -1)[1][0]
    assert first[4].tolist() == [0, 1, -1] and second[4].tolist() == [1, -1, -1]
    assert torch.equal(again[0], first) and torch.equal(again[1], second)


@pytest.mark.parametrize("schedule", ["ascending", "descending"])
def test_kernels_take_such_lists(schedule):
    found = execute(of(schedule=schedule), load("blocksparse"), lambda phase, limit: None)
    assert found.outcome == "pass", found


def test_lists_made_in_another_way_are_refused():
    assert refusal(load("blocksparse"), of()) is None
    for case in (
        of(tile_n=64, lists="halved"),
        of(keys="split"),
        of(schedule="shuffled"),
        of(causal_by_head(0, 64)),
        of(lengths=(300, 200)),
    ):
        assert "band for each head" in str(refusal(load("blocksparse"), case)), case
