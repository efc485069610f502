# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The two dQ warps: each adds the pieces of one multiplying warpgroup, by bulk reductions, so that none waits for the
other's pieces.

NOTE [ordered adds of two warps] As NOTE [ordered bulk adds] of transposed/dq_warp.py, but with a semaphore for each
step and warp (`semaphores_of_tile` of variant.py), all of which come to the rank of the step's block. Tiles of keys are
half as long as tiles of queries here: with one semaphore for a block of two steps, the next CTA would be more than a
step behind, and CTAs that begin a step after one another would all wait. A warp releases a step once its pieces are
complete, and then acquires the next one: while that is multiplied, not when it is there, as a piece that waits for its
semaphore fills the buffer of the next one. Before the pieces are complete it looks whether the next step is released
already, as most are: both take the time of a way to the L2 cache and back. It waits after its release alone: a CTA that
waits keeps no others waiting. The next step's block is in the entry buffer, as the warpgroup had awaited its Q or dO
before it handed over the last piece.
"""

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.mainloop_mma import semaphore_of, target_of
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.backward.tiling import DQ_COLUMNS
from kernels.blocksparse.backward.transposed import turns
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
                if step == 0:
                    acquire(w, step, group, Boolean(False))
            if cute.arch.lane_idx() == 0:
                offset = target_of(w, block, Int32(0)) + dq_accumulator.group_offset(tiling, step % steps, group)
                add_run(w.mdQ + cute.assume(offset + i * piece, divby=4), source, 4 * piece)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.sync_warp()
            if i + 1 < pieces or step + 1 < iterations:
                turns.arrive_dq(DqBarrier.EMPTY, group)
        if cutlass.const_expr(deterministic):
            following = cutlass.min(step + 1, iterations - 1)  # of the last step its own: nobody waits for that
            released = is_released(w, following, group)
            release(w, ended_step(step + 1, iterations), group)
            if step + 1 < iterations:
                acquire(w, step + 1, group, released)


@cute.jit
def is_released(w, step: Int32, group: Int32) -> Boolean:
    """True where the semaphore of a step's columns has come to the block's lock: it is acquired then."""
    block = block_at(w.storage.sEntries, step // w.tiling.steps)
    value = cute.arch.load(semaphore_of_step(w, block, step, group), Int32, sem="acquire", scope="gpu")
    return value == w.kernel.lock_of(block.rank, w.place[2])


@cute.jit
def acquire(w, step: Int32, group: Int32, released: Boolean) -> None:
    """Waits, in one lane, for the semaphore of a step's columns, unless that is acquired."""
    if cute.arch.lane_idx() == 0:
        if not released:
            wait(w, block_at(w.storage.sEntries, step // w.tiling.steps), step, group)
        cute.arch.fence_proxy("async.global")
    cute.arch.sync_warp()


@cute.jit
def release(w, step: Int32, group: Int32) -> None:
    """Releases, in one lane, the semaphore of a step's columns, whose adds have been issued."""
    cute.arch.cp_async_bulk_wait_group(0)
    if cute.arch.lane_idx() == 0:
        cute.arch.fence_proxy("async.global")
        add_one(w, block_at(w.storage.sEntries, step // w.tiling.steps), step, group)
    cute.arch.sync_warp()


@cute.jit
def wait(w, block: Block, step: Int32, group: Int32) -> None:
    """Waits until the semaphore of a step's columns equals its block's lock."""
    w.kernel.wait(semaphore_of_step(w, block, step, group), w.kernel.lock_of(block.rank, w.place[2]))


@cute.jit
def add_one(w, block: Block, step: Int32, group: Int32) -> None:
    """Lets the next block's adds to a step's columns begin."""
    w.kernel.release(semaphore_of_step(w, block, step, group))


@cute.jit
def semaphore_of_step(w, block: Block, step: Int32, group: Int32) -> cute.Pointer:
    """The semaphore of a warpgroup's columns of a step."""
    tiles = Int64(w.counts.batch * w.counts.heads_q) * w.counts.m_blocks
    return semaphore_of(w, block) + (step % w.tiling.steps * GROUPS + group) * tiles
