# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warps of the kernel that works through runs of tiles, runs_kernel.py: as dq_warps.py.

NOTE [ordered runs] A step of 80 queries may lie in two tiles, each with a semaphore. What belongs to the first one is
added first. Where the second one's semaphore has its rank by then, the rest is added at once, and the first tile is
released when all of it is complete, as a tile is that ends with its step: NOTE [ordered bulk adds] of dq_warps.py.
Otherwise the first tile's adds are completed and it is released, and only then the second tile's semaphore is waited
for: a CTA that waits keeps no other waiting for adds that it has long issued.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from kernels.blocksparse.backward.mainloop_mma import add_run, is_open, rank_of, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.backward.tiling import RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.dq_warps import acquire, empty, release_added
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
        buffer = turns.buffer_of(w, number)
        for group in cutlass.range_constexpr(GROUPS):
            turns.await_dq(DqBarrier.FULL, group, buffer)
            step = step_at(w, entry, part)
            if cute.arch.lane_idx() == 0:
                add_first(w, entry, step, group, buffer)
                add_rest(w, entry, step, group, buffer)
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
def add_pieces_in_order(w, group: Int32, number: Int32) -> Int32:
    """Adds a warpgroup's share of all steps of a tile that has blocks: NOTE [ordered runs]. What a step is, is read
    again after each wait: such a warp has few registers. number: as for `add_pieces`, and what it returns."""
    entry, part, ended_step = w.first_entry, Int32(0), w.kernel.ended_step
    while entry < w.end_entry:
        turns.await_dq(DqBarrier.FULL, group, turns.buffer_of(w, number))
        ended = ended_step(part + 1, step_at(w, entry, part).parts)
        released = add_step_in_order(w, entry, part, group, ended == part, turns.buffer_of(w, number))
        following, following_part = behind(entry, part, step_at(w, entry, part))
        empty(group, 0, turns.buffer_of(w, number))
        release_ended(w, entry, step_at(w, entry, ended), group, released)
        if following > entry:
            turns.end_window(w, following)
        entry, part = following, following_part
        number += 1
    return number


@cute.jit
def add_step_in_order(w, entry: Int32, part: Int32, group: Int32, ends: Boolean, buffer: Int32) -> Int32:
    """Starts adding a warpgroup's share of a step to the tiles in which it lies. 1 where the first of two has been
    released, in the lane that adds. ends: whether the first one has no adds to come."""
    step = step_at(w, entry, part)
    if step.offset == 0:
        acquire(w, block_at(w.storage.sEntries, entry + step.tile), group)
    if cute.arch.lane_idx() == 0:
        add_first(w, entry, step, group, buffer)
    cute.arch.cp_async_bulk_commit_group()
    return cross(w, entry, step_at(w, entry, part), group, ends, buffer)


@cute.jit
def behind(entry: Int32, part: Int32, step: Step) -> tuple[Int32, Int32]:
    """(entry of the piece, which step of it) of the step that comes after one."""
    part += 1
    if part == step.parts:
        entry += step.tiles
        part = Int32(0)
    return entry, part


@cute.jit
def cross(w, entry: Int32, step: Step, group: Int32, ends: Boolean, buffer: Int32) -> Int32:
    """Ordered adds: the rest of a step that lies in two tiles, NOTE [ordered runs]. 1 where that has released the first
    one, in the lane that adds. ends: whether the first one has no adds to come."""
    released = Int32(0)
    if step.here(w.tiling.tile_m) < step.rows:
        if cute.arch.lane_idx() == 0:
            first, second = (block_at(w.storage.sEntries, entry + step.tile + i) for i in range(2))
            if not is_open(w, second, group):
                if ends:
                    release_added(w, first, group)
                    released = Int32(1)
                wait(w, second, group)
            cute.arch.fence_proxy("async.global")
            add_rest(w, entry, step, group, buffer)
            cute.arch.cp_async_bulk_commit_group()
        cute.arch.sync_warp()
    return released


@cute.jit
def release_ended(w, entry: Int32, step: Step, group: Int32, released: Int32) -> None:
    """Releases the tile in which a step begins, if that is its last one, unless it has been `released`."""
    if step.offset + step.rows >= w.tiling.tile_m:
        if (cute.arch.lane_idx() == 0) & (released == 0):
            release_added(w, block_at(w.storage.sEntries, entry + step.tile), group)
        cute.arch.sync_warp()


@cute.jit
def add_first(w, entry: Int32, step: Step, group: Int32, buffer: Int32) -> None:
    """Adds one warpgroup's share of a step to the tile in which it begins: NOTE [dQ by dim]. entry: of its piece."""
    half = cutlass.const_expr(w.tiling.dim // GROUPS)
    offset = share_of(w, step, step.tile, group) + step.offset * half
    target, source = w.mdQ + cute.assume(offset, divby=4), storage_of(w, group, buffer)
    add_run(w, rank_of(w, entry + step.tile), target, source, step.here(w.tiling.tile_m) * (4 * half))


@cute.jit
def add_rest(w, entry: Int32, step: Step, group: Int32, buffer: Int32) -> None:
    """Adds what is left of it, if anything, to the tile after that."""
    half, here = cutlass.const_expr(w.tiling.dim // GROUPS), step.here(w.tiling.tile_m)
    if here < step.rows:
        offset, source = share_of(w, step, step.tile + 1, group), storage_of(w, group, buffer)
        rest = source + cute.assume(here * half, divby=4)
        target = w.mdQ + cute.assume(offset, divby=4)
        add_run(w, rank_of(w, entry + step.tile + 1), target, rest, (step.rows - here) * (4 * half))


def share_of(w, step: Step, tile: Int32, group: Int32) -> Int64:
    """The offset in the dQ accumulator of a warpgroup's share of a tile of a step's piece."""
    tile_m, dim = w.tiling.tile_m, w.tiling.dim
    return target_of(w, step.block, Int32(0)) + (Int64(tile) * tile_m * dim + group * tile_m * (dim // GROUPS))


def storage_of(w, group: Int32, buffer: Int32) -> cute.Pointer:
    """A warpgroup's share of dQ in a buffer in shared memory."""
    share = RUN_STEP * w.tiling.dim // GROUPS
    return w.storage.sdQ.iterator + cute.assume((buffer * GROUPS + group) * share, divby=share)
