# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loading warps of the transposed main loop: K and V, and Q with LSE and dO with delta of each step, by TMA.

In a CTA with one tile one warp loads all, and reads the block lists too. A step's block is in the entry buffer when its
Q is full: NOTE [entry buffer].

NOTE [entry buffer] The warp's lanes look up 32 entries at once. Half of the buffer is filled LATE entries after the
other half has come into use: the dQ warp, which reads entries last, is at most two steps behind the step that is
loaded. Persistent CTAs have a warp for it: NOTE [windows] of tile_scheduler.py.
"""

from enum import Enum
from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.tile_iterator import Block, block_at, load_entry
from kernels.blocksparse.backward.tiling import HALF
from kernels.blocksparse.backward.transposed import turns
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


class Side(Enum):
    """The two sides of a persistent CTA's loads, each of a step and of its tile of keys. A loading warp has one or
    both."""

    Q = "Q and LSE, and K"
    DO = "dO and delta, and V"


class Transfer(NamedTuple):
    """The tensors and mbarriers of a side.

    operand, statistic, keys   in global memory
    tiles, values, key_tile    where they go
    full, empty, key_full      mbarriers
    """

    operand: Any
    statistic: cute.Pointer
    keys: BulkOperand
    tiles: cute.Tensor
    values: cute.Tensor
    key_tile: cute.Tensor
    full: cute.Pointer
    empty: cute.Pointer
    key_full: cute.Pointer


def transfer_of(w, side: Side) -> Transfer:
    """The transfer of a side."""
    s, statistics = w.storage, w.statistics
    if side is Side.Q:
        return Transfer(w.q, statistics[0], w.k, s.sQ, s.sLSE, s.sK, w.q_full, w.q_empty, w.k_full)
    return Transfer(w.do, statistics[1], w.v, s.sdO, s.sDelta, s.sV, w.do_full, w.do_empty, w.v_full)


@cute.jit
def load_sides(w, sides: cutlass.Constexpr, step: Int32) -> Int32:
    """A loading warp's work for a tile of keys that has blocks, in a persistent CTA. sides: in the order of a step's
    loads, dO first, whose stage is empty before that of Q; step: those of earlier tiles; returns how many there are
    now."""
    steps, says_due = w.tiling.steps, cutlass.const_expr(Side.Q in sides)
    for entry in cutlass.range(w.first_entry, w.end_entry, unroll=1):
        turns.await_window(w, entry)
        if cutlass.const_expr(says_due and not w.tiling.takes_late):
            turns.say_due(w, entry, entry + 1)
        block = block_at(w.storage.sEntries, entry)
        for part in cutlass.range(steps, unroll=1):
            for side in cutlass.range_constexpr(len(sides)):
                operand, statistic, _, tiles, values, _, full, empty, _ = transfer_of(w, sides[side])
                turns.await_empty(empty, step, cute.size(tiles, mode=[2]))
                load_step(w, operand, statistic, block, step, tiles, values, full)
            load_keys_behind(w, sides, entry, part)
            step += 1
        if cutlass.const_expr(says_due and w.tiling.takes_late):
            turns.say_due(w, entry, entry + 1)
        turns.end_window(w, entry + 1)
    return step


@cute.jit
def load_keys_behind(w, sides: cutlass.Constexpr, entry: Int32, part: Int32) -> None:
    """K and V, as the sides say, of a tile behind its first step, the first part of its first entry, when the last
    tile's steps have read what was there."""
    if (entry == w.first_entry) & (part == 0):
        turns.await_empty(w.keys_empty, w.key_turn, 1)
        for side in cutlass.range_constexpr(len(sides)):
            _, _, keys, _, _, key_tile, _, _, key_full = transfer_of(w, sides[side])
            load_keys(w, keys, key_tile, w.head_kv, w.row, key_full)


@cute.jit
def look_up(w, entry: Int32) -> None:
    """Fills half of the entry buffer, an entry in each lane: the first half, or the half after that of `entry`."""
    place = w.thread % 32
    if entry > 0:
        place += entry - LATE + HALF
    halved = cutlass.const_expr(w.tiling.exchanges)
    load_entry(w.variant, w.lists, w.order, w.counts, w.place_of_lists, w.total, w.storage.sEntries, place, halved)
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
