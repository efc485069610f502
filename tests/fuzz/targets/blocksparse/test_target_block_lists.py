"""The block lists that the adapter makes, decoded here by their definition, are the token predicate."""

from __future__ import annotations

import itertools

import pytest
import torch
from covering import covering
from msgspec.structs import replace

from fuzz.core.case import Case, Inputs
from fuzz.targets.blocksparse.block_lists import (
    LISTS,
    SCHEDULES,
    UNUSED,
    blocks_of,
    calls_on,
    expressible,
    runs,
    schedule_of,
)
from kernels.blocksparse.lists.types import Band, Bits, BlockSparse, Intervals
from oracles import masks as m
from oracles.problem import Problem, dense_mask

MASKS = {
    "full": m.Full(),
    "causal": m.Causal("bottom_right"),
    "window": m.Window(40, 3),
    "documents": m.Documents((30, 90, 200)),
    "per_head": m.PerHead((m.Causal(), m.Prefix(70))),
    "tokens": m.Blocks(32, 16, ("F.M.F", "....", "M..F", "MMMM", "F", ".F"), 3),
    "nothing": m.Prefix(0),
}


def decoded(p: Problem, blocks: BlockSparse) -> torch.Tensor:
    """Token mask (batch, heads_q, len_q, len_k) of the forward lists, entry by entry; checks the backward ones."""
    found = torch.zeros((p.batch, p.heads_q, p.len_q, p.len_k), dtype=torch.bool)
    entries = {"forward": set(), "backward": set()}
    for kind, b, h in itertools.product(("partial", "full"), range(p.batch), range(p.heads_q)):
        for direction in entries:
            lists = getattr(getattr(blocks, direction), kind)
            at = (b % lists.batch, h % lists.heads)
            for row in range(lists.rows):
                start, count = int(lists.begin[(*at, row)]), int(lists.count[(*at, row)])
                for place in range(start, start + count):
                    other = int(lists.index[place])
                    m_block, n_block = (row, other) if direction == "forward" else (other, row)
                    entries[direction].add((kind, b, h, m_block, n_block))
                    words = None
                    if kind == "partial" and isinstance(blocks.mask, Bits):
                        slots = blocks.mask.slot if direction == "forward" else blocks.mask.slot_backward
                        words = blocks.mask.words[int(slots[place])]
                    if direction == "forward":
                        paint(found[b, h], blocks, b, h, m_block, n_block, kind, words)
                    elif words is not None:
                        assert torch.equal(words, slot_of(blocks, b, h, m_block, n_block))
    assert entries["forward"] == entries["backward"]
    rows = torch.arange(p.len_q)[None, :, None] < torch.tensor(p.lengths_q)[:, None, None]
    cols = torch.arange(p.len_k)[None, None, :] < torch.tensor(p.lengths_k)[:, None, None]
    return found & (rows & cols)[:, None]


def slot_of(blocks, b: int, h: int, m_block: int, n_block: int) -> torch.Tensor:
    lists = blocks.forward.partial
    at = (b % lists.batch, h % lists.heads, m_block)
    places = range(int(lists.begin[at]), int(lists.begin[at]) + int(lists.count[at]))
    (place,) = (place for place in places if int(lists.index[place]) == n_block)
    return blocks.mask.words[int(blocks.mask.slot[place])]


def paint(found, blocks, b: int, h: int, m_block: int, n_block: int, kind: str, words) -> None:
    rows = range(m_block * blocks.tile_m, min((m_block + 1) * blocks.tile_m, found.shape[0]))
    cols = torch.arange(n_block * blocks.tile_n, min((n_block + 1) * blocks.tile_n, found.shape[1]))
    for q in rows:
        if kind == "full":
            kept = torch.ones(len(cols), dtype=torch.bool)
        elif isinstance(blocks.mask, Bits):
            local = cols - n_block * blocks.tile_n
            kept = (words[q - m_block * blocks.tile_m][local // 32] >> (local % 32) & 1).bool()
        elif isinstance(blocks.mask, Intervals):
            bounds = blocks.mask.bounds
            column = bounds[b % bounds.shape[0], h % bounds.shape[1], :, q].tolist()
            kept = cols < column[0]
            for start, stop in zip(column[1::2], column[2::2], strict=True):
                kept |= (cols >= start) & (cols < stop)
        else:
            assert isinstance(blocks.mask, Band)
            away = cols - (q + int(blocks.mask.offset[b % len(blocks.mask.offset)]))
            kept = (away >= -blocks.mask.left) & (away <= blocks.mask.right)
        found[q, cols] |= kept


@pytest.mark.parametrize(("name", "how"), covering(list(MASKS), ["bits", "intervals", "band"], strength=1))
def test_the_lists_are_the_predicate_in_every_layout(name: str, how: str) -> None:
    problem = Problem((200, 67), (150, 131), 2, 1, 64, 64, "bfloat16", mask=MASKS[name])
    if not expressible(problem, how):
        pytest.skip("not expressible that way")
    assert how != "band" or name in ("full", "causal", "window")
    right = dense_mask(problem).expand(2, 2, -1, -1)
    for layout, (tile_m, tile_n) in zip(LISTS, ((64, 64), (128, 64), (64, 128)), strict=True):
        variant = {"mask": how, "lists": layout, "tile_m": tile_m, "tile_n": tile_n}
        case = Case("blocksparse", problem, variant=variant)
        assert torch.equal(decoded(problem, blocks_of(case)), right), layout
    split = calls_on(replace(case, variant=variant | {"keys": "split"}), torch.device("cpu"))
    for parity, blocks in enumerate(split):
        keys = torch.arange(problem.len_k) // tile_n % 2 == parity
        assert torch.equal(decoded(problem, blocks), right & keys), parity


@pytest.mark.parametrize("keys", ["whole", "split"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("layout", LISTS)
def test_ranks_count_the_writers_of_each_dq_tile_in_launch_order(schedule: str, layout: str, keys: str) -> None:
    problem = Problem((300,), (300,), 2, 2, 64, 64, "float16", mask=m.PerHead((m.Window(100, 20), m.Causal())))
    variant = {"schedule": schedule, "lists": layout, "tile_m": 64, "tile_n": 64}
    case = Case("blocksparse", problem, Inputs(seed=3), variant | {"keys": keys})
    for blocks in [blocks_of(case)] if keys == "whole" else calls_on(case, torch.device("cpu")):
        assert_ranks_count_the_writers(blocks)


def assert_ranks_count_the_writers(blocks: BlockSparse) -> None:
    order = blocks.schedule.launch_order(5, "cpu")
    for h in range(2):
        launched = order[0, h % order.shape[1]].tolist()
        writers: dict[int, list[tuple[int, int]]] = {}
        for position, n_block in enumerate(launched):
            for lists, ranks in (
                (blocks.backward.partial, blocks.order.partial),
                (blocks.backward.full, blocks.order.full),
            ):
                at = (0, h % lists.heads, n_block)
                start = int(lists.begin[at])
                for place in range(start, start + int(lists.count[at])):
                    writers.setdefault(int(lists.index[place]), []).append((position, int(ranks[place])))
        assert writers
        for found in writers.values():
            assert [rank for _, rank in sorted(found)] == list(range(len(found)))


def test_what_no_entry_uses_is_poison() -> None:
    problem = Problem((300,), (300,), 1, 1, 64, 64, "float16", mask=m.Causal())
    blocks = blocks_of(Case("blocksparse", problem, variant={"lists": "padded", "tile_m": 64, "tile_n": 64}))
    assert (blocks.forward.partial.index == UNUSED).sum() == 5 * 5 - 5
    assert (blocks.mask.slot == UNUSED).sum() == 5 * 5 - 5


def test_compact_lists_have_no_launch_orders() -> None:
    problem = Problem((300,), (300,), 1, 1, 64, 64, "float16", mask=m.Causal())
    made = {lists: blocks_of(Case("blocksparse", problem, variant={"lists": lists})) for lists in LISTS}
    assert {lists for lists in LISTS if made[lists].lpt is None} == {"compact"}


def test_runs_of_a_random_mask_are_the_mask() -> None:
    mask = torch.rand((2, 3, 17, 29), generator=torch.Generator().manual_seed(1)) < 0.5
    bounds = runs(mask)
    k = torch.arange(29)
    found = k < bounds[:, :, 0, :, None]
    for i in range(1, bounds.shape[2], 2):
        found = found | ((k >= bounds[:, :, i, :, None]) & (k < bounds[:, :, i + 1, :, None]))
    assert torch.equal(found, mask)


def test_a_shuffled_schedule_is_not_its_own_inverse() -> None:
    for seed in range(30):
        problem = Problem((64,), (200,), 1, 1, 64, 64, "float16")  # four blocks: 10 of 24 permutations are
        case = Case("blocksparse", problem, Inputs(seed), {"tile_n": 64, "schedule": "shuffled"})
        order = schedule_of(case).positions
        assert order is not None
        row = order[0, 0].long()
        assert sorted(row.tolist()) == [0, 1, 2, 3] and not torch.equal(row[row], torch.arange(4))
