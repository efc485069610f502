# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loading warps of the kernel that works through runs of tiles, runs_kernel.py, and its look-up of blocks.

NOTE [pieces] Of a window of entries, RUN_TILES adjacent tiles that are neither masked nor cut off by the sequence's end
are one piece, of steps of 80 queries; any other tile is a piece of steps of 64. Descending ones, which planned orders
have, are written in ascending order. Where the kernel has no mask, partial tiles are as full ones. `Block.slot`, which
full tiles have no use for, is -1 in the first of a run.
"""

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.tile_iterator import Block, block_at, find_entry
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.loads import Side, load_keys_behind, tile_bytes, transfer_of
from kernels.blocksparse.common.buffers import stage_of
from kernels.blocksparse.common.bulk import load_rows, load_run, load_whole

RUN_STEPS = RUN_TILES * 128 // RUN_STEP


@cute.jit
def load_pieces(w, sides: cutlass.Constexpr, step: Int32) -> Int32:
    """A loading warp's work for a tile of keys: as `load_sides`."""
    entry, says_due = w.first_entry, cutlass.const_expr(Side.Q in sides)
    while entry < w.end_entry:
        turns.await_window(w, entry)
        block, following = block_at(w.storage.sEntries, entry), entry + 1
        if block.starts_run:
            following = entry + RUN_TILES
        if cutlass.const_expr(says_due):
            turns.say_due(w, entry, following)
        if block.starts_run:
            for part in cutlass.range(RUN_STEPS, unroll=1):
                load_step(w, sides, block, part, step, True)
                load_keys_behind(w, sides, entry, part)
                step += 1
        else:
            for part in cutlass.range(w.tiling.steps, unroll=1):
                load_step(w, sides, block, part, step, False)
                load_keys_behind(w, sides, entry, part)
                step += 1
        turns.end_window(w, following)
        entry = following
    return step


@cute.jit
def look_up_pieces(w, first: Int32) -> None:
    """Writes the window of entries that begins with entry `first`: NOTE [pieces]."""
    lane = cute.arch.lane_idx()
    entry = first + lane
    rBlock, number = cute.make_rmem_tensor(4, Int32), w.number_of(entry)
    rBlock.fill(Int32(0))
    if entry < w.end_entry:
        find_entry(w.variant, w.lists, w.order, w.counts, w.place, number, rBlock)
    m_block, head = rBlock[0], rBlock[1] >> 1
    whole = (entry < w.end_entry) & (w.keys_left >= w.tiling.tile_n)
    if cutlass.const_expr(w.variant.mask != "none"):
        whole = whole & (rBlock[1] % 2 == 0)
    whole = whole & ((m_block + 1) * w.tiling.tile_m <= w.seq_q.length)
    key = Int32(-2)
    if whole:
        key = m_block
    before, head_before = cute.arch.shuffle_sync_up(key, 1), cute.arch.shuffle_sync_up(head, 1)
    adjacent = (before + 1 == m_block) | (before - 1 == m_block)
    follows = whole & (lane > 0) & adjacent & (head_before == head)
    starts = cute.arch.vote_ballot_sync(not follows)
    start = 31 - Int32(cute.arch.clz(starts & low_lanes(lane + 1)))
    above = starts & ~low_lanes(lane + 1)
    end = Int32(32)
    if above != 0:
        end = cute.arch.popc((above & -above) - 1)
    begin = start + (lane - start) // RUN_TILES * RUN_TILES
    span = cute.arch.shuffle_sync(key, begin + RUN_TILES - 1) - cute.arch.shuffle_sync(key, begin)
    place = lane
    if whole & (begin + RUN_TILES <= end) & ((span == RUN_TILES - 1) | (span == 1 - RUN_TILES)):
        if span < 0:
            place = 2 * begin + RUN_TILES - 1 - lane
        if place == begin:
            rBlock[3] = Int32(-1)
    if entry < w.end_entry:
        cute.autovec_copy(rBlock, w.storage.sEntries[None, stage_of(first + place, ENTRY_STAGES)])
    cute.arch.sync_warp()


def low_lanes(count: Int32) -> Int32:
    """The mask of the first `count` lanes, 0 to 32."""
    return Int32((cutlass.Int64(1) << cutlass.Int64(count)) - 1)


@cute.jit
def load_step(w, sides: cutlass.Constexpr, block: Block, part: Int32, step: Int32, wide: cutlass.Constexpr) -> None:
    """A step's rows of each side. part: which step of its piece."""
    rows = cutlass.const_expr(RUN_STEP if wide else w.tiling.step_m)
    first = block.m_block * w.tiling.tile_m + part * rows
    tile = tile_number(w.loads.tiles, w.place[0], block.head, w.seq_q.begin, w.tiling.tile_m)
    at = tile * w.tiling.tile_m + first
    which = cutlass.const_expr("wide" if wide else "narrow")
    for side in cutlass.range_constexpr(len(sides)):
        operand, statistic, _, tiles, values, _, full, empty, _ = transfer_of(w, sides[side])
        operand, tiles = getattr(operand, which), getattr(tiles, which)
        turns.await_empty(empty, step, cute.size(tiles, mode=[2]))
        load_operand(w, operand, tiles, statistic, values, block.head, first, at, step, full, wide)


@cute.jit
def load_operand(
    w, operand, sX, statistic, sValues, head: Int32, first: Int32, at: Int64, step: Int32, full, wide: cutlass.Constexpr
) -> None:
    """Rows of Q or dO and their LSE or delta, which begins at `at`: one arrival, of the thread that says how many bytes
    come. Steps of 80 queries have all rows."""
    stage = stage_of(step, cute.size(sX, mode=[2]))
    barrier, row = full + stage, w.seq_q.begin + first
    rows = cutlass.const_expr(cute.size(sX, mode=[0]))
    size, run = cutlass.const_expr(tile_bytes(sX)), cutlass.const_expr(4 * rows)
    source = statistic + cute.assume(at, divby=4)
    target = sValues.iterator + cute.assume(stage * RUN_STEP, divby=4)
    rows_left = w.seq_q.length - first
    if cutlass.const_expr(wide):
        rows_left = Int32(rows)
    if rows_left >= rows:
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, size + run)
            load_run(target, source, run, barrier)
        cute.arch.sync_warp()
        load_whole(operand, (w.place[0], head, row), sX, stage, barrier)
    else:
        address = operand.rows.at(w.place[0], Int64(row), head)
        load_rows(address, operand.rows.stride_row, rows_left, w.dim, sX[None, None, stage], w.thread % 32)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, run)
            load_run(target, source, run, barrier)
        cute.arch.sync_warp()
