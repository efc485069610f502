# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warps of the transposed main loop: they add what each warpgroup left in shared memory, by bulk reductions.
Atomic adds have one warp for both warpgroups, ordered ones a warp for each.

NOTE [ordered bulk adds] A block has a semaphore for each warpgroup's share of dQ (`semaphores_of_tile` of variant.py).
It is acquired before the reductions of the block's first step and released when those of its last step are complete.
The first block of a tile has bulk copies in place of reductions: NOTE [first add] of dq_accumulator.py. Both take the
path of the async proxy: a fence orders them after the acquire, and `wait_group`, not only its `.read`, and a fence
order the release after them. The warpgroup waits for none of it but for its buffer, which is empty once it has been
read; and with a dQ warp of its own it does not wait for the other warpgroup's adds either.
"""

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.mainloop_mma import add_run, release, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier


@cute.jit
def add_steps(w, before: Int32) -> Int32:
    """Adds both shares of all steps of a tile that has blocks, atomically. before: steps of earlier tiles; returns how
    many there are now."""
    steps = w.tiling.steps
    iterations = (w.end_entry - w.first_entry) * steps
    for step in cutlass.range(iterations, unroll=1):
        buffer = turns.buffer_of(w, before + step)
        for group in cutlass.range_constexpr(GROUPS):
            turns.await_dq(DqBarrier.FULL, group, buffer)
            add_share(w, step, group, buffer)
        for group in cutlass.range_constexpr(GROUPS):
            empty(group, GROUPS - 1 - group, buffer)
        if (step + 1) % steps == 0:
            turns.end_window(w, w.first_entry + (step + 1) // steps)
    return before + iterations


@cute.jit
def add_steps_in_order(w, group: Int32, before: Int32) -> Int32:
    """Adds a warpgroup's share of all steps of a tile that has blocks: NOTE [ordered bulk adds]. before: as for
    `add_steps`, and what it returns."""
    steps, ended_step = w.tiling.steps, w.kernel.ended_step
    iterations = (w.end_entry - w.first_entry) * steps
    for step in cutlass.range(iterations, unroll=1):
        buffer = turns.buffer_of(w, before + step)
        turns.await_dq(DqBarrier.FULL, group, buffer)
        if step % steps == 0:
            acquire(w, block_at(w.storage.sEntries, w.first_entry + step // steps), group)
        add_share(w, step, group, buffer)
        empty(group, 0, buffer)
        release_ended(w, ended_step(step + 1, iterations), group)
        if (step + 1) % steps == 0:
            turns.end_window(w, w.first_entry + (step + 1) // steps)
    return before + iterations


@cute.jit
def add_share(w, step: Int32, group: Int32, buffer: Int32) -> None:
    """Starts adding a warpgroup's share of a step, which lies in a buffer, as a bulk group."""
    tiling, share = w.tiling, cutlass.const_expr(w.tiling.step_m * w.tiling.dim // GROUPS)
    block = block_at(w.storage.sEntries, w.first_entry + step // tiling.steps)
    if cute.arch.lane_idx() == 0:
        offset = target_of(w, block, Int32(0)) + dq_accumulator.group_offset(tiling, step % tiling.steps, group)
        source = w.storage.sdQ.iterator + cute.assume((buffer * GROUPS + group) * share, divby=share)
        add_run(w, block.rank, w.mdQ + cute.assume(offset, divby=4), source, 4 * share)
    cute.arch.cp_async_bulk_commit_group()


@cute.jit
def empty(group: Int32, later: cutlass.Constexpr, buffer: Int32) -> None:
    """A warpgroup's buffer has been read. later: bulk groups that were started after it."""
    cute.arch.cp_async_bulk_wait_group(later, read=True)
    cute.arch.sync_warp()
    turns.arrive_dq(DqBarrier.EMPTY, group, buffer)


@cute.jit
def acquire(w, block: Block, group: Int32) -> None:
    """Waits in one lane for a block's semaphore of a warpgroup's share."""
    if cute.arch.lane_idx() == 0:
        wait(w, block, group)
        cute.arch.fence_proxy("async.global")
    cute.arch.sync_warp()


@cute.jit
def release_ended(w, step: Int32, group: Int32) -> None:
    """Releases the block of a step whose adds have been issued, if it is the block's last one."""
    steps = w.tiling.steps
    if step % steps == steps - 1:
        if cute.arch.lane_idx() == 0:
            release_added(w, block_at(w.storage.sEntries, w.first_entry + step // steps), group)
        cute.arch.sync_warp()


@cute.jit
def release_added(w, block: Block, group: Int32) -> None:
    """Releases a block's semaphore of a warpgroup's share when all adds that this thread has committed are complete."""
    cute.arch.cp_async_bulk_wait_group(0)
    cute.arch.fence_proxy("async.global")
    release(w, block, group)
