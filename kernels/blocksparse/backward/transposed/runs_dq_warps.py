# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warps of the kernel that works through runs of tiles, runs_kernel.py: as dq_warps.py. Atomic adds have one
warp.

NOTE [ordered runs] A step of 80 queries may lie in two tiles, so a tile's semaphore cannot say what has been added.
Ordered adds have runs only where all tiles of keys have the same steps (`has_ordered_runs` of
launch/backward_tuning.py): then each step has a semaphore, one of the two of the tile in which it begins, and ranks of
its two tiles are equal. Steps of a row are 80 queries apart where they are wide, so one or two begin in each tile.

Two warps take the steps in turns, and add the shares of both warpgroups. A step takes its warp longer than the
multiplying warpgroups: the shares are read from their buffers, the adds completed, the step released by a fence of the
GPU, and the warp's next one acquired, each of which takes the time of a way to the L2 cache and back. The warp has the
time of two steps for it. It acquires its next step when it has released the last one, as a share that waits for its
semaphore fills the buffer; before the adds are complete it looks whether that step is released already. A piece has an
even number of steps, so a warp has the same steps of each.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from kernels.blocksparse.backward import mainloop_mma
from kernels.blocksparse.backward.mainloop_mma import add_run, is_open, rank_of, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.backward.tiling import RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.dq_warps import empty
from kernels.blocksparse.backward.transposed.runs_loads import RUN_STEPS
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier


class Step(NamedTuple):
    """A step of a dQ warp.

    block         the first tile of its piece
    tiles, parts  of the piece, tiles and steps
    rows          queries of the step
    tile, offset  where it begins: in which tile of the piece, at which query of it
    """

    block: Block
    tiles: Int32
    parts: Int32
    rows: Int32
    tile: Int32
    offset: Int32

    def here(self, tile_m: int) -> Int32:
        """Rows in the tile in which it begins."""
        return cutlass.min(self.rows, tile_m - self.offset)


@cute.jit
def step_at(w, entry: Int32, part: Int32) -> Step:
    """Step `part` of the piece that begins with an entry, which must be in the entry buffer."""
    block = block_at(w.storage.sEntries, entry)
    tiles, parts, rows = Int32(1), Int32(w.tiling.steps), Int32(w.tiling.step_m)
    if block.starts_run:
        tiles, parts, rows = Int32(RUN_TILES), Int32(RUN_STEPS), Int32(RUN_STEP)
    first = part * rows
    return Step(block, tiles, parts, rows, first // w.tiling.tile_m, first % w.tiling.tile_m)


@cute.jit
def add_pieces(w, number: Int32) -> Int32:
    """Adds both shares of all steps of a tile that has blocks, atomically. number: of its first step, counted over
    tiles; returns that of the next tile's."""
    entry, part = w.first_entry, Int32(0)
    while entry < w.end_entry:
        turns.await_window(w, entry)
        buffer, step = turns.buffer_of(w, number), step_at(w, entry, part)
        tiles = tiles_of_step(w, entry, step)
        for group in cutlass.range_constexpr(GROUPS):
            turns.await_dq(DqBarrier.FULL, group, buffer)
            if cute.arch.lane_idx() == 0:
                add_first(w, entry, step, tiles, group, buffer)
                add_rest(w, entry, step, tiles, group, buffer)
            cute.arch.cp_async_bulk_commit_group()
        following, part = behind(entry, part, step)
        for group in cutlass.range_constexpr(GROUPS):
            empty(group, GROUPS - 1 - group, buffer)
        if following > entry:
            turns.end_window(w, following)
        entry = following
        number += 1
    return number


@cute.jit
def add_pieces_in_turns(w, turn: Int32, number: Int32) -> Int32:
    """Adds, in order, both shares of every second step of a tile that has blocks: NOTE [ordered runs]. turn: the first
    of them, 0 or 1; number: as for `add_pieces`, and what it returns."""
    entry, part, acquired, ended_step = w.first_entry, turn, Boolean(False), w.kernel.ended_step
    turns.await_window(w, entry)
    while entry < w.end_entry:
        parts = step_at(w, entry, part).parts
        for group in cutlass.range_constexpr(GROUPS):
            turns.await_dq(DqBarrier.FULL, group, turn)
            if cutlass.const_expr(group == 0):  # noqa: SIM102 (one is for the compiler)
                if not acquired:
                    acquire(w, entry, part, Boolean(False))
            if cute.arch.lane_idx() == 0:
                step = step_at(w, entry, part)
                tiles = tiles_of_step(w, entry, step)
                add_first(w, entry, step, tiles, group, Int32(0))
                add_rest(w, entry, step, tiles, group, Int32(0))
            cute.arch.cp_async_bulk_commit_group()
            empty(group, 0, Int32(0))
        following, following_part = entry, part + GROUPS
        if following_part >= parts:
            following += step_at(w, entry, part).tiles
            following_part = turn
            if following < w.end_entry:
                turns.await_window(w, following)
        acquired = following < w.end_entry
        hand_on(w, entry, ended_step(part + 1, parts), following, following_part, acquired)
        if following > entry:
            turns.end_window(w, following)
            number += parts
        entry, part = following, following_part
    return number


@cute.jit
def hand_on(w, entry: Int32, part: Int32, following: Int32, following_part: Int32, follows: Boolean) -> None:
    """Releases a step, whose adds have been issued, and acquires this warp's next one, if it `follows` in the tile."""
    released = Boolean(False)
    if follows:
        released = is_open(w, block_of(w, following, following_part), semaphore_part(w, following, following_part))
    cute.arch.cp_async_bulk_wait_group(0)
    if cute.arch.lane_idx() == 0:
        cute.arch.fence_proxy("async.global")
        mainloop_mma.release(w, block_of(w, entry, part), semaphore_part(w, entry, part))
    cute.arch.sync_warp()
    if follows:
        acquire(w, following, following_part, released)


@cute.jit
def acquire(w, entry: Int32, part: Int32, released: Boolean) -> None:
    """Waits, in one lane, for a step's semaphore, unless that is acquired."""
    if cute.arch.lane_idx() == 0:
        if not released:
            wait(w, block_of(w, entry, part), semaphore_part(w, entry, part))
        cute.arch.fence_proxy("async.global")
    cute.arch.sync_warp()


@cute.jit
def block_of(w, entry: Int32, part: Int32) -> Block:
    """The tile in which a step begins."""
    return block_at(w.storage.sEntries, entry + step_at(w, entry, part).tile)


@cute.jit
def semaphore_part(w, entry: Int32, part: Int32) -> Int32:
    """Which of the semaphores of that tile a step has: as many steps begin in the tile before it."""
    step = step_at(w, entry, part)
    return Int32(step.offset >= step.rows)


@cute.jit
def behind(entry: Int32, part: Int32, step: Step) -> tuple[Int32, Int32]:
    """(entry of the piece, which step of it) of the step that comes after one."""
    part += 1
    if part == step.parts:
        entry += step.tiles
        part = Int32(0)
    return entry, part


@cute.jit
def tiles_of_step(w, entry: Int32, step: Step) -> tuple[Int64, Int64]:
    """The offsets in the dQ accumulator of the tile in which a step begins, and of the one behind it in its piece; of
    the same tile twice where the step lies in one."""
    first = target_of(w, block_at(w.storage.sEntries, entry + step.tile), Int32(0))
    rest = first
    if step.here(w.tiling.tile_m) < step.rows:
        rest = target_of(w, block_at(w.storage.sEntries, entry + step.tile + 1), Int32(0))
    return first, rest


@cute.jit
def add_first(w, entry: Int32, step: Step, tiles: tuple[Int64, Int64], group: Int32, buffer: Int32) -> None:
    """Adds one warpgroup's share of a step to the tile in which it begins: NOTE [dQ by dim]. tiles: as
    `tiles_of_step` gives them."""
    half = cutlass.const_expr(w.tiling.dim // GROUPS)
    offset = tiles[0] + (group * w.tiling.tile_m + step.offset) * half
    target, source = w.mdQ + cute.assume(offset, divby=4), storage_of(w, group, buffer)
    add_run(w, rank_of(w, entry + step.tile), target, source, step.here(w.tiling.tile_m) * (4 * half))


@cute.jit
def add_rest(w, entry: Int32, step: Step, tiles: tuple[Int64, Int64], group: Int32, buffer: Int32) -> None:
    """Adds what is left of it, if anything, to the tile after that."""
    half, here = cutlass.const_expr(w.tiling.dim // GROUPS), step.here(w.tiling.tile_m)
    if here < step.rows:
        rest = storage_of(w, group, buffer) + cute.assume(here * half, divby=4)
        target = w.mdQ + cute.assume(tiles[1] + group * (w.tiling.tile_m * half), divby=4)
        add_run(w, rank_of(w, entry + step.tile + 1), target, rest, (step.rows - here) * (4 * half))


def storage_of(w, group: Int32, buffer: Int32) -> cute.Pointer:
    """A warpgroup's share of dQ in a buffer in shared memory."""
    share = RUN_STEP * w.tiling.dim // GROUPS
    return w.storage.sdQ.iterator + cute.assume((buffer * GROUPS + group) * share, divby=share)
