"""Block lists of a branch from the operands of a call: sizes, memory and launches. Nothing is asked of the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import ceil_div
from kernels.blocksparse.lists.lpt import by_length, lengths
from kernels.blocksparse.lists.schedule import DESCENDING
from kernels.blocksparse.lists.types import (
    INT32_MAX,
    OPEN,
    Band,
    Bits,
    BlockList,
    BlockLists,
    BlockMask,
    BlockSparse,
    Intervals,
    LPTOrder,
    WriteOrder,
)
from kernels.nsa.config import GROUP, selected_tile_n, tile_m, tile_n
from kernels.nsa.lists.chosen import TABLE, chosen_kernel
from kernels.nsa.lists.spans import span_columns_kernel, span_rows_kernel
from kernels.nsa.lists.transposed import transposed_kernel
from kernels.nsa.operands import Operands
from kernels.nsa.selection import Selection
from kernels.sdpa.launch import Launch

LEAST_UNIT = 16
ROWS = 128  # rows that a program makes, of few entries
COLUMNS = 64  # likewise, of backward lists of a window
TILE = 1024  # entries that a program moves, and tiles of queries that a row of keys looks at in one step


def branch_lists(name: str, operands: Operands, selection: Selection, backward: bool) -> BlockSparse:
    """Lists of the branch "compressed", "selected" or "window": for the forward kernel, or for the backward ones.

    Backward lists are made without forward ones: these have their number of rows, and no entries. Index tensors are
    written where there are entries.
    """
    if name == "window":
        return _spans(operands, backward, pooled=False)
    if name == "selected":
        return _chosen(operands, selection.blocks, backward, pooled=False)
    if selection.groups is None:
        return _spans(operands, backward, pooled=True)
    return _chosen(operands, selection.groups, backward, pooled=True)


@dataclass(frozen=True)
class _Spans:
    """The numbers of a branch of NOTE [spans]. per, width: `share_begins` of each row; entries: of all rows of one
    sequence."""

    left: int
    right: int
    tile_m: int
    tile_n: int
    m_blocks: int
    n_blocks: int
    per: int
    width: int
    entries: int


def _spans(operands: Operands, backward: bool, pooled: bool) -> BlockSparse:
    o, s = operands, operands.settings
    n = _pooled_spans(s.longest, s.block, s.blocks, s.causal, tile_m(s.tile), tile_n(o.dim, backward), backward)
    if not pooled:
        n = _window_spans(operands, backward)
    rows = n.n_blocks if backward else n.m_blocks
    count, begin = _new((2, o.batch, 1, rows), o.q), _new((2, o.batch, 1, rows), o.q, torch.int64)
    index, zero = _new((max(o.batch * n.entries, 1),), o.q), _new((1,), o.q, torch.int64)
    bounds = _new((1, 1, 1, max(s.longest, 1) if pooled and s.causal else 1), o.q)
    order = _new((o.batch, 1, rows), o.q) if pooled else zero
    ranks = backward and s.deterministic
    rank = _new(index.shape, o.q) if ranks else index
    runtime = {
        **{"mCu": o.q if o.cu is None else o.cu, "mCount": count, "mBegin": begin, "mIndex": index},
        **{"mOrder": order, "mBounds": bounds, "mZero": zero.view(torch.int32)[:1]},
        **{"batches": o.batch, "length": o.length, "longest": s.longest, "m_blocks": n.m_blocks},
        **{"left": n.left, "right": n.right, "per": n.per, "width": n.width},
    }
    constants: dict[str, Any] = {"PACKED": o.packed, "POOLED": pooled, "CAUSAL": s.causal if pooled else 0}
    constants |= {"TILE_M": n.tile_m, "TILE_N": n.tile_n}
    if backward:
        table = ceil_div(s.longest, TABLE) if pooled and s.causal else 0
        columns = 1 if pooled else COLUMNS
        runtime |= {"mRank": rank, "mZero": zero, "n_blocks": n.n_blocks}
        constants |= {"COLUMNS": columns, "CHUNK": TILE if pooled else 8, "TILE": TABLE, "RANKS": ranks}
        programs = ceil_div(o.batch * rows, columns) + table
        launch = Launch(span_columns_kernel, programs, runtime, constants, {"num_warps": 4})
    else:
        in_program = 32 if pooled else ROWS
        constants |= {"ROWS": in_program, "CHUNK": 32 if pooled else 8}
        programs = o.batch * ceil_div(rows, in_program)
        launch = Launch(span_rows_kernel, programs, runtime, constants, {"num_warps": 4})
    o.launcher.triton(launch)
    lists = BlockLists(*(BlockList(count[kind], index, begin[kind]) for kind in (0, 1)))
    offset = zero.view(torch.int32)[:1]
    mask: BlockMask = Band(n.left, n.right, offset)
    if pooled:
        mask = Intervals(bounds) if s.causal else None
    if not backward:
        lpt = LPTOrder(order) if pooled else None
        return BlockSparse(lists, None, mask, n.tile_m, n.tile_n, DESCENDING, lpt=lpt)
    ordered = WriteOrder(rank, rank) if ranks else None
    nothing = _no_entries(zero, (o.batch, 1, n.m_blocks))
    lpt = None
    if not s.deterministic:
        lpt = LPTOrder(nothing.partial.count, order if pooled else by_length(lengths(lists)))
    return BlockSparse(nothing, lists, mask, n.tile_m, n.tile_n, DESCENDING, ordered, lpt, merged=True)


def _window_spans(operands: Operands, backward: bool) -> _Spans:
    """Shares are equal: as many tiles as a tile meets at most."""
    s = operands.settings
    width = min(s.steps.width_of_window(s.window, backward), OPEN)
    left, right = (width - 1, 0) if s.causal else (width // 2, width // 2)
    tiles = tile_m(s.tile), tile_n(operands.dim, backward)
    blocks = ceil_div(s.longest, tiles[0]), ceil_div(s.longest, tiles[1])
    own, other = tiles[::-1] if backward else tiles
    most = max(min(ceil_div(left + right + own, other) + 1, blocks[0 if backward else 1]), 1)
    rows = blocks[1 if backward else 0]
    return _Spans(left, right, *tiles, *blocks, 0, most, rows * most)


def _pooled_spans(longest: int, block: int, blocks: int, causal: int, tile_m: int, tile_n: int, backward: bool):
    """Shares of a causal branch grow, forward, and shrink, backward, by one tile for `per` rows, and by `per`."""
    m_blocks, n_blocks = ceil_div(longest, tile_m), ceil_div(blocks, tile_n)
    per = block * tile_n // tile_m if causal else 0  # tiles of queries that a tile of keys stands for
    width = m_blocks if backward else n_blocks
    if not per:
        entries = m_blocks * n_blocks
    elif backward:
        falling = min(n_blocks, ceil_div(m_blocks, per))
        entries = falling * m_blocks - per * (falling * (falling - 1) // 2)
    else:
        rising = min(m_blocks, per * n_blocks)
        level, rest = divmod(rising, per)
        entries = per * (level * (level + 1) // 2) + rest * (level + 1) + (m_blocks - rising) * n_blocks
    return _Spans(block, 0, tile_m, tile_n, m_blocks, n_blocks, per, width, entries)


def _chosen(operands: Operands, rows: Tensor, backward: bool, pooled: bool) -> BlockSparse:
    """pooled: rows are groups of compressed blocks."""
    o, s = operands, operands.settings
    tile = tile_m(s.tile), tile_n(o.dim, backward) if pooled else selected_tile_n(o.dim, s.block, backward)
    size = GROUP if pooled else s.block
    unit = tile[1] if pooled else math.gcd(size, tile[1])
    assert unit >= LEAST_UNIT
    groups, m_blocks = o.batch * o.heads_q, ceil_div(s.longest, tile[0])
    n_blocks = ceil_div(s.blocks if pooled else s.longest, tile[1])
    tiles, chosen = rows.shape[2:]
    span = ceil_div(tile[1] - unit + size, tile[1])
    width = max(chosen * span, 1)
    partial_width = width
    if not pooled and size % tile[1] == 0:  # only where the diagonal is are tiles masked
        partial_width = min(max(tile[0] // tile[1], 1) if s.causal else 1, width)
    table = _table(operands, tile, unit, pooled)
    zero = _new((1,), o.q, torch.int64)
    entries = max(groups * m_blocks * width, 1)
    slot = key = rank = zero
    if backward:
        wide = 2 * groups * n_blocks > INT32_MAX
        partial = full = key = _new((entries,), o.q, torch.int64 if wide else torch.int32)
        count = begin = zero
        slot = zero if pooled else _new((entries,), o.q)
        rank = _new((entries,), o.q) if s.deterministic else zero
    else:
        count, begin = (_new((2, o.batch, o.heads_q, m_blocks), o.q, t) for t in (torch.int32, torch.int64))
        partial = full = _new((entries,), o.q)
        if partial_width < width:
            partial = _new((max(groups * m_blocks * partial_width, 1),), o.q)
        slot = zero if pooled else _new(partial.shape, o.q)
    runtime = {
        **{"mCu": o.q if o.cu is None else o.cu, "mRows": rows.contiguous(), "mCount": count, "mBegin": begin},
        **{"mPartial": partial, "mFull": full, "mSlot": slot, "mKey": key, "mRank": rank, "mTable": table},
        **{"mZero": zero, "length": o.length, "longest": s.longest, "groups": groups, "heads": o.heads_q},
        **{"m_blocks": m_blocks, "n_blocks": n_blocks, "tiles": tiles, "per_tile": s.tile, "chosen": chosen},
        **{"size": size, "block": s.block, "span": span, "width": width, "partial_width": partial_width},
        "table": table.numel(),
    }
    constants = {
        **{"PACKED": o.packed, "POOLED": pooled, "CAUSAL": s.causal if pooled else min(s.causal, 1)},
        **{"TILE_M": tile[0], "TILE_N": tile[1], "UNIT": unit, "ROWS": ROWS, "TABLE": TABLE},
        **{"BACKWARD": backward, "RANKS": backward and s.deterministic},
    }
    programs = ceil_div(groups * m_blocks, ROWS) + ceil_div(table.numel(), TABLE)
    o.launcher.triton(Launch(chosen_kernel, programs, runtime, constants, {"num_warps": 4}))
    mask: BlockMask = Bits(table, slot) if not pooled else Intervals(table) if s.causal else None
    if not backward:
        lists = BlockLists(BlockList(count[0], partial, begin[0]), BlockList(count[1], full, begin[1]))
        return BlockSparse(lists, None, mask, *tile, DESCENDING)
    nothing = _no_entries(zero, (o.batch, o.heads_q, m_blocks))
    most = max(groups * m_blocks * partial_width, 1)
    lists, slot, rank = _transposed(operands, key, slot, rank, (n_blocks, m_blocks, width, most), not pooled)
    if isinstance(mask, Bits):
        mask = Bits(table, nothing.partial.index, slot)
    ordered = WriteOrder(rank[:most], rank) if s.deterministic else None
    lpt = None
    if not s.deterministic:
        lpt = LPTOrder(nothing.partial.count, by_length(lengths(lists).sum(1, keepdim=True)))
    return BlockSparse(nothing, lists, mask, *tile, DESCENDING, ordered, lpt, merged=True)


def _table(operands: Operands, tile: tuple[int, int], unit: int, pooled: bool) -> Tensor:
    """Memory of the masks, int32 (slots, tile_m, tile_n / 32), or of the bounds (1, 1, 1, queries)."""
    s = operands.settings
    if pooled:
        return _new((1, 1, 1, max(s.longest, 1) if s.causal else 1), operands.q)
    cuts = 1 + (sum(tile) - min(tile)) // min(tile) if s.causal else 1
    return _new((cuts << (tile[1] // unit), tile[0], tile[1] // 32), operands.q)


def _transposed(
    operands: Operands, key: Tensor, slots: Tensor, ranks: Tensor, sizes: tuple[int, int, int, int], masked: bool
) -> tuple[BlockLists, Tensor, Tensor]:
    """(backward lists, slots, ranks). sizes: n blocks, m blocks, the places of each m block in key, and the partial
    entries at most, which come first."""
    o, (n_blocks, m_blocks, width, most) = operands, sizes
    shape = (2, o.batch, o.heads_q, n_blocks)
    entries, rows = key.numel(), math.prod(shape)
    key, source = torch.sort(key, stable=True)
    count, begin, index = _new(shape, o.q), _new(shape, o.q, torch.int64), _new(key.shape, o.q)
    slot = _new((most,), o.q) if masked else slots
    rank = _new(key.shape, o.q) if o.settings.deterministic else ranks
    runtime = {
        **{"mKey": key, "mSource": source, "mSlots": slots, "mRanks": ranks, "mIndex": index, "mSlot": slot},
        **{"mRank": rank, "mCount": count, "mBegin": begin, "entries": entries, "rows": rows},
        **{"m_blocks": max(m_blocks, 1), "width": width, "steps": entries.bit_length()},
    }
    constants = {"SLOTS": masked, "RANKS": o.settings.deterministic, "TILE": TILE}
    programs = ceil_div(entries, TILE) + ceil_div(rows, TILE)
    o.launcher.triton(Launch(transposed_kernel, programs, runtime, constants, {"num_warps": 4}))
    lists = BlockLists(BlockList(count[0], index[:most], begin[0]), BlockList(count[1], index, begin[1]))
    return lists, slot, rank


def _no_entries(zero: Tensor, rows: tuple[int, int, int]) -> BlockLists:
    """Lists without entries, which take no memory. zero: int64 (1,)."""
    narrow = zero.view(torch.int32)[:1]
    nothing = BlockList(narrow.view(1, 1, 1).expand(rows), narrow, zero.view(1, 1, 1).expand(rows))
    return BlockLists(nothing, nothing)


def _new(shape: tuple[int, ...] | torch.Size, like: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)
