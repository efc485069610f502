"""The other direction of block lists: from n blocks per m to m blocks per n, for the backward pass.

One stable sort of the entries by their new row, on the lists' own device, without asking it anything: the result's
index has the capacity of the source's.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.blocksparse.lists.types import (
    Band,
    Bits,
    BlockList,
    BlockLists,
    BlockSparse,
    Intervals,
    entries,
    exclusive_sum,
)


def transpose(blocks: BlockList, rows: int) -> tuple[BlockList, Tensor]:
    """Blocks listed the other way, and where each came from.

    blocks   entries in 0 … rows - 1; others are left out, and refused by `validate.check_contents`
    rows     rows of the result: blocks of the longest sequence in that direction
    returns  (list, source): the list in CSR, each row ascending where blocks' rows are enumerated in order; source
             int64, parallel to its index: the entry's place in blocks.index

    O(entries log entries) time, O(entries + rows) memory.
    """
    groups = blocks.batch * blocks.heads
    e = entries(blocks)
    group = torch.div(e.row, max(blocks.rows, 1), rounding_mode="floor")
    column = blocks.index[e.place]
    outside = ~e.valid | (column < 0) | (column >= rows)
    key = group.mul_(rows).add_(column).masked_fill_(outside, groups * rows)
    del column, group, outside
    key, by_row = torch.sort(narrowed(key, groups * rows), stable=True)
    count = torch.zeros(groups * rows + 1, dtype=torch.int32, device=key.device)
    count.scatter_add_(0, key.to(torch.int64), torch.ones_like(key, dtype=torch.int32))
    count = count[:-1].view(blocks.batch, blocks.heads, rows).contiguous()
    index = torch.remainder(e.row[by_row], max(blocks.rows, 1)).to(torch.int32)
    return BlockList(count, index, exclusive_sum(count)), e.place[by_row]


def with_backward(blocks: BlockSparse, n_blocks: int) -> BlockSparse:
    """Blocks with backward lists (and the slots of a Bits mask) made from the forward ones.

    n_blocks  tiles of the longest key sequence
    """
    partial, source = transpose(blocks.forward.partial, n_blocks)
    full, _ = transpose(blocks.forward.full, n_blocks)
    mask = blocks.mask
    if isinstance(mask, Bits):
        mask = replace(mask, slot_backward=mask.slot[source])
    return replace(blocks, backward=BlockLists(partial, full), mask=mask, order=None, merged=True)


def in_one_list(blocks: BlockSparse) -> BlockSparse:
    """Blocks with all backward entries listed as partial, each row ascending.

    A CTA visits its partial blocks before its full ones, or both in ascending order (BlockSparse.merged); listed as one
    it visits them in any order that the list has, and masks full blocks in vain. For a mask that is computed from
    parameters (Intervals, Band). Raises ValueError for others.
    """
    if not isinstance(blocks.mask, Intervals | Band) or blocks.backward is None:
        raise ValueError(f"blocks.mask: needs Intervals or Band, and backward lists, got {type(blocks.mask).__name__}")
    partial, full = blocks.backward.partial, blocks.backward.full
    m_blocks = blocks.m_blocks
    both = BlockList(
        torch.stack((partial.count, full.count), -1).flatten(2),
        torch.cat((partial.index, full.index)),
        torch.stack((partial.begin, full.begin + partial.capacity), -1).flatten(2),
    )
    e = entries(both)
    last = partial.count.numel() * m_blocks
    key = torch.where(e.valid, e.row // 2 * m_blocks + both.index[e.place], last)
    index = torch.remainder(torch.sort(narrowed(key, last)).values, max(m_blocks, 1)).to(torch.int32)
    count = partial.count + full.count
    nothing = BlockList.empty(partial.batch, partial.heads, partial.rows, index.device)
    lists = BlockLists(BlockList(count, index, exclusive_sum(count)), nothing)
    return replace(blocks, backward=lists, order=None)


def narrowed(key: Tensor, largest: int) -> Tensor:
    """Keys as int32 where that holds every key: half the memory and time of a sort."""
    return key.to(torch.int32) if largest < 2**31 else key
