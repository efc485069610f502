# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The loading warps and the dQ warp of the kernel that works through runs of tiles: runs_kernel.py.

NOTE [pieces] Of a window of entries, RUN_TILES adjacent tiles that are neither masked nor cut off by the sequence's end
are one piece, of steps of 80 queries; any other tile is a piece of steps of 64. Descending ones, which planned orders
have, are written in ascending order. `Block.slot`, which such tiles have no use for, is -1 in the first of a run.

NOTE [ordered runs] A step of 80 queries may lie in two tiles, each with a semaphore. What belongs to the first one is
added first. Where the second one's semaphore has its rank by then, the rest is added at once, and the first tile is
released when all of it is complete, as a tile is that ends with its step: NOTE [ordered bulk adds] of dq_warp.py.
Otherwise the first tile's adds are completed and it is released, and only then the second tile's semaphore is waited
for: a CTA that waits keeps no other waiting for adds that it has long issued.
"""

from typing import NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward.dq_accumulator import tile_number
from kernels.blocksparse.backward.mainloop_mma import add_run, rank_of, release, semaphore_of, target_of, wait
from kernels.blocksparse.backward.tile_iterator import Block, block_at, find_entry
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, RUN_STEP, RUN_TILES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.backward.transposed.dq_warp import acquire
from kernels.blocksparse.backward.transposed.loads import load_keys_behind, side_of, tile_bytes
from kernels.blocksparse.backward.transposed.turns import GROUPS, DqBarrier
from kernels.blocksparse.common.buffers import stage_of
from kernels.blocksparse.common.bulk import load_rows, load_run, load_whole

RUN_STEPS = RUN_TILES * 128 // RUN_STEP


@cute.jit
def load_pieces(w, of_q: cutlass.Constexpr, step: Int32) -> Int32:
    """A loading warp's work for a tile of keys: as `load_side`."""
    entry = w.first_entry
    while entry < w.end_entry:
        turns.await_window(w, entry)
        block, following = block_at(w.storage.sEntries, entry), entry + 1
        if block.starts_run:
            following = entry + RUN_TILES
        if cutlass.const_expr(of_q and not w.tiling.takes_late):
            turns.say_due(w, entry, following)
        if block.starts_run:
            for part in cutlass.range(RUN_STEPS, unroll=1):
                load_step(w, of_q, block, part, step, True)
                load_keys_behind(w, of_q, entry, part)
                step += 1
        else:
            for part in cutlass.range(w.tiling.steps, unroll=1):
                load_step(w, of_q, block, part, step, False)
                load_keys_behind(w, of_q, entry, part)
                step += 1
        if cutlass.const_expr(of_q and w.tiling.takes_late):
            turns.say_due(w, entry, following)
        turns.end_window(w, following)
        entry = following
    return step


@cute.jit
def look_up_pieces(w, first: Int32) -> None:
    """Writes the window of entries that begins with entry `first`: NOTE [pieces]."""
    lane = cute.arch.lane_idx()
    entry = first + lane
    rBlock = cute.make_rmem_tensor(4, Int32)
    rBlock.fill(Int32(0))
    if entry < w.end_entry:
        find_entry(w.variant, w.lists, w.place[0], w.place[2], w.first_head, entry - w.first_entry, rBlock)
    m_block, head_partial = rBlock[0], rBlock[1]
    whole = (entry < w.end_entry) & (head_partial % 2 == 0) & (w.keys_left >= w.tiling.tile_n)
    whole = whole & ((m_block + 1) * w.tiling.tile_m <= w.seq_q.length)
    key = Int32(-2)
    if whole:
        key = m_block
    before, head_before = cute.arch.shuffle_sync_up(key, 1), cute.arch.shuffle_sync_up(head_partial, 1)
    adjacent = (before + 1 == m_block) | (before - 1 == m_block)
    follows = whole & (lane > 0) & adjacent & (head_before == head_partial)
    starts = cute.arch.vote_ballot_sync(not follows)
    start = 31 - Int32(cute.arch.clz(starts & low_lanes(lane + 1)))
    above = starts & ~low_lanes(lane + 1)
    end = Int32(32)
    if above != 0:
        end = cute.arch.popc((above & -above) - 1)
    begin = start + (lane - start) // RUN_TILES * RUN_TILES
    span = cute.arch.shuffle_sync(key, begin + RUN_TILES - 1) - cute.arch.shuffle_sync(key, begin)
    place = lane
    if whole & (begin + RUN_TILES <= end) & ((span == RUN_TILES - 1) | (span == 1 - RUN_TILES)):
        if span < 0:
            place = 2 * begin + RUN_TILES - 1 - lane
        if place == begin:
            rBlock[3] = Int32(-1)
    if entry < w.end_entry:
        cute.autovec_copy(rBlock, w.storage.sEntries[None, stage_of(first + place, ENTRY_STAGES)])
    cute.arch.sync_warp()


def low_lanes(count: Int32) -> Int32:
    """The mask of the first `count` lanes, 0 to 32."""
    return Int32((cutlass.Int64(1) << cutlass.Int64(count)) - 1)


@cute.jit
def load_step(w, of_q: cutlass.Constexpr, block: Block, part: Int32, step: Int32, wide: cutlass.Constexpr) -> None:
    """A step's rows of Q with LSE, or of dO with delta. part: which step of its piece."""
    rows = cutlass.const_expr(RUN_STEP if wide else w.tiling.step_m)
    first = block.m_block * w.tiling.tile_m + part * rows
    tile = tile_number(w.loads.tiles, w.place[0], block.head, w.seq_q.begin, w.tiling.tile_m)
    at = tile * w.tiling.tile_m + first
    operand, statistic, _, tiles, values, _, full, empty, _ = side_of(w, of_q)
    turns.await_empty(empty, step, w.tiling.stages)
    which = cutlass.const_expr("wide" if wide else "narrow")
    load_operand(
        w, getattr(operand, which), getattr(tiles, which), statistic, values, block.head, first, at, step, full, wide
    )


@cute.jit
def load_operand(
    w, operand, sX, statistic, sValues, head: Int32, first: Int32, at: Int64, step: Int32, full, wide: cutlass.Constexpr
) -> None:
    """Rows of Q or dO and their LSE or delta, which begins at `at`: one arrival, of the thread that says how many bytes
    come. Steps of 80 queries have all rows."""
    stages = w.tiling.stages
    stage = stage_of(step, stages)
    barrier, row = full + stage, w.seq_q.begin + first
    rows = cutlass.const_expr(cute.size(sX, mode=[0]))
    size, run = cutlass.const_expr(tile_bytes(sX)), cutlass.const_expr(4 * rows)
    source = statistic + cute.assume(at, divby=4)
    target = sValues.iterator + cute.assume(stage * RUN_STEP, divby=4)
    rows_left = w.seq_q.length - first
    if cutlass.const_expr(wide):
        rows_left = Int32(rows)
    if rows_left >= rows:
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, size + run)
            load_run(target, source, run, barrier)
        cute.arch.sync_warp()
        load_whole(operand, (w.place[0], head, row), sX, stage, barrier)
    else:
        address = operand.rows.at(w.place[0], Int64(row), head)
        load_rows(address, operand.rows.stride_row, rows_left, w.dim, sX[None, None, stage], w.thread % 32)
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, run)
            load_run(target, source, run, barrier)
        cute.arch.sync_warp()


class Step(NamedTuple):
    """A step of the dQ warp.

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
def add_dq_of_pieces(w) -> None:
    """The dQ warp's work: adds each warpgroup's share of each step as soon as it is in shared memory."""
    ordered, ended_step = w.variant.deterministic, w.kernel.ended_step
    entry, part = w.first_entry, Int32(0)
    for group in cutlass.range_constexpr(GROUPS):
        turns.arrive_dq(DqBarrier.EMPTY, group)
    while entry < w.end_entry:
        for group in cutlass.range_constexpr(GROUPS):
            turns.await_dq(DqBarrier.FULL, group)
            step = step_at(w, entry, part)
            if cutlass.const_expr(ordered and group == 0):  # noqa: SIM102 (one is for the compiler)
                if step.offset == 0:
                    acquire(w, block_at(w.storage.sEntries, entry + step.tile))
            if cute.arch.lane_idx() == 0:
                add_first(w, entry, step, group)
                if cutlass.const_expr(not ordered):
                    add_rest(w, entry, step, group)
            cute.arch.cp_async_bulk_commit_group()
        ended = ended_step(part + 1, step.parts)
        released = Int32(0)
        if cutlass.const_expr(ordered):
            released = cross(w, entry, step, ended == part)
        part += 1
        following = entry
        if part == step.parts:
            part = Int32(0)
            following += step.tiles
        for group in cutlass.range_constexpr(GROUPS):
            cute.arch.cp_async_bulk_wait_group(GROUPS - 1 - group, read=True)
            cute.arch.sync_warp()
            if following < w.end_entry:
                turns.arrive_dq(DqBarrier.EMPTY, group)
        if cutlass.const_expr(ordered):
            release_ended(w, entry, step_at(w, entry, ended), released)
        if following > entry:
            turns.end_window(w, following)
        entry = following


@cute.jit
def cross(w, entry: Int32, step: Step, ends: cutlass.Boolean) -> Int32:
    """Ordered adds: the rest of a step that lies in two tiles, NOTE [ordered runs]. 1 where that has released the first
    one, in the lane that adds. ends: whether the first one has no adds to come."""
    released = Int32(0)
    if step.here(w.tiling.tile_m) < step.rows:
        if cute.arch.lane_idx() == 0:
            first, second = (block_at(w.storage.sEntries, entry + step.tile + i) for i in range(2))
            if not is_open(w, second):
                if ends:
                    release_added(w, first)
                    released = Int32(1)
                wait(w, second)
            cute.arch.fence_proxy("async.global")
            for group in cutlass.range_constexpr(GROUPS):
                add_rest(w, entry, step, group)
                cute.arch.cp_async_bulk_commit_group()
        cute.arch.sync_warp()
    return released


@cute.jit
def is_open(w, block: Block) -> cutlass.Boolean:
    """True where a block's semaphore has its lock: then it is acquired."""
    value = cute.arch.load(semaphore_of(w, block), Int32, sem="acquire", scope="gpu")
    return value == w.kernel.lock_of(block.rank, w.place[2])


@cute.jit
def release_ended(w, entry: Int32, step: Step, released: Int32) -> None:
    """Releases the tile in which a step begins, if that is its last one, unless it has been `released`."""
    if step.offset + step.rows >= w.tiling.tile_m:
        if (cute.arch.lane_idx() == 0) & (released == 0):
            release_added(w, block_at(w.storage.sEntries, entry + step.tile))
        cute.arch.sync_warp()


@cute.jit
def release_added(w, block: Block) -> None:
    """Releases a block's semaphore when all adds that this thread has committed are complete."""
    cute.arch.cp_async_bulk_wait_group(0)
    cute.arch.fence_proxy("async.global")
    release(w, block)


@cute.jit
def add_first(w, entry: Int32, step: Step, group: cutlass.Constexpr) -> None:
    """Adds one warpgroup's share of a step to the tile in which it begins: NOTE [dQ by dim]. entry: of its piece."""
    half = cutlass.const_expr(w.tiling.dim // GROUPS)
    offset = share_of(w, step, step.tile, group) + step.offset * half
    target, source = w.mdQ + cute.assume(offset, divby=4), storage_of(w, group)
    add_run(w, rank_of(w, entry + step.tile), target, source, step.here(w.tiling.tile_m) * (4 * half))


@cute.jit
def add_rest(w, entry: Int32, step: Step, group: cutlass.Constexpr) -> None:
    """Adds what is left of it, if anything, to the tile after that."""
    half, here = cutlass.const_expr(w.tiling.dim // GROUPS), step.here(w.tiling.tile_m)
    if here < step.rows:
        offset, source = share_of(w, step, step.tile + 1, group), storage_of(w, group)
        rest = source + cute.assume(here * half, divby=4)
        target = w.mdQ + cute.assume(offset, divby=4)
        add_run(w, rank_of(w, entry + step.tile + 1), target, rest, (step.rows - here) * (4 * half))


def share_of(w, step: Step, tile: Int32, group: int) -> Int64:
    """The offset in the dQ accumulator of a warpgroup's share of a tile of a step's piece."""
    tile_m, dim = w.tiling.tile_m, w.tiling.dim
    return target_of(w, step.block, Int32(0)) + (Int64(tile) * tile_m * dim + group * tile_m * (dim // GROUPS))


def storage_of(w, group: int) -> cute.Pointer:
    """A warpgroup's share of dQ in shared memory."""
    return w.storage.sdQ.iterator + group * (RUN_STEP * w.tiling.dim // GROUPS)
