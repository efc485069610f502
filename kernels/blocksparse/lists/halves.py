"""Block lists over tiles of 128 keys as lists over tiles of 64 keys.

For gradients at head dims above 128, whose dK and dV of 128 keys do not fit into registers: each block becomes the two
blocks of its halves. A half that begins past its sequence's end is left out. A mask of bits is cut along with them: a
half without a bit is left out too, and one of ones is full. Halves of other partial blocks stay partial. (Bits past a
sequence's end mean nothing: what they make of a half costs time there, and changes no result.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import LengthsLike, Shape, ceil_div, shape_of
from kernels.blocksparse.lists.lpt import with_lpt_order
from kernels.blocksparse.lists.schedule import Schedule
from kernels.blocksparse.lists.transpose import with_backward
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockSparse, entries, exclusive_sum, spread
from kernels.blocksparse.lists.write_order import with_order

TILE_N = 64  # keys of a half


def halve_keys(blocks: BlockSparse, lengths_k: LengthsLike, *, longest: int | None = None) -> BlockSparse:
    """Block lists of the same mask over tiles of half as many keys. They have backward lists, ranks and launch orders
    where `blocks` has them. Both halves of a row of the backward lists visit its blocks in its order; a block of bits
    that becomes a full one comes last. Without bits both have the same ones (`BlockLists.halves`).

    blocks     with tiles of 128 keys
    lengths_k  of the sequences: a number, numbers, or an integer tensor (batch,)
    longest    the longest of them, or more; with it the device is asked nothing
    Raises ValueError for other tiles. O(entries log entries).
    """
    if blocks.tile_n != 2 * TILE_N:
        raise ValueError(f"blocks.tile_n: needs {2 * TILE_N}, got {blocks.tile_n}")
    most = None if longest is None else (1, longest)
    shape = shape_of(1, lengths_k, blocks.tile_m, TILE_N, blocks.device, most)
    partial, full = (_Halves.of(one, shape) for one in (blocks.forward.partial, blocks.forward.full))
    mask = blocks.mask
    if isinstance(mask, Bits):
        slots = len(mask.words)
        words = mask.words.view(slots, blocks.tile_m, 2, TILE_N // 32).transpose(1, 2)
        words = words.reshape(2 * slots, blocks.tile_m, TILE_N // 32).contiguous()
        partial, full, slot = _by_bits(partial, full, words, mask.slot)
        mask = Bits(words, slot)
    schedule = _halved_schedule(blocks.schedule, shape)
    halved = replace(
        blocks,
        forward=BlockLists(partial.as_list(), full.as_list(), alike=blocks.forward.alike),
        backward=None,
        mask=mask,
        tile_n=TILE_N,
        schedule=schedule,
        order=None,
        lpt=None,
        merged=False,
    )
    if blocks.backward is not None:
        halved = with_backward(halved, shape.n_blocks) if blocks.merged else _with_rows_of(halved, blocks, shape)
    if halved.backward is not None and not isinstance(mask, Bits):
        halved = replace(halved, backward=replace(halved.backward, halves=True))
    if blocks.lpt is not None:
        lpt = with_lpt_order(halved, None, shape.len_k).lpt
        halved = replace(halved, lpt=lpt and replace(lpt, queries=blocks.lpt.queries))
    return halved if blocks.order is None else with_order(halved)


@dataclass(frozen=True, eq=False)
class _Halves:
    """Halves of the blocks of a list, row after row.

    shape   (batch, heads, rows) of the list's counts
    row     int64: number of the row, as in Entries
    block   int64: the half, a block of half as many keys
    source  int64: twice the place in the list's index, repeated for each sequence, plus 1 for a second half
    there   bool: a half that is listed
    """

    shape: tuple[int, ...]
    row: Tensor
    block: Tensor
    source: Tensor
    there: Tensor

    @classmethod
    def of(cls, one: BlockList, shape: Shape) -> _Halves:
        """Both halves of every block, those there that begin within their sequence."""
        if shape.batch > one.batch:  # the last block of one sequence has a second half, and of another one it has none
            one = spread(one, shape.batch, one.heads)
        e = entries(one)
        half = torch.arange(2, device=one.index.device)
        block = (2 * one.index[e.place].to(torch.int64)[:, None] + half).flatten()
        row = e.row.repeat_interleave(2)
        ends = ceil_div(shape.len_k, TILE_N)
        sequence = torch.div(row, max(one.heads * one.rows, 1), rounding_mode="floor").clamp(max=shape.batch - 1)
        there = e.valid.repeat_interleave(2) & (block < ends[sequence])
        return cls(tuple(one.count.shape), row, block, (2 * e.place[:, None] + half).flatten(), there)

    @classmethod
    def of_rows(cls, one: BlockList, shape: Shape) -> _Halves:
        """Backward lists: both halves of every row, those there that begin within their sequence. block is the row's
        own, in its order, and source the place of each."""
        if shape.batch > one.batch:
            one = spread(one, shape.batch, one.heads)
        e = entries(one)
        half = torch.arange(2, device=one.index.device)
        group = torch.div(e.row, max(one.rows, 1), rounding_mode="floor")
        tile = 2 * (e.row - group * one.rows)[:, None] + half
        sequence = torch.div(group, max(one.heads, 1), rounding_mode="floor").clamp(max=shape.batch - 1)
        there = e.valid[:, None] & (tile < ceil_div(shape.len_k, TILE_N)[sequence][:, None])
        rows = (one.batch, one.heads, shape.n_blocks)
        row = torch.where(there, group[:, None] * shape.n_blocks + tile, math.prod(rows)).flatten()
        block, source = one.index[e.place].to(torch.int64), 2 * e.place[:, None] + half
        order = row.argsort(stable=True)
        block = block.repeat_interleave(2)[order]
        return cls(rows, row[order], block, source.flatten()[order], there.flatten()[order])

    def and_of(self, others: _Halves, chosen: Tensor) -> _Halves:
        """These and the chosen ones of others, row after row."""
        row, block = (torch.cat((getattr(self, x), getattr(others, x))) for x in ("row", "block"))
        there = torch.cat((self.there, others.there & chosen))
        order = row.argsort(stable=True)
        return _Halves(self.shape, row[order], block[order], torch.zeros_like(row), there[order])

    def as_list(self) -> BlockList:
        """Those that are there as a list in CSR, of as many elements as there are halves."""
        rows = math.prod(self.shape)
        count = torch.zeros(rows + 1, dtype=torch.int32, device=self.row.device)
        count.scatter_add_(0, self.row, self.there.to(torch.int32))
        count = count[:-1].view(self.shape).contiguous()
        return BlockList(count, self.listed(self.block), exclusive_sum(count))

    def listed(self, values: Tensor) -> Tensor:
        """Values of those that are there, int32, parallel to the list's index; 0 behind them."""
        place = torch.where(self.there, self.there.cumsum(0) - 1, self.there.numel())
        made = torch.zeros(self.there.numel() + 1, dtype=torch.int32, device=self.row.device)
        return made.scatter_(0, place, values.to(torch.int32))[:-1]


def _by_bits(partial: _Halves, full: _Halves, words: Tensor, slot: Tensor) -> tuple[_Halves, _Halves, Tensor]:
    """Partial halves with some bits, full ones and those of ones, and the slots of the former. words: of halves; slot:
    parallel to the index that partial was made from."""
    slot = slot[partial.source // 2 % slot.numel()] * 2 + partial.source % 2
    known = slot.clamp(0, len(words) - 1)
    ones, some = (words == -1).all(2).all(1)[known], (words != 0).any(2).any(1)[known]
    full = full.and_of(partial, ones)
    partial = replace(partial, there=partial.there & some & ~ones)
    return partial, full, partial.listed(slot)


def _with_rows_of(halved: BlockSparse, blocks: BlockSparse, shape: Shape) -> BlockSparse:
    """Halved lists with backward ones whose rows are visited as those of `blocks`."""
    assert blocks.backward is not None
    partial, full = (_Halves.of_rows(one, shape) for one in (blocks.backward.partial, blocks.backward.full))
    mask = halved.mask
    if isinstance(mask, Bits):
        assert isinstance(blocks.mask, Bits) and blocks.mask.slot_backward is not None
        partial, full, slot = _by_bits(partial, full, mask.words, blocks.mask.slot_backward)
        mask = replace(mask, slot_backward=slot)
    return replace(halved, backward=BlockLists(partial.as_list(), full.as_list()), mask=mask, merged=False)


def _halved_schedule(schedule: Schedule, shape: Shape) -> Schedule:
    """A permutation launches the halves of a block one after the other; a second half that is not there comes behind
    all that are, and with `own_first` so do all halves past their sequence's end. How many pairs and units it is for
    stays."""
    positions = schedule.positions
    if positions is None:
        return schedule
    half = torch.arange(2, device=positions.device, dtype=torch.int32)
    both = (2 * positions[..., None] + half).flatten(2)
    if schedule.own_first:
        past = both >= ceil_div(shape.len_k, TILE_N)[:, None, None]
    else:
        past = both >= shape.n_blocks
    last = past.to(torch.int32).argsort(dim=-1, stable=True)[..., : shape.n_blocks]
    positions = both.expand(len(past), -1, -1).gather(-1, last).contiguous()
    return replace(schedule, positions=positions, halves=True)
