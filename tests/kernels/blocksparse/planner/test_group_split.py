"""When a group of query heads is split over CTAs, and what follows from it."""

from dataclasses import replace

import pytest
import torch

from kernels.blocksparse.launch.backward import make_workspace
from kernels.blocksparse.launch.concurrency import concurrent_pairs, group_split_of
from kernels.blocksparse.launch.forward import Sequences
from kernels.blocksparse.lists.bands import causal, window
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.halves import halve_keys
from kernels.blocksparse.lists.schedule import Schedule
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.planner.group_split import (
    L2_BYTES,
    PAIRS,
    SLOTS,
    choose_group_split,
    in_step_group_split,
    scattered_group_split,
    separate_group_split,
    separate_traffic,
    unit_bytes,
)


def operands(tokens: int, batch: int, heads_kv: int, dim: int = 128):
    """q and k of 16 query heads, without storage."""
    q = torch.empty(batch, tokens, 16, dim, dtype=torch.bfloat16, device="meta")
    return q, q[:, :, :heads_kv]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("heads_kv", [1, 2, 3, 16])
@pytest.mark.parametrize("tokens", [0, 64, 200, 1000, 8192, 32768, 1 << 20])
def test_parts_divide_the_group_and_leave_each_enough_to_do(tokens, heads_kv, deterministic):
    blocks = -(-tokens // 128)
    for group in (1, 2, 3, 6, 8, 16):
        group_split = choose_group_split(1, heads_kv * group, heads_kv, blocks, blocks, deterministic)
        assert group % group_split == 0
        assert group_split == 1 or group // group_split * blocks >= 4


def test_full_grids_are_not_split():
    assert choose_group_split(1, 16, 16, 64, 64, True) == 1
    assert choose_group_split(2, 128, 16, 256, 256, False) == choose_group_split(2, 128, 16, 256, 256, True) == 1
    assert choose_group_split(1, 16, 2, 1024 * 16, 1024 * 16, True) == 1  # two million tokens


def test_small_grids_get_three_waves_and_ordered_adds_as_many_units_as_go_side_by_side():
    atomic, ordered = (choose_group_split(1, 16, 2, 64, 64, deterministic) for deterministic in (False, True))
    assert atomic == 4 and 2 * 64 * atomic >= 3 * SLOTS
    assert ordered == 8 and 2 * ordered == PAIRS
    assert choose_group_split(1, 16, 2, 256, 256, False) == 4  # 512 CTAs, but of up to 2,048 tiles each
    assert choose_group_split(1, 16, 2, 256, 256, True) == 8


def test_ctas_in_step_have_as_few_heads_as_make_no_more_than_many_of_them():
    assert in_step_group_split(2, 16, 2, 64, 64) == 8 and choose_group_split(2, 16, 2, 64, 64, True) == 4
    assert in_step_group_split(2, 16, 2, 256, 256) == choose_group_split(2, 16, 2, 256, 256, True) == 4
    assert in_step_group_split(1, 16, 16, 64, 64) == in_step_group_split(2, 16, 2, 4096, 4096) == 1
    assert in_step_group_split(1, 16, 2, 2, 2) == 4  # of four tiles each


def test_masks_with_another_schedule_split_groups_by_the_rules_and_a_computed_one_as_computed():
    blocks, (q, k) = causal(8192, 8192), operands(8192, 2, 2)
    backwards = with_order(blocks, Schedule("ascending"))
    assert group_split_of(backwards, 2, q, k, True) == choose_group_split(2, 16, 2, 64, 64, True)
    assert group_split_of(with_order(blocks, Schedule("descending", None, 4, 2)), 2, q, k, True) == 2
    of_window = group_split_of(window(8192, 8192, left=2047), 2, q, k, True)
    assert of_window == in_step_group_split(2, 16, 2, 64, 64) == 8


def test_the_workspace_has_room_for_each_parts_sums_only_where_there_are_parts():
    blocks, q = causal(8192, 8192), torch.empty(1, 8192, 16, 96, dtype=torch.bfloat16, device="meta")
    lengths = torch.tensor([8192], dtype=torch.int32, device="meta")
    sequences = Sequences(lengths, lengths, lengths, lengths)
    whole = make_workspace(q, q, sequences, blocks, True)
    assert whole.group_split == 1 and whole.dkv_sum is None
    split = make_workspace(q, q[:, :, :2], sequences, blocks, True)
    assert split.group_split == 8 and split.dkv_sum.numel() == 2 * 16 * 8192 * 96 == 2 * split.dq_sum.numel()


def test_units_side_by_side_share_the_cache_as_heads_do():
    blocks, q = causal(8192, 8192), torch.empty(1, 8192, 16, 128, dtype=torch.bfloat16, device="meta")
    assert concurrent_pairs(q, q[:, :, :2], blocks, False, group_split=8) == concurrent_pairs(q, q, blocks, False) == 4
    assert concurrent_pairs(q, q[:, :, :2], blocks, False) == 2  # all that there are


def test_atomic_adds_of_rows_that_are_alike_go_through_one_head_after_the_other():
    q = torch.empty(2, 8192, 16, 128, dtype=torch.bfloat16, device="meta")
    assert concurrent_pairs(q, q, dense(8192, 8192), False) == 1
    assert concurrent_pairs(q, q, causal(8192, 8192), False) > 1


@pytest.mark.parametrize("tokens, dim, pairs", [(8192, 256, 2), (2048, 256, 8), (8192, 128, 4), (8192, 64, 8)])
def test_ordered_rows_that_are_alike_have_few_concurrent_pairs(tokens, dim, pairs):
    """As many as the L2 cache holds; under another schedule, or in another order of a row, nothing says that they
    are."""
    blocks, q = dense(tokens, tokens), torch.empty(2, tokens, 16, dim, dtype=torch.bfloat16, device="meta")
    lists = halve_keys(blocks, tokens) if dim > 128 else blocks
    assert lists.schedule.alike and concurrent_pairs(q, q, lists, True) == pairs
    assert dim <= 128 or pairs == concurrent_pairs(q, q, lists, False)
    many = concurrent_pairs(q, q, with_order(lists, Schedule("ascending")), True)
    assert many == concurrent_pairs(q, q, replace(lists, merged=False), True) > 2


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("heads", [(64, 4), (32, 8), (6, 2), (2, 2)])
@pytest.mark.parametrize("rows", [1, 4096, 8192, 32768, 65536, 131072, 1 << 20])
def test_heads_of_scattered_tiles_share_a_unit_while_they_fit_the_l2_cache(deterministic, heads, rows):
    group, sizes = heads[0] // heads[1], (-(-rows // 128), -(-rows // 64), deterministic)
    usual = choose_group_split(1, *heads, *sizes)
    split = scattered_group_split(1, *heads, rows, 128, *sizes)
    share = group // split
    assert group % split == 0 and split >= usual
    if unit_bytes(rows, 1, 128) > 4 * L2_BYTES:
        assert split == usual
    else:
        assert share == 1 or unit_bytes(rows, share, 128) <= L2_BYTES
        wider = [s for s in range(share + 1, group // usual + 1) if group % s == 0]
        assert all(unit_bytes(rows, s, 128) > L2_BYTES for s in wider)


def test_scattered_tiles_of_nothing_have_one_unit():
    assert scattered_group_split(1, 4, 2, 0, 64, 0, 0, True) == choose_group_split(1, 4, 2, 0, 0, True)


@pytest.mark.parametrize("heads", [(64, 4), (32, 8), (6, 2), (2, 2)])
@pytest.mark.parametrize("rows", [1, 4096, 32768, 65536, 131072, 1 << 20])
def test_units_of_a_separate_dq_cause_the_least_traffic_of_those_that_fill_the_device(heads, rows):
    group, blocks = heads[0] // heads[1], (-(-rows // 128), -(-rows // 64))
    least = choose_group_split(1, *heads, *blocks, False)
    split = separate_group_split(1, *heads, rows, 128, *blocks, 16)
    others = [p for p in range(least, group + 1) if group % p == 0]
    assert split in others
    traffic = {p: separate_traffic(1, *heads, rows, 128, 16, p) for p in others}
    assert all(traffic[split] <= traffic[p] for p in others)


def test_units_whose_rows_are_in_the_cache_or_can_never_be_are_not_split_for_it():
    """Sums cost more than they bring."""
    for rows in (32768, 1 << 21):
        assert separate_group_split(1, 32, 8, rows, 128, rows // 128, rows // 64, 16) == 1


def test_a_separate_dq_of_nothing_has_one_unit():
    assert separate_group_split(1, 4, 2, 0, 64, 0, 0, 0) == 1
