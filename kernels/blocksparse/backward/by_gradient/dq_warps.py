# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warps: they add the pieces of the multiplying warpgroups by bulk reductions. Atomic adds: a warp for each
warpgroup, so that none waits for the other's pieces.

NOTE [ordered adds of three warps] As NOTE [ordered bulk adds] of transposed/dq_warps.py, but with a semaphore for each
step and warp (`semaphores_of_tile` of variant.py), all of which come to the rank of the step's block. Tiles of keys are
half as long as tiles of queries here: with one semaphore for a block of two steps, the next CTA would be more than a
step behind, and CTAs that begin a step after one another would all wait. A warp releases a step once its pieces are
complete, and then acquires the next one: while that is multiplied, not when it is there, as a piece that waits for its
semaphore fills the buffer of the next one. Before the pieces are complete it looks whether the next step is released
already, as most are: both take the time of a way to the L2 cache and back. It waits after its release alone: a CTA that
waits keeps no others waiting. All of that takes a large part of a step. So a warp has either the first pieces of a
warpgroup or the last ones of both, and a step's time from one to the next.

The next step's block is in the entry buffer long before: NOTE [entry buffer] of transposed/loads.py looks up half a
buffer at once, HALF - LATE entries ahead.
"""

import cutlass
from cutlass import Boolean, Int32, cute

from kernels.blocksparse.backward import dq_accumulator, mainloop_mma
from kernels.blocksparse.backward.by_gradient.mainloop import PIECES, Barrier
from kernels.blocksparse.backward.mainloop_mma import add_run, is_open, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.backward.tiling import DQ_COLUMNS
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier

WARPS = GROUPS + 1  # that add in order: the first pieces of each warpgroup, the last ones of both


@cute.jit
def add_dq(w, warp: Int32) -> None:
    """The work of a dQ warp, 0 to WARPS - 1."""
    if cutlass.const_expr(w.variant.deterministic):
        if warp < GROUPS:
            add_first_pieces(w, warp)
        else:
            add_last_pieces(w)
    elif warp < GROUPS:
        add_all_pieces(w, warp)


@cute.jit
def add_all_pieces(w, group: Int32) -> None:
    """Adds all pieces of the row that a multiplying warpgroup leaves in its buffer."""
    iterations = w.total * w.tiling.steps
    if iterations > 0:
        turns.arrive_dq(DqBarrier.EMPTY, group)
    for step in cutlass.range(iterations, unroll=1):
        for piece in cutlass.range_constexpr(PIECES):
            turns.await_dq(DqBarrier.FULL, group)
            add_piece(w, step, group, piece)
            empty(w, group, 0, piece + 1 < PIECES or step + 1 < iterations)


@cute.jit
def add_first_pieces(w, group: Int32) -> None:
    """Adds, in order, the first piece of each step of a warpgroup."""
    iterations = w.total * w.tiling.steps
    if iterations > 0:
        turns.arrive_dq(DqBarrier.EMPTY, group)
    for step in cutlass.range(iterations, unroll=1):
        turns.await_dq(DqBarrier.FULL, group)
        if step == 0:
            acquire(w, step, group, Boolean(False))
        add_piece(w, step, group, 0)
        empty(w, group, 0, True)
        hand_on(w, step, iterations, group)


@cute.jit
def add_last_pieces(w) -> None:
    """Adds, in order, the last piece of each step of both warpgroups."""
    iterations, warp = w.total * w.tiling.steps, Int32(GROUPS)
    for step in cutlass.range(iterations, unroll=1):
        for group in cutlass.range_constexpr(GROUPS):
            turns.await_dq(Barrier.LAST, group)
            if cutlass.const_expr(group == 0):  # noqa: SIM102 (one is for the compiler)
                if step == 0:
                    acquire(w, step, warp, Boolean(False))
            add_piece(w, step, group, PIECES - 1)
        for group in cutlass.range_constexpr(GROUPS):
            empty(w, group, GROUPS - 1 - group, step + 1 < iterations)
        hand_on(w, step, iterations, warp)


@cute.jit
def add_piece(w, step: Int32, group: Int32, piece: cutlass.Constexpr) -> None:
    """Starts adding a piece of a step, as a bulk group."""
    tiling, size = w.tiling, cutlass.const_expr(w.tiling.step_m * DQ_COLUMNS)
    block = block_at(w.storage.sEntries, step // tiling.steps)
    if cute.arch.lane_idx() == 0:
        offset = target_of(w, block, Int32(0)) + dq_accumulator.group_offset(tiling, step % tiling.steps, group)
        source = w.storage.sdQ.iterator + cute.assume(group * size, divby=size)
        add_run(w, block.rank, w.mdQ + cute.assume(offset + piece * size, divby=4), source, 4 * size)
    cute.arch.cp_async_bulk_commit_group()


@cute.jit
def empty(w, group: Int32, later: cutlass.Constexpr, needed: Boolean) -> None:
    """A warpgroup's buffer has been read, where another piece comes. later: bulk groups that were started after it."""
    cute.arch.cp_async_bulk_wait_group(later, read=True)
    cute.arch.sync_warp()
    if needed:
        turns.arrive_dq(DqBarrier.EMPTY, group)


@cute.jit
def hand_on(w, step: Int32, iterations: Int32, warp: Int32) -> None:
    """Releases a step, whose adds have been issued, and acquires the next one."""
    following = cutlass.min(step + 1, iterations - 1)  # of the last step its own: nobody waits for that
    released = is_released(w, following, warp)
    release(w, w.kernel.ended_step(step + 1, iterations), warp)
    if step + 1 < iterations:
        acquire(w, step + 1, warp, released)


@cute.jit
def is_released(w, step: Int32, warp: Int32) -> Boolean:
    """True where a step's semaphore has come to the block's lock: it is acquired then."""
    return is_open(w, block_of(w, step), part_of(w, step, warp))


@cute.jit
def acquire(w, step: Int32, warp: Int32, released: Boolean) -> None:
    """Waits, in one lane, for a step's semaphore, unless that is acquired."""
    if cute.arch.lane_idx() == 0:
        if not released:
            wait(w, block_of(w, step), part_of(w, step, warp))
        cute.arch.fence_proxy("async.global")
    cute.arch.sync_warp()


@cute.jit
def release(w, step: Int32, warp: Int32) -> None:
    """Releases, in one lane, a step's semaphore, once the adds that this warp has issued are complete."""
    cute.arch.cp_async_bulk_wait_group(0)
    if cute.arch.lane_idx() == 0:
        cute.arch.fence_proxy("async.global")
        mainloop_mma.release(w, block_of(w, step), part_of(w, step, warp))
    cute.arch.sync_warp()


def block_of(w, step: Int32) -> Block:
    """The block of a step."""
    return block_at(w.storage.sEntries, step // w.tiling.steps)


def part_of(w, step: Int32, warp: Int32) -> Int32:
    """Which semaphore of the block's tile is that of the pieces of a step that a warp adds."""
    return step % w.tiling.steps * WARPS + warp
