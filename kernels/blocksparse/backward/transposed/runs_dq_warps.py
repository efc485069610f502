# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The dQ warp of the kernel that works through runs of tiles, runs_kernel.py: as dq_warps.py. Adds are atomic: ordered
ones have no runs, as a step of 80 queries may lie in two tiles, each with a semaphore."""

from typing import NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward.mainloop_mma import target_of
from kernels.blocksparse.backward.tile_iterator import Block, block_at
from kernels.blocksparse.backward.tiling import RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.dq_warps import empty
from kernels.blocksparse.backward.transposed.runs_loads import RUN_STEPS
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier
from kernels.blocksparse.common import bulk


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
                add_first(w, step, group, buffer)
                add_rest(w, step, group, buffer)
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
def behind(entry: Int32, part: Int32, step: Step) -> tuple[Int32, Int32]:
    """(entry of the piece, which step of it) of the step that comes after one."""
    part += 1
    if part == step.parts:
        entry += step.tiles
        part = Int32(0)
    return entry, part


@cute.jit
def add_first(w, step: Step, group: Int32, buffer: Int32) -> None:
    """Adds one warpgroup's share of a step to the tile in which it begins: NOTE [dQ by dim]."""
    half = cutlass.const_expr(w.tiling.dim // GROUPS)
    offset = share_of(w, step, step.tile, group) + step.offset * half
    target, source = w.mdQ + cute.assume(offset, divby=4), storage_of(w, group, buffer)
    bulk.add_run(target, source, step.here(w.tiling.tile_m) * (4 * half))


@cute.jit
def add_rest(w, step: Step, group: Int32, buffer: Int32) -> None:
    """Adds what is left of it, if anything, to the tile after that."""
    half, here = cutlass.const_expr(w.tiling.dim // GROUPS), step.here(w.tiling.tile_m)
    if here < step.rows:
        offset, source = share_of(w, step, step.tile + 1, group), storage_of(w, group, buffer)
        rest = source + cute.assume(here * half, divby=4)
        bulk.add_run(w.mdQ + cute.assume(offset, divby=4), rest, (step.rows - here) * (4 * half))


def share_of(w, step: Step, tile: Int32, group: Int32) -> Int64:
    """The offset in the dQ accumulator of a warpgroup's share of a tile of a step's piece."""
    tile_m, dim = w.tiling.tile_m, w.tiling.dim
    return target_of(w, step.block, Int32(0)) + (Int64(tile) * tile_m * dim + group * tile_m * (dim // GROUPS))


def storage_of(w, group: Int32, buffer: Int32) -> cute.Pointer:
    """A warpgroup's share of dQ in a buffer in shared memory."""
    share = RUN_STEP * w.tiling.dim // GROUPS
    return w.storage.sdQ.iterator + cute.assume((buffer * GROUPS + group) * share, divby=share)
