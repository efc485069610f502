"""Planned orders of packed sequences, whose tiles are launched by length (NOTE [sequences by length] of lists/lpt.py),
and the model of that launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.blocksparse.launch.by_length import order_of_keys
from kernels.blocksparse.launch.concurrency import concurrent_pairs, group_split_of
from kernels.blocksparse.lists.from_mask import from_grid
from kernels.blocksparse.planner.cost_model import Costs, as_listed, merged, played_alone
from kernels.blocksparse.planner.launch_model import Launch, SequenceLaunch, run, run_by_length
from kernels.blocksparse.planner.planner import Plan, estimate, least_blocking, segments_of

LENGTHS = (300, 4000, 90, 0, 1700)
OF = {"heads_q": 4, "heads_kv": 4, "batch": len(LENGTHS)}


def grid(lengths=LENGTHS, share=0.3, heads=1):
    """Random blocks of packed sequences."""
    size = -(-max(lengths) // 128)
    cells = torch.rand(len(lengths), heads, size, size, generator=torch.Generator().manual_seed(0)) < share
    return from_grid(cells | torch.eye(size, dtype=torch.bool), lengths, lengths)


def packed(heads=4, dim=128):
    """Rows of q, or of k, without storage."""
    return torch.empty(sum(LENGTHS), heads, dim, dtype=torch.bfloat16, device="meta")


def launches(blocks, order_of, pairs, slots=132):
    """The model's launch of the sequences by length, under the order of each one's n blocks."""
    tiles = [-(-length // 128) for length in LENGTHS]
    visit, found = merged if blocks.merged else as_listed, []
    for b in sorted(range(len(LENGTHS)), key=lambda b: -tiles[b]):
        segments = list(segments_of(blocks, 1, 1))[b][: tiles[b]]
        chosen = played_alone(segments, order_of(b)[: tiles[b]], slots, Costs(), visit)
        concurrent = min(pairs * blocks.backward.rows // max(tiles[b], 1), 4)
        found.append(SequenceLaunch(segments, chosen, Launch(slots, concurrent, 4)))
    return found


def positions_of(plan: Plan, b: int) -> list[int]:
    """The launch order of a sequence's n blocks."""
    return plan.blocks.schedule.launch_order(plan.blocks.backward.rows, "cpu")[b, 0].tolist()


def test_padded_sequences_are_planned_with_all_tiles():
    blocks = grid()
    plan, of_equal = least_blocking(blocks, **OF, packed=False), least_blocking(grid((600,) * 5), **OF, packed=False)
    assert not plan.blocks.schedule.own_first and order_of_keys(packed(), plan.blocks) is None
    rows = blocks.backward.rows
    assert all(sorted(positions_of(plan, b)) == list(range(rows)) for b in range(len(LENGTHS)))
    assert plan.pairs <= 4 * len(LENGTHS) and plan.total != least_blocking(blocks, **OF).total
    assert of_equal.total == least_blocking(grid((600,) * 5), **OF).total


def test_each_sequence_has_an_order_of_its_own_blocks_and_is_launched_by_length():
    blocks = grid()
    plan = least_blocking(blocks, **OF)
    assert plan.blocks.schedule.own_first and order_of_keys(packed(), plan.blocks) is not None
    for b, length in enumerate(LENGTHS):
        own = -(-length // 128)
        assert sorted(positions_of(plan, b)[:own]) == list(range(own))
        assert positions_of(plan, b)[own:] == list(range(own, blocks.backward.rows))
    assert concurrent_pairs(packed(), packed(), plan.blocks, True) == min(plan.pairs, 4)
    assert group_split_of(plan.blocks, 5, packed(), packed(), True) == plan.group_split


def test_sequences_that_share_lists_or_are_alike_are_planned_as_before():
    """An order of n blocks fits one length; of equal ones an order of the sequences saves nothing."""
    for lengths in ((600, 600, 600), (600, 610, 620)):
        blocks = grid(lengths)
        plan = least_blocking(blocks, heads_q=2, heads_kv=2, batch=3, slots=8)
        assert not plan.blocks.schedule.own_first
    without = replace(grid(), lpt=None)
    assert not least_blocking(without, **OF).blocks.schedule.own_first


def test_the_time_of_the_plan_is_that_of_its_launch():
    """By the model, of all sequences one after the other; no longer than under the builders' order."""
    blocks = grid()
    for pairs in (1, 2, 4):
        plan = least_blocking(blocks, **OF, pairs=pairs, costs=Costs(miss=0.0))
        costs = Costs(miss=0.0)
        planned = run_by_length(launches(plan.blocks, lambda b, plan=plan: positions_of(plan, b), pairs), costs)
        assert plan.total == pytest.approx(planned.makespan)
        longest_first = run_by_length(
            launches(blocks, lambda b: blocks.schedule.launch_order(blocks.backward.rows, "cpu")[b, 0].tolist(), pairs),
            costs,
        )
        assert planned.makespan < longest_first.makespan and planned.waiting < longest_first.waiting


def test_equal_sequences_by_length_take_the_time_of_one_launch_of_all():
    """Where each group of concurrent pairs is a sequence."""
    segments = [[np.empty(0, dtype=np.int64), np.array(tiles)] for tiles in ((0, 1, 2), (1, 2), (0, 2))]
    costs = Costs(miss=2.0)
    chosen = played_alone(segments, [2, 0, 1], 2, costs, as_listed)
    whole = run(segments, chosen, Launch(3, 2, 4, held=4), costs)
    apart = run_by_length([SequenceLaunch(segments, chosen, Launch(3, 2, 2, held=4))] * 2, costs)
    assert apart == whole


def test_lists_of_their_own_for_each_head():
    plan = least_blocking(grid(heads=4), **OF, pairs=2)
    assert plan.blocks.schedule.own_first and plan.blocks.schedule.positions.shape[:2] == (5, 4)
    assert estimate(plan.blocks, plan.blocks.schedule, **OF).makespan > 0
