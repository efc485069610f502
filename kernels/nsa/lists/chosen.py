"""Lists of branches whose tiles of queries choose: selected blocks, and groups of compressed blocks.

NOTE [merged blocks] Chosen blocks ascend, so those that share a tile of keys follow one another: each thread walks
through the blocks of one row, adds up which part of the tile they show, and writes the tile when the next one begins. A
block below one before it is left out, so a row never names a tile twice, whatever it was given. The walk is made twice:
first it counts.
"""

import triton
import triton.language as tl

from kernels.nsa.lists.spans import pools_seen, write_bounds
from kernels.nsa.means import rows_of
from kernels.sdpa.tiles import wide_product

TABLE = 8192  # words of the mask, or bounds, that one program writes


@triton.jit
def tile_seen(
    n_block,
    pattern,
    m_block,
    rows,
    block,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    UNIT: tl.constexpr,
    POOLED: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """(is the tile of keys seen, is it masked, its slot): NOTE [shared slots] of blocksparse's compact.py.

    pattern  a bit for each of its units of keys that is chosen. POOLED: keys are compressed blocks of `block` tokens
    """
    before, first = n_block * TILE_N, m_block * TILE_M
    last = tl.minimum(first + TILE_M, rows) - 1
    patterns: tl.constexpr = 1 << (TILE_N // UNIT)
    cut = before * 0
    if POOLED:
        keys = tl.cdiv(rows, block)
        used = (first < rows) & (before < keys)
        masked = before < 0
        if CAUSAL > 0:
            used = used & (before < pools_seen(last, block, CAUSAL))
            masked = tl.minimum(before + TILE_N, keys) > pools_seen(first, block, CAUSAL)
    else:
        used = (first < rows) & (before < rows)
        if CAUSAL > 0:
            step: tl.constexpr = TILE_M if TILE_M < TILE_N else TILE_N
            used = used & (before <= last)
            cut = tl.where(before + TILE_N > first + 1, (first - before + TILE_M) // step, 0)
        masked = (pattern != patterns - 1) | (cut != 0)
    return used, masked, cut * patterns + pattern


@triton.jit
def write_words(
    mWords, tile, words, TILE_M: tl.constexpr, TILE_N: tl.constexpr, UNIT: tl.constexpr, TILE: tl.constexpr
):
    """TILE words of the masks (slots, TILE_M, TILE_N / 32), of `words` ones. UNIT is a multiple of 16."""
    step: tl.constexpr = TILE_M if TILE_M < TILE_N else TILE_N
    at = tile * TILE + tl.arange(0, TILE)
    word, row = at % (TILE_N // 32), at // (TILE_N // 32) % TILE_M
    slot = at // (TILE_M * (TILE_N // 32))
    patterns: tl.constexpr = 1 << (TILE_N // UNIT)
    pattern, cut = slot % patterns, slot // patterns
    low, high = (pattern >> (word * 32 // UNIT)) & 1, (pattern >> ((word * 32 + 16) // UNIT)) & 1
    bits = low.to(tl.uint32) * 0xFFFF + high.to(tl.uint32) * 0xFFFF0000
    seen = tl.where(cut == 0, 32, row + cut * step - TILE_M + 1 - word * 32)  # of the word's keys, the first so many
    upto = (tl.full([TILE], 1, tl.uint32) << tl.minimum(tl.maximum(seen, 0), 31).to(tl.uint32)) - 1
    bits = tl.where(seen >= 32, bits, bits & upto)
    tl.store(mWords + at, bits.to(tl.int32, bitcast=True), mask=at < words)


_RUNTIME = ["mCu", "mRows", "mCount", "mBegin", "mPartial", "mFull", "mSlot", "mKey", "mRank", "mTable", "mZero"]
_RUNTIME += ["length", "longest", "groups", "heads", "m_blocks", "n_blocks", "tiles", "per_tile", "chosen", "size"]
_RUNTIME += ["block", "span", "width", "partial_width", "table"]


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)
def chosen_kernel(
    mCu,
    mRows,
    mCount,
    mBegin,
    mPartial,
    mFull,
    mSlot,
    mKey,
    mRank,
    mTable,
    mZero,
    length,
    longest,
    groups,
    heads,
    m_blocks,
    n_blocks,
    tiles,
    per_tile,
    chosen,
    size,
    block,
    span,
    width,
    partial_width,
    table,
    PACKED: tl.constexpr,
    POOLED: tl.constexpr,
    CAUSAL: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    BACKWARD: tl.constexpr,
    RANKS: tl.constexpr,
):
    """Forward lists, or the entries of the backward ones; a row of one query head in each of ROWS threads.

    mRows        int32 (groups, tiles, chosen): blocks of `size` keys that tiles of `per_tile` queries chose, ascending,
                 then -1. A group is a query head of a sequence. POOLED: keys are compressed blocks of `block` tokens
    span, width  tiles of keys that a block meets at most; entries of a row at most
    mTable       int32 (table,): words of the masks; POOLED: bounds. Written by further programs

    Forward: mCount int32 and mBegin int64 (2, groups, m_blocks) of partial, then of full tiles; mPartial and mSlot
    int32 (groups, m_blocks, partial_width), mFull (groups, m_blocks, width); they may be one tensor.
    BACKWARD: mKey (groups, m_blocks, width): row of the backward lists, those of all partial tiles first, and the
    number of all rows in places that are not used; mSlot and, RANKS, mRank int32 parallel to it; mZero int64 (1,): 0.
    """
    programs = tl.cdiv(groups * m_blocks, ROWS)
    program = tl.program_id(0)
    if program >= programs:
        if not POOLED:
            write_words(mTable, program - programs, table, TILE_M, TILE_N, UNIT, TABLE)
        elif CAUSAL > 0:
            write_bounds(mTable, program - programs, block, longest, CAUSAL, TABLE)
    else:
        line = program * ROWS + tl.arange(0, ROWS)
        there = line < groups * m_blocks
        line = tl.minimum(line, groups * m_blocks - 1)
        group, m_block = line // m_blocks, line % m_blocks
        _, rows = rows_of(mCu, group // heads, length, PACKED)
        mRow = mRows + wide_product(group * tiles + m_block * TILE_M // per_tile, chosen)
        limit = tl.cdiv(tl.cdiv(longest, block) if POOLED else longest, size)
        shared = partial_width == width
        masked_places = wide_product(line, partial_width)
        places = wide_product(line, width)
        partial = tl.zeros([ROWS], tl.int32)
        total = tl.zeros([ROWS], tl.int32)
        for phase in range(0, 2):
            n_block = tl.full([ROWS], -1, tl.int32)
            pattern = tl.zeros([ROWS], tl.int32)
            partials = tl.zeros([ROWS], tl.int32)
            fulls = tl.zeros([ROWS], tl.int32)
            for item in range(0, chosen * span + 1):
                rest = line * 0 + item < chosen * span
                taken = tl.load(mRow + item // span, mask=there & rest, other=-1)
                named = (taken >= 0) & (taken < limit)
                start = tl.where(named, taken, 0) * size
                tile = start // TILE_N + item % span
                low = tl.maximum(start - tile * TILE_N, 0)
                high = tl.minimum(start + size - tile * TILE_N, TILE_N)
                named = named & (low < high)
                bits = (1 << (tl.where(named, high, 0) // UNIT)) - (1 << (tl.where(named, low, 0) // UNIT))
                opens = named & (tile > n_block)
                used, masked, slot = tile_seen(
                    n_block, pattern, m_block, rows, block, TILE_M, TILE_N, UNIT, POOLED, CAUSAL
                )
                ends = (opens | (rest == 0)) & (n_block >= 0) & used & there
                writes = ends & (phase == 1)
                if BACKWARD:
                    place = places + partials + fulls
                    row = wide_product(group, n_blocks) + n_block
                    row += tl.where(masked, 0, wide_product(groups, n_blocks))
                    tl.store(mKey + place, row.to(mKey.dtype.element_ty), mask=writes)
                    if not POOLED:
                        tl.store(mSlot + place, slot, mask=writes & masked)
                    if RANKS:
                        tl.store(mRank + place, total - 1 - partials - fulls, mask=writes)
                else:
                    tl.store(mPartial + masked_places + partials, n_block, mask=writes & masked)
                    if not POOLED:
                        tl.store(mSlot + masked_places + partials, slot, mask=writes & masked)
                    place = places + tl.where(shared, partial, 0) + fulls
                    tl.store(mFull + place, n_block, mask=writes & (masked == 0))
                partials += (ends & masked).to(tl.int32)
                fulls += (ends & (masked == 0)).to(tl.int32)
                pattern = tl.where(opens, bits, tl.where(named & (tile == n_block), pattern | bits, pattern))
                n_block = tl.where(opens, tile, n_block)
            partial = partials
            total = partials + fulls
        if BACKWARD:
            for at in range(0, width):
                sentinel = (2 * wide_product(groups, n_blocks)).to(mKey.dtype.element_ty)
                tl.store(mKey + places + at, sentinel, mask=there & (at >= total))
            if program == 0:
                tl.store(mZero, 0)
        else:
            kinds = groups * m_blocks
            tl.store(mCount + line, partial, mask=there)
            tl.store(mCount + kinds + line, total - partial, mask=there)
            tl.store(mBegin + line, masked_places, mask=there)
            tl.store(mBegin + kinds + line, places + tl.where(shared, partial, 0), mask=there)
