"""Block lists over tiles of 128 keys as lists over tiles of 64 keys.

For gradients at head dims above 128, whose dK and dV of 128 keys do not fit into registers: each block becomes the two
blocks of its halves, and a mask of bits is cut along with them. A half that begins past its sequence's end is left out.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import LengthsLike, Shape, ceil_div, shape_of
from kernels.blocksparse.lists.lpt import with_lpt_order
from kernels.blocksparse.lists.schedule import Schedule, permutation
from kernels.blocksparse.lists.transpose import with_backward
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockSparse, entries, exclusive_sum, spread
from kernels.blocksparse.lists.write_order import with_order

TILE_N = 64  # keys of a half


def halve_keys(blocks: BlockSparse, lengths_k: LengthsLike, *, longest: int | None = None) -> BlockSparse:
    """The same mask over tiles of half as many keys, with backward lists, ranks and launch orders where `blocks` has
    them; of the backward lists each row ascends.

    blocks     with tiles of 128 keys
    lengths_k  of the sequences: a number, numbers, or an integer tensor (batch,)
    longest    the longest of them, or more; with it the device is asked nothing
    Raises ValueError for other tiles. O(entries log entries).
    """
    if blocks.tile_n != 2 * TILE_N:
        raise ValueError(f"blocks.tile_n: needs {2 * TILE_N}, got {blocks.tile_n}")
    most = None if longest is None else (1, longest)
    shape = shape_of(1, lengths_k, blocks.tile_m, TILE_N, blocks.device, most)
    (partial, source), (full, _) = (_halved(one, shape) for one in (blocks.forward.partial, blocks.forward.full))
    mask = blocks.mask
    if isinstance(mask, Bits):
        slots = len(mask.words)
        words = mask.words.view(slots, blocks.tile_m, 2, TILE_N // 32).transpose(1, 2)
        slot = mask.slot[source // 2 % mask.slot.numel()] * 2 + source % 2
        mask = Bits(words.reshape(2 * slots, blocks.tile_m, TILE_N // 32).contiguous(), slot.to(torch.int32))
    schedule = _halved_schedule(blocks.schedule, shape.n_blocks)
    halved = replace(
        blocks,
        forward=BlockLists(partial, full),
        backward=None,
        mask=mask,
        tile_n=TILE_N,
        schedule=schedule,
        order=None,
        lpt=None,
        merged=False,
    )
    if blocks.backward is not None:
        halved = with_backward(halved, shape.n_blocks)
    if blocks.lpt is not None:
        halved = with_lpt_order(halved)
    return halved if blocks.order is None else with_order(halved)


def _halved(one: BlockList, shape: Shape) -> tuple[BlockList, Tensor]:
    """The list of halves, and where each came from: twice the place in an index of as many lists as there are
    sequences, plus 1 for the second half; 0 where there is no entry."""
    if shape.batch > one.batch:  # the last block of one sequence has a second half, and of another one it has none
        one = spread(one, shape.batch, one.heads)
    e = entries(one)
    half = torch.arange(2, device=one.index.device)
    block = (2 * one.index[e.place].to(torch.int64)[:, None] + half).flatten()
    source = (2 * e.place[:, None] + half).flatten()
    row = e.row.repeat_interleave(2)
    ends = ceil_div(shape.len_k, TILE_N)
    sequence = torch.div(row, max(one.heads * one.rows, 1), rounding_mode="floor").clamp(max=shape.batch - 1)
    there = e.valid.repeat_interleave(2) & (block < ends[sequence])
    count = torch.zeros(one.count.numel() + 1, dtype=torch.int32, device=row.device)
    count.scatter_add_(0, row, there.to(torch.int32))
    count = count[:-1].view(one.count.shape).contiguous()
    place = torch.where(there, there.cumsum(0) - 1, there.numel())
    index, origin = (
        torch.zeros(there.numel() + 1, dtype=dtype, device=row.device).scatter_(0, place, values.to(dtype))[:-1]
        for dtype, values in ((torch.int32, block), (torch.int64, source))
    )
    return BlockList(count, index, exclusive_sum(count)), origin


def _halved_schedule(schedule: Schedule, n_blocks: int) -> Schedule:
    """A permutation launches the halves of a block one after the other; its second half may not be there."""
    positions = schedule.positions
    if positions is None:
        return Schedule(schedule.kind)
    half = torch.arange(2, device=positions.device, dtype=torch.int32)
    both = (2 * positions[..., None] + half).flatten(2)
    last = (both >= n_blocks).to(torch.int32).argsort(dim=-1, stable=True)[..., :n_blocks]
    return permutation(both.gather(-1, last).contiguous())
