# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loading warp of the transposed main loop: K and V, then Q with LSE and dO with delta of each step, by TMA.

It reads the block lists too. A step's block is in the entry buffer when its Q is full: NOTE [entry buffer].

NOTE [entry buffer] Its lanes look up 32 entries at once, a window, for half of the buffer. A window is looked up LATE
entries after the one before it has come into use. Of a CTA with one tile, its half is free then: the dQ warp, which
reads entries last, is at most two steps behind the step that is loaded. A persistent CTA counts windows over its tiles,
which may have few steps, and waits until the half is empty.
"""

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.tile_iterator import Block, block_at, find_entry, load_entry
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, HALF
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.tile_scheduler import announce_ahead
from kernels.blocksparse.common.buffers import stage_of
from kernels.blocksparse.common.bulk import BulkOperand, load_rows, load_run, load_whole

LATE = 8


@cute.jit
def load_all(w, head_kv: Int32, first_key: Int64) -> None:
    """The loading warp's work in a CTA with one tile of keys. first_key: the tile's first row in its batch."""
    steps, storage, stages, stages_q = w.tiling.steps, w.storage, w.tiling.stages, w.tiling.stages_q
    if w.total > 0:
        load_keys(w, w.k, storage.sK, head_kv, first_key, w.k_full)
        load_keys(w, w.v, storage.sV, head_kv, first_key, w.v_full)
    for step in cutlass.range(w.total * steps, unroll=1):
        entry = step // steps
        if step % steps == 0 and (entry == 0 or entry % HALF == LATE):
            look_up(w, entry)
        block = block_at(storage.sEntries, entry)
        turns.await_empty(w.q_empty, step, stages_q)
        load_step(w, w.q, w.statistics[0], block, step, storage.sQ, storage.sLSE, w.q_full)
        turns.await_empty(w.do_empty, step, stages)
        load_step(w, w.do, w.statistics[1], block, step, storage.sdO, storage.sDelta, w.do_full)


@cute.jit
def load_tile(w, step: Int32) -> Int32:
    """The loading warp's work for a tile of keys that has blocks, in a persistent CTA. step: those of earlier tiles;
    returns how many there are now. K and V, which the last tile's steps must have read, come behind the first Q and dO.
    """
    steps, storage, stages, seen = w.tiling.steps, w.storage, w.tiling.stages, w.first_entry
    for entry in cutlass.range(w.first_entry, w.end_entry, unroll=1):
        seen = look_up_ahead(w, look_up_window, entry, seen)
        announce_ahead(w, entry + 1)
        block = block_at(storage.sEntries, entry)
        for part in cutlass.range(steps, unroll=1):
            turns.await_empty(w.q_empty, step, stages)
            load_step(w, w.q, w.statistics[0], block, step, storage.sQ, storage.sLSE, w.q_full)
            turns.await_empty(w.do_empty, step, stages)
            load_step(w, w.do, w.statistics[1], block, step, storage.sdO, storage.sDelta, w.do_full)
            load_keys_behind(w, entry, part)
            step += 1
    return step


@cute.jit
def look_up_ahead(w, look_up_one: cutlass.Constexpr, entry: Int32, seen: Int32) -> Int32:
    """Looks up the next window, if it is time: NOTE [entry buffer]. seen: the first entry that has not been looked up;
    returns which one is now."""
    if (seen < w.end_entry) & (seen - entry <= HALF - LATE):
        turns.await_empty(w.entries_empty, turns.window_of(seen), 2)
        look_up_one(w, seen)
        seen += HALF
    return seen


@cute.jit
def look_up_window(w, first: Int32) -> None:
    """Writes the window of a tile's entries that begins with entry `first`, an entry in each lane."""
    entry = first + w.thread % 32
    if entry < w.end_entry:
        rBlock = cute.make_rmem_tensor(4, Int32)
        find_entry(w.variant, w.lists, w.place[0], w.place[2], w.first_head, entry - w.first_entry, rBlock)
        cute.autovec_copy(rBlock, w.storage.sEntries[None, stage_of(entry, ENTRY_STAGES)])
    cute.arch.sync_warp()


@cute.jit
def load_keys_behind(w, entry: Int32, part: Int32) -> None:
    """K and V of a tile behind its first step, the first part of its first entry."""
    if (entry == w.first_entry) & (part == 0):
        turns.await_empty(w.keys_empty, w.key_turn, 1)
        load_keys(w, w.k, w.storage.sK, w.head_kv, w.row, w.k_full)
        load_keys(w, w.v, w.storage.sV, w.head_kv, w.row, w.v_full)


@cute.jit
def look_up(w, entry: Int32) -> None:
    """Fills half of the entry buffer, an entry in each lane: the first half, or the half after that of `entry`."""
    place = w.thread % 32
    if entry > 0:
        place += entry - LATE + HALF
    load_entry(w.variant, w.lists, w.place[0], w.place[2], w.first_head, w.total, w.storage.sEntries, place)
    cute.arch.sync_warp()


@cute.jit
def load_keys(w, operand: BulkOperand, sX: cute.Tensor, head_kv: Int32, row: Int64, full: cute.Pointer) -> None:
    """K or V of the tile, whose first key is `row` of its batch."""
    place, stage = (w.place[0], head_kv, Int32(row)), Int32(0)
    size = cutlass.const_expr(tile_bytes(sX))
    if w.keys_left >= w.tiling.tile_n:
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, size)
        cute.arch.sync_warp()
        load_whole(operand, place, sX, stage, full)
    else:
        first = operand.rows.at(w.place[0], row, head_kv)
        load_rows(first, operand.rows.stride_row, w.keys_left, w.dim, sX[None, None, stage], w.thread % 32)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(full)


@cute.jit
def load_step(
    w,
    operand: BulkOperand,
    statistic: cute.Pointer,
    block: Block,
    step: Int32,
    sX: cute.Tensor,
    sValues: cute.Tensor,
    full: cute.Pointer,
) -> None:
    """A step's rows of Q or dO and their LSE or delta: one arrival, of the thread that says how many bytes come."""
    tiling, batch, stage = w.tiling, w.place[0], stage_of(step, cute.size(sX, mode=[2]))
    barrier = full + stage
    first = block.m_block * tiling.tile_m + stage_of(step, tiling.steps) * tiling.step_m
    row, rows_left = w.seq_q.begin + first, w.seq_q.length - first
    tile = tile_number(w.loads.tiles, batch, block.head, w.seq_q.begin, tiling.tile_m)
    source = statistic + cute.assume(tile * tiling.tile_m + first, divby=4)
    target = sValues.iterator + cute.assume(stage * tiling.step_m, divby=4)
    size, run = cutlass.const_expr(tile_bytes(sX)), cutlass.const_expr(4 * tiling.step_m)
    if rows_left >= tiling.step_m:
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, size + run)
            load_run(target, source, run, barrier)
        cute.arch.sync_warp()
        load_whole(operand, (batch, block.head, row), sX, stage, barrier)
    else:
        address = operand.rows.at(batch, Int64(row), block.head)
        load_rows(address, operand.rows.stride_row, rows_left, w.dim, sX[None, None, stage], w.thread % 32)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, run)
            load_run(target, source, run, barrier)
        cute.arch.sync_warp()


def tile_bytes(sX: cute.Tensor) -> int:
    """Bytes of a stage."""
    return cute.size(sX, mode=[0]) * cute.size(sX, mode=[1]) * (sX.element_type.width // 8)
