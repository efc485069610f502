"""Launch orders: what a kind of schedule launches first, and which kind bands have."""

import pytest
import torch

from kernels.blocksparse.lists.bands import band, causal, window
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, MIDDLE_OUT, schedule_of
from kernels.blocksparse.planner.planner import estimate


@pytest.mark.parametrize(
    ("n_blocks", "wanted"),
    [(0, []), (1, [0]), (2, [0, 1]), (5, [1, 0, 2, 3, 4]), (8, [3, 2, 1, 0, 4, 5, 6, 7])],
)
def test_the_first_half_comes_from_its_end_and_then_the_second_from_its_start(n_blocks, wanted):
    order = MIDDLE_OUT.launch_order(n_blocks, "cpu")
    assert order.shape == (1, 1, n_blocks) and order.dtype == torch.int32
    assert order.flatten().tolist() == wanted


def test_a_schedule_by_its_name():
    for schedule in (ASCENDING, DESCENDING, MIDDLE_OUT):
        assert schedule_of(schedule.kind) is schedule


def test_causal_masks_over_as_many_keys_as_queries_start_in_the_middle():
    for blocks in (causal(700, 700), causal([700, 90], [700, 300]), causal(700, 700, align="bottom_right")):
        assert blocks.schedule is MIDDLE_OUT and blocks.merged
    for blocks in (
        causal(700, 1400),
        window(700, 700, left=200),
        band(700, 700, left=0, right=None),
        band(700, 700, left=None, right=None),
        causal(700, 700, schedule=DESCENDING),
    ):
        assert blocks.schedule is DESCENDING


@pytest.mark.parametrize("heads_kv", [16, 2])
def test_from_the_middle_out_causal_masks_take_less_time_than_in_either_direction(heads_kv):
    """By the model, with as many CTAs of a unit at once as eight concurrent units have on 132 multiprocessors."""
    blocks = causal(8192, 8192)
    heads = {"heads_q": 16, "heads_kv": heads_kv, "pairs": 8}
    times = {s.kind: estimate(blocks, s, **heads).makespan for s in (ASCENDING, DESCENDING, MIDDLE_OUT)}
    assert times["middle_out"] < 0.95 * min(times["ascending"], times["descending"]), times
