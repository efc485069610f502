# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loading warps of the kernel that works through runs of tiles, runs_kernel.py, and its look-up of blocks.

NOTE [pieces] Of a window of entries, tiles that are neither masked nor cut off by the sequence's end come first.
RUN_TILES of them are a run: one piece, of steps of 80 queries. Any other tile is a piece of steps of 64. Where the
kernel has no mask, partial tiles are as full ones. `Block.slot`, which full tiles have no use for, is -1 in the first
of a run.

NOTE [tiles of a run] Tiles of a run lie anywhere, also in different heads. Every second of its steps has queries of two
tiles. Where these are adjacent, or the step has one tile, its rows are adjacent too and come by one copy; else by two,
whose tensor maps have as many rows: PARTS.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.tile_iterator import Block, block_at, find_entry
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.loads import Side, load_keys_behind, tile_bytes, transfer_of
from kernels.blocksparse.common.buffers import stage_of
from kernels.blocksparse.common.bulk import load_rows, load_run, load_whole

RUN_STEPS = RUN_TILES * 128 // RUN_STEP
# Of the steps that lie in two tiles, how many queries are of the first tile. 80 less each are the same four numbers
PARTS = tuple(here for part in range(RUN_STEPS) if (here := 128 - part * RUN_STEP % 128) < RUN_STEP)
SWIZZLED = 64  # columns of a tile that lie together, row after row: wgmma's 128 bytes


class Queries(NamedTuple):
    """Adjacent queries: their head, the row of the first one in its batch, and where its LSE and delta are."""

    head: Int32
    row: Int32
    at: Int64


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
                load_run_step(w, sides, entry, part, step)
                load_keys_behind(w, sides, entry, part)
                step += 1
        else:
            for part in cutlass.range(w.tiling.steps, unroll=1):
                load_step(w, sides, block, part, step)
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
    whole = (entry < w.end_entry) & (w.keys_left >= w.tiling.tile_n)
    if cutlass.const_expr(w.variant.mask != "none"):
        whole = whole & (rBlock[1] % 2 == 0)
    whole = whole & ((rBlock[0] + 1) * w.tiling.tile_m <= w.seq_q.length)
    wholes = cute.arch.vote_ballot_sync(whole)
    count, place = cute.arch.popc(wholes), cute.arch.popc(wholes & low_lanes(lane))
    if not whole:
        place = count + lane - place
    elif (place % RUN_TILES == 0) & (place + RUN_TILES <= count):
        rBlock[3] = Int32(-1)
    if entry < w.end_entry:
        cute.autovec_copy(rBlock, w.storage.sEntries[None, stage_of(first + place, ENTRY_STAGES)])
    cute.arch.sync_warp()


def low_lanes(count: Int32) -> Int32:
    """The mask of the first `count` lanes, 0 to 32."""
    return Int32((cutlass.Int64(1) << cutlass.Int64(count)) - 1)


@cute.jit
def load_run_step(w, sides: cutlass.Constexpr, entry: Int32, part: Int32, step: Int32) -> None:
    """A step of 80 queries of each side: NOTE [tiles of a run]. entry: the run's first; part: which of its steps."""
    first, tile_m = part * RUN_STEP, w.tiling.tile_m
    tile = first // tile_m
    block = block_at(w.storage.sEntries, entry + tile)
    begin, here = queries_of(w, block, first % tile_m), cutlass.min(RUN_STEP, tile_m - first % tile_m)
    following, adjacent = begin, Boolean(True)
    if here < RUN_STEP:
        behind = block_at(w.storage.sEntries, entry + tile + 1)
        following = queries_of(w, behind, Int32(0))
        adjacent = (behind.head == block.head) & (behind.m_block == block.m_block + 1)
    for side in cutlass.range_constexpr(len(sides)):
        operand, statistic, _, tiles, values, _, full, empty, _ = transfer_of(w, sides[side])
        stages, size = cute.size(tiles.wide, mode=[2]), cutlass.const_expr(tile_bytes(tiles.wide) + 4 * RUN_STEP)
        turns.await_empty(empty, step, stages)
        stage = stage_of(step, stages)
        barrier, target = full + stage, values.iterator + cute.assume(stage * RUN_STEP, divby=4)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, size)
        cute.arch.sync_warp()
        if adjacent:
            load_statistics(target, statistic, begin, Int32(RUN_STEP), barrier)
            load_whole(operand.wide, (w.place[0], begin.head, begin.row), tiles.wide, stage, barrier)
        else:
            load_statistics(target, statistic, begin, here, barrier)
            load_statistics(target + cute.assume(here, divby=4), statistic, following, RUN_STEP - here, barrier)
            for i in cutlass.range_constexpr(len(PARTS)):
                if here == PARTS[i]:
                    load_part(w, operand, tiles.wide, 0, PARTS[i], begin, stage, barrier)
                    load_part(w, operand, tiles.wide, PARTS[i], RUN_STEP, following, stage, barrier)


@cute.jit
def load_part(
    w, operand, sX, first: cutlass.Constexpr, end: cutlass.Constexpr, queries: Queries, stage: Int32, full
) -> None:
    """Rows `first` to `end` of a stage, by a copy of their own. queries: the first of them."""
    rows, (_, *shape), stride = cutlass.const_expr(end - first), sX.layout.shape, sX.layout.stride
    part = cute.make_tensor(sX.iterator + first * SWIZZLED, cute.make_layout(((8, rows // 8), *shape), stride=stride))
    load_whole(operand.parts[rows], (w.place[0], queries.head, queries.row), part, stage, full)


def queries_of(w, block: Block, offset: Int32) -> Queries:
    """Those from query `offset` of a tile on."""
    tile_m, first = w.tiling.tile_m, block.m_block * w.tiling.tile_m + offset
    tile = tile_number(w.loads.tiles, w.place[0], block.head, w.seq_q.begin, tile_m)
    return Queries(block.head, w.seq_q.begin + first, tile * tile_m + first)


@cute.jit
def load_statistics(target, statistic, queries: Queries, count: Int32, full) -> None:
    """One lane: starts the copy of LSE or delta of so many queries."""
    if cute.arch.lane_idx() == 0:
        load_run(target, statistic + cute.assume(queries.at, divby=4), count * 4, full)
    cute.arch.sync_warp()


@cute.jit
def load_step(w, sides: cutlass.Constexpr, block: Block, part: Int32, step: Int32) -> None:
    """A step of 64 queries of each side. part: which step of the tile."""
    queries = queries_of(w, block, part * w.tiling.step_m)
    rows_left = w.seq_q.begin + w.seq_q.length - queries.row
    for side in cutlass.range_constexpr(len(sides)):
        operand, statistic, _, tiles, values, _, full, empty, _ = transfer_of(w, sides[side])
        turns.await_empty(empty, step, cute.size(tiles.narrow, mode=[2]))
        load_operand(w, operand.narrow, tiles.narrow, statistic, values, queries, rows_left, step, full)


@cute.jit
def load_operand(w, operand, sX, statistic, sValues, queries: Queries, rows_left: Int32, step: Int32, full) -> None:
    """Rows of Q or dO and their LSE or delta: one arrival, of the thread that says how many bytes come."""
    stage = stage_of(step, cute.size(sX, mode=[2]))
    barrier = full + stage
    rows = cutlass.const_expr(cute.size(sX, mode=[0]))
    size, run = cutlass.const_expr(tile_bytes(sX)), cutlass.const_expr(4 * rows)
    source = statistic + cute.assume(queries.at, divby=4)
    target = sValues.iterator + cute.assume(stage * RUN_STEP, divby=4)
    if rows_left >= rows:
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, size + run)
            load_run(target, source, run, barrier)
        cute.arch.sync_warp()
        load_whole(operand, (w.place[0], queries.head, queries.row), sX, stage, barrier)
    else:
        address = operand.rows.at(w.place[0], Int64(queries.row), queries.head)
        load_rows(address, operand.rows.stride_row, rows_left, w.dim, sX[None, None, stage], w.thread % 32)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, run)
            load_run(target, source, run, barrier)
        cute.arch.sync_warp()
