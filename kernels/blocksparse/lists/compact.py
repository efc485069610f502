"""Block lists from compact rows: each tile of queries names the few key blocks that it sees, as a selection does.

Everything is O(entries of the rows), on their device, and asks it nothing: index tensors have the rows' capacity. A key
block may be smaller than a tile of keys: then the tile is partial, and the tokens that nobody selected stay unseen.

NOTE [shared slots] Which part of a tile is selected is one of few patterns: a bit for each unit of
gcd(block_size, tile_n) keys. Where a diagonal cuts a tile it does so in at most two ways. So the packed masks of all
partial blocks are a small table that depends on the sizes alone, slot = cut * patterns + pattern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.blocksparse.lists.bitmask import pack
from kernels.blocksparse.lists.builder import LengthsLike, Shape, ceil_div, shape_of, tile_starts
from kernels.blocksparse.lists.lpt import with_lpt_order
from kernels.blocksparse.lists.pooled import PoolRule, pool_bounds, pools_seen
from kernels.blocksparse.lists.schedule import DESCENDING, Schedule
from kernels.blocksparse.lists.transpose import with_backward
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockMask, BlockSparse, Intervals
from kernels.blocksparse.lists.write_order import with_order

LEAST_UNIT = 16


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Tiles of keys that rows name, (batch, heads, rows, width): the first `count` of each row, ascending.

    n_block  int64 tile
    pattern  int64, a bit for each of its units of keys that is selected
    used     bool
    """

    n_block: Tensor
    pattern: Tensor
    used: Tensor


def selected(
    rows: Tensor,
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    block_size: int,
    rows_per_tile: int,
    causal: bool,
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule = DESCENDING,
    backward: bool = True,
    ranks: bool = True,
    longest: tuple[int, int] | None = None,
) -> BlockSparse:
    """Queries of a tile see the tokens of the key blocks in its row; if causal, of those the ones up to their own.

    rows           int32 (batch|1, heads_q|1, tiles, k): distinct key blocks of `block_size` tokens, ascending; -1 in
                   places that are not used. Tiles are of `rows_per_tile` queries, a multiple of tile_m
    block_size     a multiple of 16 such that gcd(block_size, tile_n) is at least 16
    ranks          also make ranks for the deterministic backward pass; otherwise orders for the atomic one
    longest        (queries, keys) of the longest sequences; None: the device is asked where lengths are tensors
    other arguments as for `bands.band`

    Blocks past a sequence's end may be named, and have no token. Raises ValueError for sizes that do not fit.
    """
    if rows.dtype != torch.int32 or rows.dim() != 4:
        raise ValueError(f"rows: needs int32 (batch|1, heads|1, tiles, k), got {rows.dtype} {tuple(rows.shape)}")
    unit = math.gcd(block_size, tile_n)
    if unit < LEAST_UNIT:
        raise ValueError(f"block_size: needs a multiple of {LEAST_UNIT}, got {block_size}")
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, rows.device, longest)
    tiles = _of_m_blocks(_tiles_of(rows, block_size, tile_n, unit), rows_per_tile, shape)
    patterns = 1 << (tile_n // unit)
    before = tiles.n_block * tile_n
    used, cut = tiles.used & (before < shape.len_k.view(-1, 1, 1, 1)), torch.zeros_like(before)
    if causal:
        first, step = tile_starts(shape)[:, None] + 1, math.gcd(tile_m, tile_n)
        used = used & (before <= _last_row(shape)[:, None, :, None])
        cut = torch.where(before + tile_n > first, (first - 1 - before + tile_m) // step, 0)
    whole = (tiles.pattern == patterns - 1) & (cut == 0)
    lists, slot = _split(_Tiles(tiles.n_block, tiles.pattern, used), ~whole, cut * patterns + tiles.pattern)
    return _completed(lists, _mask_table(shape, unit, causal, slot), shape, schedule, backward, ranks)


def pooled_groups(
    rows: Tensor,
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    group_size: int,
    rows_per_tile: int,
    rule: PoolRule | None,
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule = DESCENDING,
    backward: bool = True,
    ranks: bool = True,
    longest: tuple[int, int] | None = None,
) -> BlockSparse:
    """Queries of a tile see the pooled keys of the groups in its row, of those the ones that `rule` allows (None: all).

    rows        as for `selected`: groups of `group_size` pooled keys, a multiple of tile_n
    lengths_k   pooled keys of the sequences
    other arguments as for `selected`
    """
    if group_size % tile_n:
        raise ValueError(f"group_size: needs a multiple of tile_n, {tile_n}, got {group_size}")
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, rows.device, longest)
    tiles = _of_m_blocks(_tiles_of(rows, group_size, tile_n, tile_n), rows_per_tile, shape)
    before = tiles.n_block * tile_n
    used = tiles.used & (before < shape.len_k.view(-1, 1, 1, 1))
    partial, mask = torch.zeros_like(used), None
    if rule is not None:
        first = pools_seen(tile_starts(shape), rule)[:, None]
        last = pools_seen(_last_row(shape), rule)[:, None, :, None]
        used = used & (before < last)
        partial = torch.minimum(before + tile_n, shape.len_k.view(-1, 1, 1, 1)) > first
        mask = Intervals(pool_bounds(shape.longest_q, rule, rows.device))
    lists, _ = _split(_Tiles(tiles.n_block, tiles.pattern, used), partial, tiles.pattern)
    return _completed(lists, mask, shape, schedule, backward, ranks)


def _tiles_of(rows: Tensor, block_size: int, tile_n: int, unit: int) -> _Tiles:
    """The tiles of keys of each row's blocks; blocks that share a tile become one entry."""
    span = ceil_div(tile_n - unit + block_size, tile_n)  # tiles that a block meets at most
    width = max(rows.shape[3] * span, 1)
    start = rows.to(torch.int64)[..., None] * block_size
    n_block = start.div(tile_n, rounding_mode="floor") + torch.arange(span, device=rows.device)
    begin = (start - n_block * tile_n).clamp(min=0)
    end = (start + block_size - n_block * tile_n).clamp(max=tile_n)
    there = (rows[..., None] >= 0) & (begin < end)
    one = torch.ones_like(begin)
    bits = torch.where(there, (one << (end // unit).clamp(min=0)) - (one << (begin // unit).clamp(max=62)), 0)
    n_block, bits, there = (x.flatten(3) for x in (n_block.expand_as(bits), bits, there))
    if not n_block.shape[3]:
        empty = n_block.new_zeros((*rows.shape[:3], width))
        return _Tiles(empty, empty, empty.to(torch.bool))
    before = torch.where(there, n_block, -1).cummax(3).values
    before = torch.cat((torch.full_like(before[..., :1], -1), before[..., :-1]), 3)
    opens = there & (n_block != before)
    place = torch.where(there, opens.cumsum(3) - 1, width)  # the last place is nobody's
    empty = n_block.new_zeros((*rows.shape[:3], width + 1))
    tile = empty.scatter(3, torch.where(opens, place, width), n_block)[..., :width]
    pattern = empty.scatter_add(3, place, bits)[..., :width]
    used = torch.arange(width, device=rows.device) < opens.sum(3, keepdim=True)
    return _Tiles(tile, pattern, used)


def _of_m_blocks(tiles: _Tiles, rows_per_tile: int, shape: Shape) -> _Tiles:
    """The tiles of keys of each m block: those of its tile of queries."""
    if rows_per_tile % shape.tile_m:
        raise ValueError(f"rows_per_tile: needs a multiple of tile_m, {shape.tile_m}, got {rows_per_tile}")
    m_block = torch.arange(shape.m_blocks, device=tiles.used.device)
    tile = (m_block * shape.tile_m).div(rows_per_tile, rounding_mode="floor")
    if shape.m_blocks and tiles.used.shape[2] < ceil_div(shape.longest_q, rows_per_tile):
        needs = ceil_div(shape.longest_q, rows_per_tile)
        raise ValueError(f"rows: needs {needs} tiles of {rows_per_tile} queries, got {tiles.used.shape[2]}")
    batch = max(tiles.used.shape[0], shape.batch)
    there = (m_block * shape.tile_m < shape.len_q[:, None])[:, None, :, None]
    n_block, pattern, used = (x.index_select(2, tile) for x in (tiles.n_block, tiles.pattern, tiles.used))
    n_block, pattern = (x.expand(batch, *x.shape[1:]) for x in (n_block, pattern))
    return _Tiles(n_block, pattern, used & there)


def _last_row(shape: Shape) -> Tensor:
    """Last query of each m block, int64 (batch, m_blocks); -1 or more where there is none."""
    return torch.minimum(tile_starts(shape) + shape.tile_m, shape.len_q[:, None]) - 1


def _split(tiles: _Tiles, partial: Tensor, slot: Tensor) -> tuple[BlockLists, Tensor]:
    """(lists, slot int32 parallel to their index): each row's partial tiles, then its full ones, in one tensor."""
    partial, full = tiles.used & partial, tiles.used & ~partial
    *rows, width = partial.shape
    count = partial.sum(3)
    place = torch.where(partial, partial.cumsum(3) - 1, count[..., None] + full.cumsum(3) - 1)
    place = torch.where(tiles.used, place, width)
    empty = torch.zeros((*rows, width + 1), dtype=torch.int32, device=partial.device)
    index, slots = (
        empty.scatter(3, place, x.to(torch.int32))[..., :width].reshape(-1).contiguous() for x in (tiles.n_block, slot)
    )
    if not index.numel():
        index, slots = empty.new_zeros(1), empty.new_zeros(1)
    begin = torch.arange(count.numel(), device=count.device).view(count.shape) * width
    lists = BlockLists(
        BlockList(count.to(torch.int32), index, begin),
        BlockList(full.sum(3).to(torch.int32), index, begin + count),
    )
    return lists, slots


def _mask_table(shape: Shape, unit: int, causal: bool, slot: Tensor) -> Bits:
    """The masks of NOTE [shared slots]."""
    tile_m, tile_n = shape.tile_m, shape.tile_n
    column = torch.arange(tile_n, device=slot.device)
    pattern = torch.arange(1 << (tile_n // unit), device=slot.device)
    seen = ((pattern[:, None] >> (column // unit)) & 1).to(torch.bool)[None, :, None]
    row = torch.arange(tile_m, device=slot.device)
    cuts = [torch.ones((tile_m, tile_n), dtype=torch.bool, device=slot.device)]
    if causal:
        step = math.gcd(tile_m, tile_n)
        cuts += [column <= row[:, None] + shift for shift in range(step - tile_m, tile_n, step)]
    tiles = (seen & torch.stack(cuts)[:, None]).flatten(0, 1)
    return Bits(pack(tiles.contiguous()), slot)


def _completed(
    forward: BlockLists, mask: BlockMask, shape: Shape, schedule: Schedule, backward: bool, ranks: bool
) -> BlockSparse:
    """Forward lists with what the passes asked for need."""
    blocks = BlockSparse(forward, None, mask, shape.tile_m, shape.tile_n, schedule)
    if not backward:
        return blocks
    blocks = with_backward(blocks, shape.n_blocks)
    return with_order(blocks, schedule) if ranks else with_lpt_order(blocks, shape.len_q, shape.len_k)
