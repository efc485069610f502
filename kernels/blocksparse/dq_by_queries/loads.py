# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loading warps: Q and dO of a tile once, K and V step by step.

NOTE [loads of dQ] Two warps load K and two load V, each every other step, counted over all tiles of the CTA: step s
goes into stage s % stages of its operand (common/buffers.py has their barriers). An operand has as many stages as warps
at least: with fewer, a warp could be two phases ahead of a barrier, whose parity is then the same. The product dQ += dS
K of a step is issued in the step after it, so a stage of K is released one step later than one of V, and there are more
of them. The warps of V load Q and dO too, each for one warpgroup, before a tile's first V: of the next tile, where
shared memory holds two.
"""

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.common.buffers import Buffers
from kernels.blocksparse.common.list_reader import listed
from kernels.blocksparse.common.tile_loads import TileCopy
from kernels.blocksparse.dq_by_queries.tuning import STEP, WORKERS
from kernels.blocksparse.forward.mainloop import slot_of


@cute.jit
def fill_steps(w, buffers: Buffers, operand, sX: cute.Tensor, sPlace: cute.Tensor, worker: Int32) -> None:
    """A loading warp's steps of a tile: every WORKERS-th one of K or of V.

    operand   (address of the sequence's first row, stride of rows)
    sX        (STEP, dim, stages)
    sPlace    (2, stages): takes the first key and the slot of a step's mask; None for V
    """
    steps_per_block = w.variant.tile_n // STEP
    n_steps = w.tile_iterator.entries * steps_per_block
    first = (worker + WORKERS - w.before % WORKERS) % WORKERS
    block = Int32(0)
    if first < n_steps:
        block = listed(w.tile_iterator, first // steps_per_block)
    for i in cutlass.range((n_steps - first + WORKERS - 1) // WORKERS):
        s = first + i * WORKERS
        first_key = block * w.variant.tile_n + s % steps_per_block * STEP
        if s + WORKERS < n_steps:
            block = listed(w.tile_iterator, (s + WORKERS) // steps_per_block)
        stage, stage_place = (w.before + s) % buffers.stages, None
        if cutlass.const_expr(sPlace is not None):
            stage_place = sPlace[None, stage]
        place = (first_key, slot_of(w, s // steps_per_block))
        rows = rows_from(operand, first_key, w.length_k)
        fill(w.copy, buffers, w.before + s, ((rows, sX[None, None, stage]),), stage_place, place)


@cute.jit
def rows_from(operand, first: Int32, length: Int32):
    """Rows from number `first` on, of `length`: (address of the first, stride, how many there are)."""
    pointer, stride = operand
    return pointer + Int64(first) * cute.assume(stride, divby=8), stride, length - first


@cute.jit
def fill(copy: TileCopy, buffers: Buffers, number: Int32, tiles, sPlace: cute.Tensor = None, place=()) -> None:
    """A loading warp: the buffers that have this number, until products of other warps may read them.

    tiles    pairs of (`rows_from`, a tile in shared memory), which are announced together
    place    two numbers that go into sPlace
    """
    stage = number % buffers.stages
    # a barrier that has not ended a phase says that the one before the first has ended
    cute.arch.mbarrier_wait(buffers.empty + stage, (number // buffers.stages + 1) % 2)
    for rows, sX in tiles:
        copy.load(rows[0], rows[1], rows[2], sX)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()
    if cute.arch.lane_idx() == 0:
        for i in cutlass.range_constexpr(len(place) if sPlace is not None else 0):
            sPlace[i] = place[i]
        cute.arch.mbarrier_arrive(buffers.full + stage)
