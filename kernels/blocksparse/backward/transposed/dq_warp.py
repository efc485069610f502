# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warp of the transposed main loop: adds what each warpgroup left in shared memory, by bulk reductions.

NOTE [ordered bulk adds] A block's semaphore is acquired before its first step's reductions and released when those of
its last step are complete. The first block of a tile has bulk copies in place of reductions: NOTE [first add] of
dq_accumulator.py. Both take the path of the async proxy: a fence orders them after the acquire, and
`wait_group`, not only its `.read`, and a fence order the release after them. Multiplying warps wait for none of it but
for their buffer, which is empty once it has been read.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.mainloop_mma import add_run, release, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier


@cute.jit
def add_dq_of_steps(w) -> None:
    """All steps of a tile that has blocks."""
    tiling, deterministic, ended_step = w.tiling, w.variant.deterministic, w.kernel.ended_step
    steps, share = tiling.steps, cutlass.const_expr(tiling.step_m * tiling.dim // GROUPS)
    iterations = (w.end_entry - w.first_entry) * steps
    for group in cutlass.range_constexpr(GROUPS):
        turns.arrive_dq(DqBarrier.EMPTY, group)
    for step in cutlass.range(iterations, unroll=1):
        for group in cutlass.range_constexpr(GROUPS):
            turns.await_dq(DqBarrier.FULL, group)
            block = block_at(w.storage.sEntries, w.first_entry + step // steps)
            if cutlass.const_expr(deterministic and group == 0):  # noqa: SIM102 (one is for the compiler)
                if step % steps == 0:
                    acquire(w, block)
            if cute.arch.lane_idx() == 0:
                offset = target_of(w, block, Int32(0)) + dq_accumulator.group_offset(tiling, step % steps, group)
                target = w.mdQ + cute.assume(offset, divby=4)
                add_run(w, block.rank, target, w.storage.sdQ.iterator + group * share, 4 * share)
            cute.arch.cp_async_bulk_commit_group()
        for group in cutlass.range_constexpr(GROUPS):
            cute.arch.cp_async_bulk_wait_group(GROUPS - 1 - group, read=True)
            cute.arch.sync_warp()
            if step + 1 < iterations:
                turns.arrive_dq(DqBarrier.EMPTY, group)
        if cutlass.const_expr(deterministic):
            release_ended(w, ended_step(step + 1, iterations))
        if (step + 1) % steps == 0:
            turns.end_window(w, w.first_entry + (step + 1) // steps)


@cute.jit
def acquire(w, block: Block) -> None:
    """Waits in one lane for a block's semaphore."""
    if cute.arch.lane_idx() == 0:
        wait(w, block)
        cute.arch.fence_proxy("async.global")
    cute.arch.sync_warp()


@cute.jit
def release_ended(w, step: Int32) -> None:
    """Releases the block of a step whose adds have been issued, if it is the block's last one."""
    steps = w.tiling.steps
    if step % steps == steps - 1:
        cute.arch.cp_async_bulk_wait_group(0)
        if cute.arch.lane_idx() == 0:
            cute.arch.fence_proxy("async.global")
            release(w, block_at(w.storage.sEntries, w.first_entry + step // steps))
        cute.arch.sync_warp()
