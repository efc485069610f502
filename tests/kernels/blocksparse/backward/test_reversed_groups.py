"""Ordered adds whose last group of concurrent pairs is reversed (NOTE [reversed groups] of backward/tile_iterator.py),
of causal masks, and of any other where the schedule says so: what is launched, and what every backward kernel computes
then on the emulated GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backward_problems import Problem, Spec, errors, make
from covering import covering, nightly_unless
from emulated_backward import emulated

from kernels.blocksparse.launch.backward import backward_launches, make_workspace
from kernels.blocksparse.launch.concurrency import has_longest_last, last_group
from kernels.blocksparse.launch.forward import INT32_MAX, Sequences
from kernels.blocksparse.lists.bands import band, causal, window
from kernels.blocksparse.lists.builder import dense
from kernels.blocksparse.lists.schedule import ASCENDING
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.lists.write_order import with_order
from oracles.dq_visits import Visits, launch_sequence, launch_visits
from oracles.semaphore_order import predict

CAUSAL = {"mask": "causal", "deterministic": True, "schedule": "descending"}
RANDOM = {"mask": "random", "deterministic": True, "schedule": "permutation", "reverses": True}


def values_of(blocks: BlockSparse, lengths: tuple[int, int], heads=(4, 2), batch=2, deterministic=True, pairs=None):
    """The values of the backward kernel's launch."""
    len_q, len_k = lengths
    q, do, o = (torch.empty(batch, len_q, heads[0], 64, dtype=torch.bfloat16) for _ in range(3))
    k, v = (torch.empty(batch, len_k, heads[1], 64, dtype=torch.bfloat16) for _ in range(2))
    lse = torch.empty(batch, heads[0], len_q)
    ints = [torch.full((batch,), x, dtype=torch.int32) for x in (0, len_q, 0, len_k)]
    sequences = Sequences(*ints)
    workspace = make_workspace(q, k, sequences, blocks, deterministic, 1)
    launches = backward_launches(
        torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), q, k, v, o, lse, do, sequences, blocks,
        workspace, scale=1.0, deterministic=deterministic, pairs=pairs,
    )  # fmt: skip
    return next(values for variant, values in launches if variant.kind == "backward")


def test_the_last_group_is_reversed_where_rows_get_longer_and_adds_are_ordered():
    mask = causal(300, 300, tile_m=64, tile_n=64)
    assert [values_of(mask, (300, 300), pairs=pairs)["reversed_from"] for pairs in (1, 2, 3, 4, 9)] == [3, 2, 3, 0, 0]
    assert values_of(mask, (300, 300), deterministic=False)["reversed_from"] == INT32_MAX
    others = (
        window(300, 300, left=100, tile_m=64, tile_n=64),
        band(300, 300, left=0, right=None, tile_m=64, tile_n=64),  # rows get shorter
        dense(300, 300, tile_m=64, tile_n=64),
        with_order(mask, ASCENDING),
        replace(mask, merged=False),
    )
    for blocks in others:
        assert not has_longest_last(blocks) and values_of(blocks, (300, 300))["reversed_from"] == INT32_MAX
        said = with_order(blocks, replace(blocks.schedule, reverses=True))
        assert [values_of(said, (300, 300), pairs=pairs)["reversed_from"] for pairs in (1, 3, 4)] == [3, 3, 0]
        assert values_of(said, (300, 300), deterministic=False)["reversed_from"] == INT32_MAX
    assert last_group(4, 0) == 0  # no pairs


def visits_of(blocks: BlockSparse, heads: tuple[int, int], batch: int, pairs: int, group_split: int) -> Visits:
    """The visits of all CTAs of a launch whose last group is reversed."""
    partial, full, order = blocks.backward.partial, blocks.backward.full, blocks.order
    return launch_visits(
        (partial.count, partial.index, partial.begin),
        (full.count, full.index, full.begin),
        (order.partial, order.full),
        blocks.schedule.launch_order(blocks.backward.rows, "cpu"),
        batch=batch,
        heads_q=heads[0],
        heads_kv=heads[1],
        m_blocks=blocks.m_blocks,
        concurrent_pairs=pairs,
        group_split=group_split,
        merged=blocks.merged,
        reversed_from=last_group(pairs, batch * heads[1] * group_split),
        contributors=blocks.forward.partial.count + blocks.forward.full.count,
    )


@pytest.mark.parametrize(
    ("lengths", "align", "heads", "pairs", "group_split"),
    covering([(640, 640), (200, 700), (700, 200)], ["top_left", "bottom_right"], [(2, 2), (4, 1)], [1, 2, 3], [1, 2]),
)
def test_ranks_of_a_reversed_group_follow_its_launch_order(lengths, align, heads, pairs, group_split):
    group_split = min(group_split, heads[0] // heads[1])
    assert_ends(visits_of(causal(*lengths, align=align, tile_m=64, tile_n=64), heads, 2, pairs, group_split))


@pytest.mark.parametrize("pairs", [1, 2, 3])
@pytest.mark.parametrize("mask", ["random", "documents", "window", "full"])
def test_so_do_those_of_any_mask_whose_schedule_reverses_the_last_group(mask, pairs):
    spec = Spec((300, 200), (330, 140), 4, 2, **{**RANDOM, "mask": mask})
    blocks = make(spec).blocks
    assert blocks.schedule.reverses and not has_longest_last(blocks)
    assert_ends(visits_of(blocks, (4, 2), 2, pairs, 1))


def assert_ends(visits: Visits) -> None:
    """The launch ends with any number of resident CTAs, and each tile's ranks are 0 … c - 1 as CTAs are launched."""
    ranks: dict[int, list[int]] = {}
    for tile, rank in zip(visits.tile, visits.rank, strict=True):
        ranks.setdefault(tile, []).append(rank)
    assert ranks and all(found == list(range(len(found))) for found in ranks.values())
    assert all(predict(visits, slots).ends == "always" for slots in (1, 2, 7))


def test_a_reversed_group_has_its_longest_rows_first_and_visits_from_the_last_query():
    sequence = list(launch_sequence(1, 3, 2, 2, last_group(2, 3)))
    assert sequence == [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 2, 0)]
    visits = visits_of(causal(192, 192, tile_m=64, tile_n=64), (2, 2), 1, 1, 1)
    rows = [visits.tile[a:b] for a, b in zip(visits.begin[:-1], visits.begin[1:], strict=True)]
    assert rows == [[2], [1, 2], [0, 1, 2], [5, 4, 3], [5, 4], [5]]
    assert [owner[2] for owner in visits.owner] == [2, 1, 0, 0, 1, 2]


# The kernels that look up rows of the lists, one of each way to do so
KERNELS = {
    "mma.sync": Spec((200, 130), (330, 140), 4, 2, deterministic=True),
    "wgmma, 64 keys": Spec((200,), (330,), 2, 2, dim=256, tile_m=128, products="wgmma", deterministic=True),
    "transposed": Spec((500, 300), (500, 300), 4, 2, tile_m=128, tile_n=128, products="wgmma", deterministic=True),
    "transposed, head dim 128": Spec(
        (1000,), (520,), 2, 2, dim=128, tile_m=128, tile_n=128, products="wgmma", deterministic=True
    ),
    "tcgen05": Spec((200,), (330,), 2, 2, tile_m=128, tile_n=128, products="tcgen05", deterministic=True),
    "packed": Spec((150, 140), (150, 130), 2, 1, packed=True, deterministic=True),
}


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        nightly_unless(not case.marks and case.values == ("mma.sync", 2), *case.values)
        for case in covering(list(KERNELS), [1, 2, 3])
    ],
)
def test_gradients_and_bits(name, pairs):
    problem = make(replace(KERNELS[name], **{**CAUSAL, "pairs": pairs}))
    assert has_longest_last(problem.blocks)
    assert_right(problem)


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        nightly_unless((name, mask) in (("mma.sync", "random"), ("tcgen05", "random")), name, mask)
        for name in KERNELS
        for mask in ("random", "documents", "full")
    ],
)
def test_gradients_and_bits_of_masks_whose_schedule_says_so(name, mask):
    problem = make(replace(KERNELS[name], **{**RANDOM, "mask": mask, "pairs": 1}))
    assert problem.blocks.schedule.reverses
    assert_right(problem)


def assert_right(problem: Problem) -> None:
    """The gradients, and the same bits with other warp schedules and other numbers of resident CTAs."""
    first = None
    for resident, warps in ((3, "in_order"), (1, "random"), (7, "oldest_last")):
        out = emulated(problem, resident, warps)
        assert max(errors(problem, out).values()) <= 1, errors(problem, out)
        first = first or out
        for x, again in zip(first.values(), out.values(), strict=True):
            assert torch.equal(x.nan_to_num(7.0), again.nan_to_num(7.0))
