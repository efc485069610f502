"""LinearBlockSparse tuples, the CSR block lists of HSTU's and MagiAttention's kernels, and BlockSparse: each made from
the other, without a copy of what is as long as the lists.

Their rows are query tiles forward (Q2K) and key tiles backward (K2Q), for every (sequence, query head), one row after
the other. FlashAttention-4's Blackwell kernels tile 256 queries forward and 128 backward; lists of tiles that are
multiples of those asked for are cut into these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import LengthsLike, Shape, ceil_div, list_of_segments, shape_of
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING
from kernels.blocksparse.lists.transpose import transpose, with_backward
from kernels.blocksparse.lists.types import (
    Bits,
    BlockList,
    BlockLists,
    BlockMask,
    BlockSparse,
    WriteOrder,
    entries,
    exclusive_sum,
)

TILES = (128, 128)


@dataclass(frozen=True, eq=False)
class LinearBlockSparse:
    """Lists of one direction. cnt int32 (batch|1, heads_q|1, rows); offset (rows of all + 1,), exclusive sums from 0;
    idx int32 (entries or more,), at least one element.

    mask_block_*         blocks that the mask is applied to; full_block_*: those that it keeps whole
    dq_write_order       backward: ranks of the mask blocks, int32, parallel to mask_block_idx; None: none are given
    dq_write_order_full  those of the full blocks
    spt                  backward: ranks are those of key tiles launched last to first; None: no ranks
    """

    mask_block_cnt: Tensor
    mask_block_offset: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor
    full_block_offset: Tensor
    full_block_idx: Tensor
    dq_write_order: Tensor | None = None
    dq_write_order_full: Tensor | None = None
    spt: bool | None = None


def from_linear(
    forward: LinearBlockSparse,
    backward: LinearBlockSparse | None,
    mask: BlockMask,
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    tiles: tuple[int, int] = TILES,
    forward_tiles: tuple[int, int] | None = None,
    backward_tiles: tuple[int, int] | None = None,
) -> BlockSparse:
    """Lists of tiles (tile_m, tile_n) from a tuple of each direction.

    mask             how mask blocks are masked; `Intervals` of the bounds that the tuples are made from. Not Bits
    lengths_q, _k    as for `bands.band`; they are read where tiles are cut
    forward_tiles    (queries, keys) of the forward lists' tiles, multiples of `tiles`; None: `tiles`. backward_tiles
                     likewise
    returns          counts, indices and ranks of lists in `tiles` are the tuple's own storage; starts are int64, so
                     made anew. The schedule is descending where backward.spt

    The kernels need both directions to list the same tiles. Where one direction's tiles are cut, the other's lists,
    which tell more, are transposed in its place; where both are, the forward lists, cut, serve for both, with ranks
    computed at each call. Nothing is asked of the device where lengths are numbers. Raises ValueError for tiles that
    are no multiples, Bits, ranks of one kind without the other, or without spt.
    """
    if isinstance(mask, Bits):
        raise ValueError("mask: needs Intervals, Band or None, got Bits, whose slots these lists have none of")
    shape = shape_of(lengths_q, lengths_k, *tiles, device=forward.mask_block_idx.device)
    by_forward, by_backward = (_multiple(given, tiles) for given in (forward_tiles, backward_tiles))
    descending = backward is not None and bool(backward.spt)
    blocks = BlockSparse(_lists(forward), None, mask, *tiles, DESCENDING if descending else ASCENDING)
    if backward is not None and by_backward == (1, 1):
        lists = _lists(backward)
        if by_forward != (1, 1):
            turned = (transpose(one, shape.m_blocks)[0] for one in (lists.partial, lists.full))
            blocks = replace(blocks, forward=BlockLists(*turned))
        return replace(blocks, backward=lists, order=_order(backward))
    if by_forward != (1, 1):
        cut = (_cut(one, shape, *by_forward) for one in (blocks.forward.partial, blocks.forward.full))
        blocks = replace(blocks, forward=BlockLists(*cut))
    return blocks if backward is None else with_backward(blocks, shape.n_blocks)


def to_linear(blocks: BlockSparse) -> tuple[LinearBlockSparse, LinearBlockSparse | None]:
    """The tuples of both directions, of the same storage apart from the offsets, int32; backward None where blocks have
    no backward lists. Ranks are given where blocks have them under an ascending or a descending schedule.

    Asks the device. Raises ValueError for lists whose rows do not follow one another (see `BlockList.to_csr`).
    """
    forward = _linear(blocks.forward, "forward")
    if blocks.backward is None:
        return forward, None
    backward = _linear(blocks.backward, "backward")
    if blocks.order is None or blocks.schedule.positions is not None:
        return forward, backward
    ranks = (
        order[: len(idx)]
        for order, idx in (
            (blocks.order.partial, backward.mask_block_idx),
            (blocks.order.full, backward.full_block_idx),
        )
    )
    mask, full = ranks
    spt = blocks.schedule.kind == "descending"
    return forward, replace(backward, dq_write_order=mask, dq_write_order_full=full, spt=spt)


def _multiple(given: tuple[int, int] | None, tiles: tuple[int, int]) -> tuple[int, int]:
    given = given or tiles
    if given[0] % tiles[0] or given[1] % tiles[1] or min(given) < 1:
        raise ValueError(f"forward_tiles, backward_tiles: need multiples of tiles, {tiles}, got {given}")
    return given[0] // tiles[0], given[1] // tiles[1]


def _lists(linear: LinearBlockSparse) -> BlockLists:
    return BlockLists(
        BlockList.csr(linear.mask_block_cnt, linear.mask_block_idx, linear.mask_block_offset),
        BlockList.csr(linear.full_block_cnt, linear.full_block_idx, linear.full_block_offset),
    )


def _order(backward: LinearBlockSparse) -> WriteOrder | None:
    ranks = (backward.dq_write_order, backward.dq_write_order_full)
    if ranks == (None, None):
        return None
    if ranks[0] is None or ranks[1] is None or backward.spt is None:
        raise ValueError("backward: needs dq_write_order, dq_write_order_full and spt, or none of them")
    return WriteOrder(*(rank if rank.numel() else rank.new_zeros(1) for rank in ranks if rank is not None))


def _cut(one: BlockList, shape: Shape, by_row: int, by_column: int) -> BlockList:
    """A forward list whose rows and columns are cut into so many; what lies past a sequence's end is left out. Its
    index has room for every piece."""
    e = entries(one)
    group, row = e.row // max(one.rows, 1), e.row % max(one.rows, 1)
    sequence = group // one.heads if shape.batch > 1 else torch.zeros_like(group)
    start = one.index[e.place].to(torch.int64) * by_column
    columns = ceil_div(shape.len_k, shape.tile_n)[sequence]
    length = torch.where(e.valid, (columns - start).clamp(0, by_column), 0)
    pieces = row[:, None] * by_row + torch.arange(by_row, device=row.device)
    there = pieces < ceil_div(shape.len_q, shape.tile_m)[sequence][:, None]
    line = group[:, None] * shape.m_blocks + pieces.clamp(max=max(shape.m_blocks - 1, 0))
    line, order = line.flatten().sort(stable=True)
    start, length = ((x.expand(there.shape)).flatten()[order] for x in (start[:, None], length[:, None] * there))
    size = (one.batch, one.heads, shape.m_blocks)
    return list_of_segments(line, start, length, size, one.capacity * by_row * by_column)


def _linear(lists: BlockLists, name: str) -> LinearBlockSparse:
    (mask, mask_offset), (full, full_offset) = (
        (one, _offset(one, f"blocks.{name}.{kind}")) for kind, one in (("partial", lists.partial), ("full", lists.full))
    )
    return LinearBlockSparse(
        *(mask.count, mask_offset, mask.index[: int(mask_offset[-1])]),
        *(full.count, full_offset, full.index[: int(full_offset[-1])]),
    )


def _offset(one: BlockList, field: str) -> Tensor:
    begin, count = one.begin.reshape(-1), one.count.reshape(-1)
    if not torch.equal(begin[count > 0], exclusive_sum(count)[count > 0]):
        raise ValueError(f"{field}: needs rows one after the other from 0 (see to_csr), got gaps")
    return torch.cat((count.new_zeros(1), count.cumsum(0, dtype=torch.int32)))
