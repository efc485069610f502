# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The two dQ warps: each adds the pieces of one multiplying warpgroup, by bulk reductions, so that none waits for the
other's pieces.

NOTE [ordered adds of two warps] As NOTE [ordered bulk adds] of transposed/dq_warp.py: each warp acquires a block's
semaphore before its first piece. The first warp releases it, once the pieces of both are complete: they meet at a
barrier of their own.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.by_gradient.mainloop import Barrier
from kernels.blocksparse.backward.mainloop_mma import release, target_of
from kernels.blocksparse.backward.tile_iterator import block_at
from kernels.blocksparse.backward.tiling import DQ_COLUMNS
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.dq_warp import acquire
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier
from kernels.blocksparse.common.bulk import add_run


@cute.jit
def add_dq_of_group(w, group: Int32) -> None:
    """All pieces of the row that a multiplying warpgroup leaves in its buffer."""
    tiling, deterministic, ended_step = w.tiling, w.variant.deterministic, w.kernel.ended_step
    steps, piece = tiling.steps, cutlass.const_expr(tiling.step_m * DQ_COLUMNS)
    pieces = cutlass.const_expr(tiling.dim // DQ_COLUMNS // GROUPS)
    iterations = w.total * steps
    source = w.storage.sdQ.iterator + cute.assume(group * piece, divby=piece)
    if iterations > 0:
        turns.arrive_dq(DqBarrier.EMPTY, group)
    for step in cutlass.range(iterations, unroll=1):
        for i in cutlass.range_constexpr(pieces):
            turns.await_dq(DqBarrier.FULL, group)
            block = block_at(w.storage.sEntries, step // steps)
            if cutlass.const_expr(deterministic and i == 0):  # noqa: SIM102 (one is for the compiler)
                if step % steps == 0:
                    acquire(w, block)
            if cute.arch.lane_idx() == 0:
                offset = target_of(w, block, Int32(0)) + dq_accumulator.group_offset(tiling, step % steps, group)
                add_run(w.mdQ + cute.assume(offset + i * piece, divby=4), source, 4 * piece)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.sync_warp()
            if i + 1 < pieces or step + 1 < iterations:
                turns.arrive_dq(DqBarrier.EMPTY, group)
        if cutlass.const_expr(deterministic):
            release_ended(w, group, ended_step(step + 1, iterations))


@cute.jit
def release_ended(w, group: Int32, step: Int32) -> None:
    """Releases the block of a step whose adds have been issued, if it is the block's last one."""
    steps = w.tiling.steps
    if step % steps == steps - 1:
        cute.arch.cp_async_bulk_wait_group(0)
        if cute.arch.lane_idx() == 0:
            cute.arch.fence_proxy("async.global")
        cute.arch.sync_warp()
        cute.arch.barrier(barrier_id=int(Barrier.ADDED), number_of_threads=GROUPS * 32)
        if group == 0 and cute.arch.lane_idx() == 0:
            release(w, block_at(w.storage.sEntries, step // steps))
        cute.arch.sync_warp()
