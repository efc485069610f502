"""Ranks for the deterministic backward pass: the order of the adds to a dQ tile.

NOTE [write order]
A CTA owns one n block and adds to the dQ tile of every m block that it lists. It waits until the tile's semaphore
equals its rank, adds, and adds 1 to the semaphore. So for each (sequence, query head, m block) the ranks of all blocks,
partial and full together, must be 0 … c-1, each once: a duplicate or a gap is a wait that never ends. And they must
follow the launch order: then the oldest CTA that has not finished never waits for a younger one, and nothing can
deadlock, however few CTAs are resident and in whatever order each visits its m blocks. Ranks that follow another order
end only while all CTAs are resident. The kernel launches by `Schedule.launch_order`, and the ranks here are made from
the same tensor.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.blocksparse.lists.schedule import Schedule
from kernels.blocksparse.lists.transpose import narrowed
from kernels.blocksparse.lists.types import BlockList, BlockLists, BlockSparse, WriteOrder, entries, exclusive_sum


def write_order(backward: BlockLists, schedule: Schedule, m_blocks: int) -> WriteOrder:
    """Rank of each (n, m) entry among all the n blocks that add to the same dQ tile, in launch order.

    backward  rows are n blocks; valid lists (validate/), of equal shapes. What is out of range, here or in the
              schedule, has ranks that mean nothing, and is refused by `validate.check_contents`
    schedule  its permutation, if any, has one order per sequence and KV head, or fewer; never more than the lists have
    m_blocks  tiles of the longest query sequence
    returns   ranks parallel to the index tensors; 0 where these hold no entry

    The entries are enumerated in launch order and sorted, stably, by the dQ tile that they add to; a rank is the
    distance to the first of its tile. O(entries log entries) time, O(entries + rows) memory, on the lists' device,
    without synchronising. Raises ValueError where the schedule's shape does not fit the lists.
    """
    merged = in_launch_order(backward, schedule)
    groups = merged.batch * merged.heads
    e = entries(merged)
    group = torch.div(e.row, max(merged.rows, 1), rounding_mode="floor")
    m_block = merged.index[e.place]
    outside = ~e.valid | (m_block < 0) | (m_block >= m_blocks)
    tile = group.mul_(m_blocks).add_(m_block).masked_fill_(outside, groups * m_blocks)
    place = torch.where(e.valid, e.place, merged.capacity)
    del e, group, m_block, outside
    tile, by_tile = torch.sort(narrowed(tile, groups * m_blocks), stable=True)
    tile = tile.to(torch.int64)
    contributors = torch.zeros(groups * m_blocks + 1, dtype=torch.int32, device=tile.device)
    contributors.scatter_add_(0, tile, torch.ones_like(tile, dtype=torch.int32))
    rank = torch.arange(tile.numel(), device=tile.device)
    rank -= exclusive_sum(contributors)[tile]
    ranks = torch.zeros(merged.capacity + 1, dtype=torch.int32, device=tile.device)
    ranks.scatter_(0, place[by_tile], rank.to(torch.int32))
    ranks[-1:] = 0
    split = backward.partial.capacity
    return WriteOrder(ranks[:split], ranks[split:-1])


def with_order(blocks: BlockSparse, schedule: Schedule | None = None) -> BlockSparse:
    """Blocks with the ranks of a schedule (None: their own), ready for the deterministic backward pass."""
    if blocks.backward is None:
        raise ValueError("backward: got None, need backward lists (see with_backward)")
    schedule = blocks.schedule if schedule is None else schedule
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule: needs a Schedule, got {type(schedule).__name__}")
    order = write_order(blocks.backward, schedule, blocks.m_blocks)
    return replace(blocks, schedule=schedule, order=order)


def in_launch_order(backward: BlockLists, schedule: Schedule) -> BlockList:
    """Both backward lists as one, its rows in launch order: (batch, heads_q, 2 * n_blocks), row 2p the partial entries
    of the n block at position p, row 2p + 1 its full ones; index is both indices, one after the other."""
    partial, full = backward.partial, backward.full
    order = spread_order(schedule, partial)
    count = torch.stack((partial.count.gather(2, order), full.count.gather(2, order)), -1)
    begin = torch.stack((partial.begin.gather(2, order), full.begin.gather(2, order) + partial.capacity), -1)
    return BlockList(count.flatten(2), torch.cat((partial.index, full.index)), begin.flatten(2))


def spread_order(schedule: Schedule, lists: BlockList) -> Tensor:
    """The launch order as int64 (batch, heads, n_blocks) of the lists; a KV head's order holds for its query heads."""
    order = schedule.launch_order(lists.rows, lists.count.device)
    if order.dim() != 3:
        raise ValueError(
            f"schedule.positions: needs shape (batch|1, heads_kv|1, {lists.rows}), got {tuple(order.shape)}"
        )
    batch, heads, rows = order.shape
    if rows != lists.rows:
        raise ValueError(f"schedule.positions: needs {lists.rows} n blocks, as the lists, got {rows}")
    if batch not in (1, lists.batch):
        raise ValueError(f"schedule.positions: needs batch 1 or {lists.batch}, as the lists, got {batch}")
    if lists.heads % heads:
        raise ValueError(f"schedule.positions: needs heads that divide the lists' {lists.heads}, got {heads}")
    order = order.to(torch.int64).clamp(0, max(rows - 1, 0)).repeat_interleave(lists.heads // heads, dim=1)
    return order.expand(lists.batch, lists.heads, rows)
