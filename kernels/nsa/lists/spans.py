"""Lists of branches whose tiles of queries see contiguous tiles of keys that follow from the lengths: the window, and
all compressed blocks.

NOTE [spans] A tile of queries covers key tiles cover_start … cover_stop - 1, of which full_start … full_stop - 1 need
no mask; all four ascend with the tile. So a row of forward lists and its places in `index` are computed from its number
alone, and a backward row asks the tiles of queries that may reach it by the same functions. Nothing is summed up over
rows: each row has a share of `index` that suffices, `share_begins`.
"""

import triton
import triton.language as tl

from kernels.nsa.means import rows_of
from kernels.sdpa.tiles import wide_product


@triton.jit
def pools_seen(query, size, CAUSAL: tl.constexpr):
    """Compressed blocks of `size` tokens that a query sees at most: as `PoolRule`, 1 "begun", 2 "ended"."""
    if CAUSAL == 1:
        seen = query // size + 1
    else:
        seen = (query + 1) // size
    return seen


@triton.jit
def window_spans(m_block, rows, left, right, TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """The spans of NOTE [spans] where query i of `rows` sees keys i - left … i + right."""
    first = m_block * TILE_M
    last = tl.minimum(first + TILE_M, rows) - 1
    start, stop = tl.maximum(first - left, 0), tl.minimum(last + right + 1, rows)
    there = (first < rows) & (left + right >= 0) & (start < stop)
    cover_start = tl.where(there, start // TILE_N, 0)
    cover_stop = tl.where(there, tl.cdiv(stop, TILE_N), 0)
    start, stop = tl.maximum(last - left, 0), tl.minimum(first + right + 1, rows)
    full_start = tl.cdiv(start, TILE_N)
    full_stop = tl.where(stop == rows, tl.cdiv(stop, TILE_N), stop // TILE_N)
    some = there & (full_start < full_stop)
    return cover_start, cover_stop, tl.where(some, full_start, cover_stop), tl.where(some, full_stop, cover_stop)


@triton.jit
def pool_spans(m_block, rows, size, TILE_M: tl.constexpr, TILE_N: tl.constexpr, CAUSAL: tl.constexpr):
    """The spans of NOTE [spans] where queries see compressed blocks of `size` tokens."""
    first = m_block * TILE_M
    last = tl.minimum(first + TILE_M, rows) - 1
    keys = tl.cdiv(rows, size)
    if CAUSAL == 0:
        seen_first = keys + m_block * 0
        seen_last = seen_first
    else:
        seen_first = tl.minimum(pools_seen(first, size, CAUSAL), keys)
        seen_last = tl.minimum(pools_seen(last, size, CAUSAL), keys)
    cover = tl.where(first < rows, tl.cdiv(seen_last, TILE_N), 0)
    full = tl.where(seen_first == keys, cover, tl.where(first < rows, seen_first // TILE_N, 0))
    return cover * 0, cover, full * 0, full


@triton.jit
def spans_of(
    m_block,
    rows,
    left,
    right,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    POOLED: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """The spans of a branch. Of the compressed one `left` is the tokens of a block."""
    if POOLED:
        spans = pool_spans(m_block, rows, left, TILE_M, TILE_N, CAUSAL)
    else:
        spans = window_spans(m_block, rows, left, right, TILE_M, TILE_N)
    return spans


@triton.jit
def share_begins(row, per, width, RISING: tl.constexpr):
    """Places of `index` before a row's share, int64.

    per 0: every row has `width` of them. RISING: row i has i // per + 1, at most width. Else it has width - i · per.
    """
    row = tl.cast(row, tl.int64)
    step = tl.maximum(per, 1)
    if RISING:
        rising = tl.minimum(row, tl.cast(step, tl.int64) * width)
        level = rising // step
        shared = step * (level * (level + 1) // 2) + (rising - level * step) * (level + 1) + (row - rising) * width
    else:
        falling = tl.minimum(row, tl.cdiv(width, step))
        shared = falling * width - step * (falling * (falling - 1) // 2)
    return tl.where(per == 0, row * width, shared)


@triton.jit
def write_bounds(mBounds, tile, size, longest, CAUSAL: tl.constexpr, TILE: tl.constexpr):
    """Compressed blocks that each of TILE queries sees, as `Intervals.bounds`."""
    query = tile * TILE + tl.arange(0, TILE)
    tl.store(mBounds + query, pools_seen(query, size, CAUSAL), mask=query < longest)


_RUNTIME = ["mCu", "mCount", "mBegin", "mIndex", "mOrder", "mBounds", "mZero", "batches", "length", "longest"]
_RUNTIME += ["m_blocks", "left", "right", "per", "width"]


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)
def span_rows_kernel(
    mCu,
    mCount,
    mBegin,
    mIndex,
    mOrder,
    mBounds,
    mZero,
    batches,
    length,
    longest,
    m_blocks,
    left,
    right,
    per,
    width,
    PACKED: tl.constexpr,
    POOLED: tl.constexpr,
    CAUSAL: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Forward lists, ROWS rows of one sequence in a program.

    mCount int32, mBegin int64  (2, batches, m_blocks): of partial, then of full tiles
    mIndex                      int32: in each row's share its partial tiles, then its full ones
    mOrder                      int32 (batches, m_blocks), compressed: rows of most tiles first, of equal ones the last
    mBounds                     int32 (longest,), compressed and causal: `Intervals.bounds`
    mZero                       int32 (1,), window: 0, its offset
    """
    tiles = tl.cdiv(m_blocks, ROWS)
    batch, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    _, rows = rows_of(mCu, batch, length, PACKED)
    m_block = tile * ROWS + tl.arange(0, ROWS)
    there = m_block < m_blocks
    cover_start, cover_stop, full_start, full_stop = spans_of(
        m_block, rows, left, right, TILE_M, TILE_N, POOLED, CAUSAL
    )
    before, full = full_start - cover_start, full_stop - full_start
    partial = before + cover_stop - full_stop
    total = tl.where(there, partial + full, 0)
    begin = share_begins(m_block, per, width, True) + batch * share_begins(m_blocks, per, width, True)
    line, kinds = batch * m_blocks + m_block, batches * m_blocks
    tl.store(mCount + line, partial, mask=there)
    tl.store(mCount + kinds + line, full, mask=there)
    tl.store(mBegin + line, begin, mask=there)
    tl.store(mBegin + kinds + line, begin + partial, mask=there)
    for step in range(0, tl.max(total, 0), CHUNK):
        at = step + tl.arange(0, CHUNK)[None, :]
        masked = tl.where(at < before[:, None], cover_start[:, None] + at, (full_stop - before)[:, None] + at)
        n_block = tl.where(at < partial[:, None], masked, (full_start - partial)[:, None] + at)
        tl.store(mIndex + begin[:, None] + at, n_block, mask=at < total[:, None])
    if POOLED:
        live = tl.minimum(tl.cdiv(rows, TILE_M), m_blocks)
        without = 0 * live  # rows of queries that see nothing: the first ones
        if CAUSAL == 2:
            without = tl.where(rows < left, live, tl.minimum((left - 1) // TILE_M, live))
        none = m_blocks - 1 - m_block + tl.where(m_block < live, 0, live - without)
        position = tl.where(total > 0, live - 1 - m_block, none)
        tl.store(mOrder + batch * m_blocks + position, m_block, mask=there)
        if CAUSAL > 0:
            write_bounds(mBounds, tile, left, tl.where(batch == 0, longest, 0), CAUSAL, ROWS * TILE_M)
    elif tl.program_id(0) == 0:
        tl.store(mZero, 0)


_COLUMNS = ["mCu", "mCount", "mBegin", "mIndex", "mRank", "mOrder", "mBounds", "mZero", "batches", "length", "longest"]
_COLUMNS += ["m_blocks", "n_blocks", "left", "right", "per", "width"]


@triton.jit
def _reached(
    m_block,
    n_block,
    last,
    rows,
    left,
    right,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    POOLED: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Which tiles of queries, up to `last`, see part of a tile of keys, which all of it, and the first tile of keys
    after those that they see."""
    cover_start, cover_stop, full_start, full_stop = spans_of(
        m_block, rows, left, right, TILE_M, TILE_N, POOLED, CAUSAL
    )
    full = (full_start <= n_block) & (n_block < full_stop) & (m_block <= last)
    partial = (cover_start <= n_block) & (n_block < cover_stop) & (m_block <= last) & (full == 0)
    return partial.to(tl.int32), full.to(tl.int32), cover_stop


@triton.jit(do_not_specialize=_COLUMNS, do_not_specialize_on_alignment=_COLUMNS)
def span_columns_kernel(
    mCu,
    mCount,
    mBegin,
    mIndex,
    mRank,
    mOrder,
    mBounds,
    mZero,
    batches,
    length,
    longest,
    m_blocks,
    n_blocks,
    left,
    right,
    per,
    width,
    PACKED: tl.constexpr,
    POOLED: tl.constexpr,
    CAUSAL: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    RANKS: tl.constexpr,
):
    """Backward lists, COLUMNS rows of keys in a program; further programs write the bounds.

    mCount, mBegin, mIndex, mBounds, mZero  as `span_rows_kernel`, of rows of keys (2, batches, n_blocks), ascending
    mRank   int32, parallel to mIndex, RANKS: NOTE [write order] of blocksparse, descending
    mOrder  int32 (batches, n_blocks), compressed: rows of most tiles first, of equal ones the first
    """
    lines = batches * n_blocks
    programs = tl.cdiv(lines, COLUMNS)
    program = tl.program_id(0)
    if program >= programs:
        if CAUSAL > 0:
            write_bounds(mBounds, program - programs, left, longest, CAUSAL, TILE)
    else:
        line = program * COLUMNS + tl.arange(0, COLUMNS)
        there = line < lines
        line = tl.minimum(line, lines - 1)
        batch, n_block = line // n_blocks, line % n_blocks
        _, rows = rows_of(mCu, batch, length, PACKED)
        if POOLED:
            first = n_block * per
            last = first * 0 + m_blocks - 1
            tl.store(mOrder + line, n_block, mask=there)
        else:
            first = tl.maximum(n_block * TILE_N - right, 0) // TILE_M
            reach = (wide_product(n_block + 1, TILE_N) - 1 + left) // TILE_M
            last = tl.minimum(tl.maximum(reach, -1), m_blocks - 1).to(tl.int32)
        last = tl.where(there, last, -1)
        n_block_, last_ = n_block[:, None], last[:, None]
        rows_ = (rows + n_block * 0)[:, None]
        first_ = first[:, None] + tl.arange(0, CHUNK)[None, :]
        looked_at = tl.max(last - first, 0) + 1
        partials = n_block * 0
        for start in range(0, looked_at, CHUNK):
            partial, full, cover_stop = _reached(
                first_ + start, n_block_, last_, rows_, left, right, TILE_M, TILE_N, POOLED, CAUSAL
            )
            partials += tl.sum(partial, 1)
        begin = share_begins(n_block, per, width, False) + batch * share_begins(n_blocks, per, width, False)
        partial_at = begin
        full_at = begin + partials
        tl.store(mCount + line, partials, mask=there)
        tl.store(mBegin + line, begin, mask=there)
        tl.store(mBegin + lines + line, full_at, mask=there)
        for start in range(0, looked_at, CHUNK):
            partial, full, cover_stop = _reached(
                first_ + start, n_block_, last_, rows_, left, right, TILE_M, TILE_N, POOLED, CAUSAL
            )
            place = tl.where(
                full > 0, full_at[:, None] + tl.cumsum(full, 1), partial_at[:, None] + tl.cumsum(partial, 1)
            )
            tl.store(mIndex + place - 1, first_ + start, mask=partial + full > 0)
            if RANKS:
                tl.store(mRank + place - 1, cover_stop - 1 - n_block_, mask=partial + full > 0)
            partial_at += tl.sum(partial, 1)
            full_at += tl.sum(full, 1)
        tl.store(mCount + lines + line, (full_at - begin).to(tl.int32) - partials, mask=there)
        if program == 0:
            tl.store(mZero, 0)
