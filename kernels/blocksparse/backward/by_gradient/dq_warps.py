# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warps: they add the pieces of the multiplying warpgroups by bulk reductions. Atomic adds: a warp for each
warpgroup, so that none waits for the other's pieces.

NOTE [ordered adds in turns] As NOTE [ordered bulk adds] of transposed/dq_warps.py, but with a semaphore for each half
of a step (`semaphores_of_tile` of variant.py): the first pieces of both warpgroups, or their last ones. All of them
come to the rank of the step's block. Tiles of keys are half as long as tiles of queries here: with one semaphore for a
block of two steps, the next CTA would be more than a step behind, and CTAs that begin a step apart would all wait.

Three warps take the halves in turns: half i of a row is that of warp i % WARPS. A half takes its warp longer than the
multiplying warpgroups: the pieces are read from their buffers, the adds completed, the half released by a fence of the
GPU, and the warp's next half acquired, each of which takes the time of a way to the L2 cache and back. The warp has the
time of three halves for it. It acquires its next half when it has released the last one, not when the piece is there:
a piece that waits for its semaphore fills the buffer of the next one. Before the adds are complete it looks whether
that half is released already. It waits after its own release alone: a CTA that waits keeps no others waiting.

The next step's block is in the entry buffer long before: NOTE [entry buffer] of transposed/loads.py looks up half a
buffer at once, HALF - LATE entries ahead.
"""

import cutlass
from cutlass import Boolean, Int32, cute

from kernels.blocksparse.backward import dq_accumulator, mainloop_mma
from kernels.blocksparse.backward.by_gradient import exchange
from kernels.blocksparse.backward.by_gradient.mainloop import (
    PIECES,
    WARPS,
    buffer_of,
    full_in_turn,
    hand_overs,
    runs_of_dq,
    shares_tiles,
    turns_of_step,
)
from kernels.blocksparse.backward.mainloop_mma import add_run, is_open, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.backward.tiling import DQ_COLUMNS, floats_of_piece, pieces_of_dq
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier


@cute.jit
def add_dq(w, warp: Int32) -> None:
    """The work of a dQ warp, 0 to WARPS - 1."""
    if cutlass.const_expr(w.variant.deterministic):
        add_in_turns(w, warp)
    else:
        for group in cutlass.range_constexpr(GROUPS):
            if warp == group:
                add_all_pieces(w, group)


@cute.jit
def add_all_pieces(w, group: cutlass.Constexpr) -> None:
    """Adds all pieces of the row that a multiplying warpgroup leaves in its buffers."""
    iterations, handed = w.total * w.tiling.steps, cutlass.const_expr(hand_overs(w, group))
    drained = cutlass.const_expr(shares_tiles(w, group))
    if iterations > 0:
        turns.arrive_dq(DqBarrier.EMPTY, group)
    for step in cutlass.range(iterations, unroll=1):
        for i in cutlass.range_constexpr(len(handed)):
            turns.await_dq(DqBarrier.FULL, group)
            if cutlass.const_expr(w.tiling.exchanges):
                add_columns(w, step, group)
            else:
                before = cutlass.const_expr(handed[i].start * w.tiling.step_m * DQ_COLUMNS)
                add_runs(w, step, group, before, runs_of_dq(w, group, handed[i]))
            empty(group, drained or i + 1 < len(handed) or step + 1 < iterations)


@cute.jit
def add_in_turns(w, warp: Int32) -> None:
    """Adds, in order, every WARPS-th half of the row's steps, from that of the warp's own number on."""
    in_turn = cutlass.const_expr(turns_of_step(w))
    halves = w.total * (w.tiling.steps * in_turn)
    if warp == 0 and halves > 0:
        for group in cutlass.range_constexpr(GROUPS):
            turns.arrive_dq(DqBarrier.EMPTY, group)
    for half in cutlass.range(warp, halves, WARPS, unroll=1):
        for group in cutlass.range_constexpr(GROUPS):
            pieces = cutlass.const_expr(pieces_of_dq(w.tiling, group))
            if cutlass.const_expr(pieces == in_turn):
                add_half(w, half, group, shares_tiles(w, group) or half + 1 < halves)
            elif half % PIECES < pieces:
                add_half(w, half, group, half + PIECES < halves)
        hand_on(w, half, halves)


@cute.jit
def add_half(w, half: Int32, group: cutlass.Constexpr, needed: Boolean) -> None:
    """Adds a warpgroup's piece of half a step. needed: another piece of the warpgroup comes."""
    turns.await_dq(full_in_turn(half), group)
    if cutlass.const_expr(group == 0):  # noqa: SIM102 (one is for the compiler)
        if half < WARPS:
            acquire(w, half, Boolean(False))
    if cutlass.const_expr(w.tiling.exchanges):
        add_columns(w, half, group)
    else:
        add_piece(w, half // PIECES, group, half % PIECES)
    empty(group, needed)


@cute.jit
def add_columns(w, step: Int32, group: cutlass.Constexpr) -> None:
    """Starts adding a step's dQ of a warpgroup whose CTA exchanges dS, as a bulk group."""
    tiling = w.tiling
    before = (exchange.first_column(tiling, w.rank, group) - group * (tiling.dim // GROUPS)) * tiling.step_m
    add_runs(w, step, group, before, [(buffer_of(w, group), exchange.floats_to_add(tiling, w.rank, group))])


@cute.jit
def add_piece(w, step: Int32, group: cutlass.Constexpr, piece: Int32) -> None:
    """Starts adding a piece of a step, whose number the warp learns as it runs, as a bulk group."""
    first = cutlass.const_expr(floats_of_piece(w.tiling, group, 0))
    last = cutlass.const_expr(floats_of_piece(w.tiling, group, pieces_of_dq(w.tiling, group) - 1))
    floats = first
    if cutlass.const_expr(last != first):
        floats = Int32(first)
        if piece > 0:
            floats = Int32(last)
    add_runs(w, step, group, piece * first, [(buffer_of(w, group), floats)])


@cute.jit
def add_runs(w, step: Int32, group: cutlass.Constexpr, before: Int32, runs: list) -> None:
    """Starts adding runs of a warpgroup's dQ of a step, (address in shared memory, floats) each, as a bulk group.
    before: the warpgroup's floats before them."""
    block = block_at(w.storage.sEntries, step // w.tiling.steps)
    if cute.arch.lane_idx() == 0:
        offset = target_of(w, block, Int32(0)) + dq_accumulator.group_offset(w.tiling, step % w.tiling.steps, group)
        target = w.mdQ + cute.assume(offset + before, divby=4)
        for source, floats in runs:
            add_run(w, block.rank, target, source, 4 * floats)
            target += floats
    cute.arch.cp_async_bulk_commit_group()


@cute.jit
def empty(group: Int32, needed: Boolean) -> None:
    """A warpgroup's buffers have been read, where it waits for that (`needed`)."""
    cute.arch.cp_async_bulk_wait_group(0, read=True)
    cute.arch.sync_warp()
    if needed:
        turns.arrive_dq(DqBarrier.EMPTY, group)


@cute.jit
def hand_on(w, half: Int32, halves: Int32) -> None:
    """Releases a half of a step, whose adds have been issued, and acquires this warp's next one."""
    following = half + WARPS
    released = is_released(w, cutlass.min(following, halves - 1))  # behind the last one: read in vain
    release(w, w.kernel.ended_step(half + 1, halves))
    if following < halves:
        acquire(w, following, released)


@cute.jit
def is_released(w, half: Int32) -> Boolean:
    """True where a half's semaphore has come to the block's lock: it is acquired then."""
    return is_open(w, block_of(w, half), part_of(w, half))


@cute.jit
def acquire(w, half: Int32, released: Boolean) -> None:
    """Waits, in one lane, for the semaphore of half a step, unless that is acquired."""
    if cute.arch.lane_idx() == 0:
        if not released:
            wait(w, block_of(w, half), part_of(w, half))
        cute.arch.fence_proxy("async.global")
    cute.arch.sync_warp()


@cute.jit
def release(w, half: Int32) -> None:
    """Releases, in one lane, the semaphore of half a step, once the adds that this warp has issued are complete."""
    cute.arch.cp_async_bulk_wait_group(0)
    if cute.arch.lane_idx() == 0:
        cute.arch.fence_proxy("async.global")
        mainloop_mma.release(w, block_of(w, half), part_of(w, half))
    cute.arch.sync_warp()


def block_of(w, half: Int32) -> Block:
    """The block of half a step."""
    return block_at(w.storage.sEntries, half // (w.tiling.steps * turns_of_step(w)))


def part_of(w, half: Int32) -> Int32:
    """Which of its tile's semaphores half a step has. Where CTAs exchange dS, each CTA's half of the columns."""
    if w.tiling.exchanges:
        return half % w.tiling.steps * exchange.CTAS + w.rank
    return half % (w.tiling.steps * PIECES)
