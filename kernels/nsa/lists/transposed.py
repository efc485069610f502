"""Backward lists of chosen blocks: entries, listed by tiles of queries, sorted by the row of keys that they go to.

The sort is stable and tiles of queries ascend, so each row of the result does; and as an entry's place says which tile
it is of, nothing but the rows is sorted. `kernels.blocksparse.lists.transpose` says what the lists are.
"""

import triton
import triton.language as tl

_RUNTIME = ["mKey", "mSource", "mSlots", "mRanks", "mIndex", "mSlot", "mRank", "mCount", "mBegin", "entries", "rows"]
_RUNTIME += ["m_blocks", "width", "steps"]


@triton.jit
def _entries_below(mKey, row, entries, steps):
    """The number of sorted keys below `row`."""
    low, high = row.to(tl.int64) * 0, row.to(tl.int64) * 0 + entries
    for _ in range(0, steps):
        middle = (low + high) // 2
        below = tl.load(mKey + middle, mask=low < high, other=0) < row
        open_ = low < high
        low = tl.where(open_ & below, middle + 1, low)
        high = tl.where(open_ & (below == 0), middle, high)
    return low


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)
def transposed_kernel(
    mKey,
    mSource,
    mSlots,
    mRanks,
    mIndex,
    mSlot,
    mRank,
    mCount,
    mBegin,
    entries,
    rows,
    m_blocks,
    width,
    steps,
    SLOTS: tl.constexpr,
    RANKS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Rows of the backward lists, partial ones, then full ones; TILE entries, or TILE rows, in a program.

    mKey, mSource         (entries,): sorted rows, `rows` where there is no entry; int64 the places they came from
    mSlots, mRanks        int32 (entries,): at those places; mRank, RANKS: the same, sorted; mSlot, SLOTS: as many of
                          them as there are partial entries
    mIndex                int32 (entries,): m blocks; place p is of m block p // width % m_blocks
    mCount, mBegin        int32 and int64 (rows,)
    steps                 in which a binary search over the entries ends
    """
    programs = tl.cdiv(entries, TILE)
    program = tl.program_id(0)
    if program < programs:
        at = tl.cast(program, tl.int64) * TILE + tl.arange(0, TILE)
        row = tl.load(mKey + at, mask=at < entries, other=rows)
        there = row < rows
        source = tl.load(mSource + at, mask=there, other=0)
        tl.store(mIndex + at, (source // width % m_blocks).to(tl.int32), mask=there)
        if SLOTS:
            masked = row < rows // 2
            tl.store(mSlot + at, tl.load(mSlots + source, mask=masked, other=0), mask=masked)
        if RANKS:
            tl.store(mRank + at, tl.load(mRanks + source, mask=there, other=0), mask=there)
    else:
        row = (program - programs) * TILE + tl.arange(0, TILE)
        begin = _entries_below(mKey, row, entries, steps)
        end = _entries_below(mKey, row + 1, entries, steps)
        tl.store(mBegin + row, begin, mask=row < rows)
        tl.store(mCount + row, (end - begin).to(tl.int32), mask=row < rows)
