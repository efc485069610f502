# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loading warp and the dQ warp of the kernel that works through runs of tiles: runs_kernel.py.

NOTE [pieces] The loading warp looks up 32 entries of the lists at once, a window, and writes them to half of the entry
buffer as pieces: RUN_TILES adjacent tiles that are neither masked nor cut off by the sequence's end are one piece, of
steps of 80 queries; any other tile is a piece of steps of 64. `Block.rank`, which atomic adds have no use for, is 1 in
the former. `sPieces` has the number of pieces of a window. A window is written when all steps of the one before have
been loaded, to the half of the one before that: 32 tiles are 16 steps or more, and the dQ warp, which reads entries
last, is at most two steps behind the step that is loaded, so that half is free.
"""

import cutlass
from cutlass import Int32, Int64, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.mainloop_mma import target_of
from kernels.blocksparse.backward.tile_iterator import Block, block_at, find_entry
from kernels.blocksparse.backward.tiling import HALF, RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.loads import load_keys, tile_bytes
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier
from kernels.blocksparse.common.bulk import load_rows, load_run, load_whole

RUN_STEPS = RUN_TILES * 128 // RUN_STEP


@cute.jit
def load_pieces(w, head_kv: Int32, first_key: Int64) -> None:
    """The loading warp's work for a tile of keys. first_key: the tile's first row in its batch."""
    storage = w.storage
    windows = (w.total + HALF - 1) // HALF
    if w.total > 0:
        load_keys(w, w.k, storage.sK, head_kv, first_key, w.k_full)
        load_keys(w, w.v, storage.sV, head_kv, first_key, w.v_full)
    step = Int32(0)
    for window in cutlass.range(windows, unroll=1):
        look_up_window(w, window)
        pieces = storage.sPieces[window % 2]
        for piece in cutlass.range(pieces, unroll=1):
            block = block_at(storage.sEntries, window % 2 * HALF + piece)
            if block.rank != 0:
                for part in cutlass.range(RUN_STEPS, unroll=1):
                    load_step(w, block, part, step, True)
                    step += 1
            else:
                for part in cutlass.range(w.tiling.steps, unroll=1):
                    load_step(w, block, part, step, False)
                    step += 1


@cute.jit
def look_up_window(w, window: Int32) -> None:
    """Writes a window's pieces: NOTE [pieces]."""
    lane, sPieces = cute.arch.lane_idx(), w.storage.sPieces
    entry = window * HALF + lane
    rBlock = cute.make_rmem_tensor(4, Int32)
    rBlock.fill(Int32(0))
    if entry < w.total:
        find_entry(w.variant, w.lists, w.place[0], w.place[2], w.first_head, entry, rBlock)
    m_block, head_partial = rBlock[0], rBlock[1]
    whole = (entry < w.total) & (head_partial % 2 == 0) & (w.keys_left >= w.tiling.tile_n)
    whole = whole & ((m_block + 1) * w.tiling.tile_m <= w.seq_q.length)
    key = Int32(-2)
    if whole:
        key = m_block
    before, head_before = cute.arch.shuffle_sync_up(key, 1), cute.arch.shuffle_sync_up(head_partial, 1)
    follows = whole & (lane > 0) & (before + 1 == m_block) & (head_before == head_partial)
    starts = cute.arch.vote_ballot_sync(not follows)
    start = 31 - cute.arch.clz(starts & low_lanes(lane + 1))
    above = starts & ~low_lanes(lane + 1)
    end = Int32(32)
    if above != 0:
        end = cute.arch.popc((above & -above) - 1)
    at = lane - start
    wide = whole & ((at // RUN_TILES + 1) * RUN_TILES <= end - start)
    emits = (entry < w.total) & ((not wide) | (at % RUN_TILES == 0))
    all_emitting = cute.arch.vote_ballot_sync(emits)
    rBlock[2] = Int32(wide)
    if emits:
        place = window % 2 * HALF + cute.arch.popc(all_emitting & low_lanes(lane))
        cute.autovec_copy(rBlock, w.storage.sEntries[None, place])
    if lane == 0:
        sPieces[window % 2] = cute.arch.popc(all_emitting)
    cute.arch.sync_warp()


def low_lanes(count: Int32) -> Int32:
    """The mask of the first `count` lanes, 0 to 32."""
    return Int32((cutlass.Int64(1) << cutlass.Int64(count)) - 1)


@cute.jit
def load_step(w, block: Block, part: Int32, step: Int32, wide: cutlass.Constexpr) -> None:
    """A step's rows of Q with LSE and of dO with delta. part: which step of its piece."""
    storage, stages = w.storage, w.tiling.stages
    rows = cutlass.const_expr(RUN_STEP if wide else w.tiling.step_m)
    first = block.m_block * w.tiling.tile_m + part * rows
    tile = tile_number(w.loads.tiles, w.place[0], block.head, w.seq_q.begin, w.tiling.tile_m)
    at = tile * w.tiling.tile_m + first
    sQ, sdO = (storage.wideQ, storage.widedO) if wide else (storage.narrowQ, storage.narrowdO)
    q, do = (w.q.wide, w.do.wide) if wide else (w.q.narrow, w.do.narrow)
    turns.await_empty(w.q_empty, step, stages)
    load_operand(w, q, sQ, w.statistics[0], storage.sLSE, block.head, first, at, step, w.q_full, wide)
    turns.await_empty(w.do_empty, step, stages)
    load_operand(w, do, sdO, w.statistics[1], storage.sDelta, block.head, first, at, step, w.do_full, wide)


@cute.jit
def load_operand(
    w, operand, sX, statistic, sValues, head: Int32, first: Int32, at: Int64, step: Int32, full, wide: cutlass.Constexpr
) -> None:
    """Rows of Q or dO and their LSE or delta, which begins at `at`: one arrival, of the thread that says how many bytes
    come. Steps of 80 queries have all rows."""
    stages = w.tiling.stages
    stage = step % stages
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


@cute.jit
def add_dq_of_pieces(w) -> None:
    """The dQ warp's work: adds each warpgroup's share of each step as soon as it is in shared memory."""
    storage = w.storage
    windows = (w.total + HALF - 1) // HALF
    window, piece, part, pieces, parts = Int32(0), Int32(0), Int32(0), Int32(0), Int32(1)
    if windows > 0:
        for group in cutlass.range_constexpr(GROUPS):
            turns.arrive_dq(DqBarrier.EMPTY, group)
    while window < windows:
        for group in cutlass.range_constexpr(GROUPS):
            turns.await_dq(DqBarrier.FULL, group)
            block = block_at(storage.sEntries, window % 2 * HALF + piece)
            if cutlass.const_expr(group == 0):
                pieces = storage.sPieces[window % 2]
                parts = Int32(RUN_STEPS) if block.rank != 0 else Int32(w.tiling.steps)
            if cute.arch.lane_idx() == 0:
                add_share(w, block, part, group)
            cute.arch.cp_async_bulk_commit_group()
        part += 1
        if part == parts:
            part = Int32(0)
            piece += 1
            if piece == pieces:
                piece = Int32(0)
                window += 1
        for group in cutlass.range_constexpr(GROUPS):
            cute.arch.cp_async_bulk_wait_group(GROUPS - 1 - group, read=True)
            cute.arch.sync_warp()
            if window < windows:
                turns.arrive_dq(DqBarrier.EMPTY, group)


@cute.jit
def add_share(w, block: Block, part: Int32, group: cutlass.Constexpr) -> None:
    """Adds one warpgroup's share of a step, which lies in one tile of queries or in two: NOTE [dQ by dim]."""
    tiling = w.tiling
    half, per_tile = cutlass.const_expr(tiling.dim // GROUPS), tiling.tile_m
    rows, first = Int32(tiling.step_m), part * tiling.step_m
    if block.rank != 0:
        rows, first = Int32(RUN_STEP), part * RUN_STEP
    tile, offset = first // per_tile, first % per_tile
    here = cutlass.min(rows, per_tile - offset)
    source = storage_of(w, group)
    start = target_of(w, block, Int32(0)) + (Int64(tile) * per_tile * tiling.dim + group * per_tile * half)
    add_bytes(w.mdQ + cute.assume(start + offset * half, divby=4), source, here * (4 * half))
    if here < rows:
        there = w.mdQ + cute.assume(start + per_tile * tiling.dim, divby=4)
        add_bytes(there, source + cute.assume(here * half, divby=4), (rows - here) * (4 * half))


def storage_of(w, group: int) -> cute.Pointer:
    """A warpgroup's share of dQ in shared memory."""
    return w.storage.sdQ.iterator + group * (RUN_STEP * w.tiling.dim // GROUPS)


@dsl_user_op
def add_bytes(target, source, size, *, loc=None, ip=None) -> None:
    """One thread: `bulk.add_run` of a number of bytes that is known when the kernel runs."""
    values = [pointer.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip) for pointer in (target, source)]
    llvm.inline_asm(
        None,
        [*values, Int32(size).ir_value(loc=loc, ip=ip)],
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2;",
        "l,r,r",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
