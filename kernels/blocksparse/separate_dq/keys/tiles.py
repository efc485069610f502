# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The tiles of keys of a persistent CTA, one after the other: NOTE [tiles] of forward/hopper/tile_scheduler.py, for the
backward lists."""

from typing import NamedTuple

import cutlass
from cutlass import Int32, cute

from kernels.blocksparse.backward.tile_iterator import entries, place_of
from kernels.blocksparse.common.list_reader import Sequence, read, sequence
from kernels.blocksparse.common.tile_counter import take_tile_number
from kernels.blocksparse.forward.hopper import pipeline
from kernels.blocksparse.forward.hopper.pipeline import Buffers
from kernels.blocksparse.separate_dq.keys.tuning import TILE_N

TILE_STAGES, INTS = 2, 8  # of announced tiles


class Tile(NamedTuple):
    """A tile of keys of one unit of query heads, as announced, and the blocks that are listed for it."""

    batch: Int32
    unit: Int32
    n_block: Int32
    queries: Sequence
    keys: Sequence
    total: Int32


class TilePipeline(NamedTuple):
    """Announced tiles in shared memory, (INTS, TILE_STAGES) int32, and their barriers."""

    ints: cute.Tensor
    barriers: Buffers


@cute.jit
def announce(tile_pipeline: TilePipeline, count: Int32, number: Int32, resident: cutlass.Constexpr, problem) -> None:
    """One lane: the tile of this number, or of the first later number that has keys, becomes the CTA's `count`-th, or
    there is none: batch -1. problem: order, counts, lists, then (begin, length) of queries and of keys."""
    order, counts, lists, queries, keys = problem
    tiles = counts.batch * counts.heads_kv * counts.group_split * counts.n_blocks
    batch, unit, n_block, length = Int32(-1), Int32(0), Int32(0), Int32(0)
    if number < tiles:
        batch, unit, n_block = place_of(order, counts, number)
        length = read(keys[1], batch)
    while (number < tiles) & (n_block * TILE_N >= length):
        number, batch = next_number(resident, order.tile_counter, tiles), Int32(-1)
        if number < tiles:
            batch, unit, n_block = place_of(order, counts, number)
            length = read(keys[1], batch)
    slot, ints = count % TILE_STAGES, tile_pipeline.ints
    # a barrier that has not ended a phase says that the one before the first has ended
    cute.arch.mbarrier_wait(tile_pipeline.barriers.empty + slot, (count // TILE_STAGES + 1) % 2)
    seq_q, seq_k, total = Sequence(Int32(0), Int32(0)), Sequence(Int32(0), Int32(0)), Int32(0)
    if batch >= 0:
        seq_q, seq_k = sequence(queries[0], queries[1], batch), sequence(keys[0], keys[1], batch)
        total = entries(lists, batch, n_block, unit * counts.share, counts.share)
    values = (batch, unit, n_block, *seq_q, *seq_k, total)
    for i in cutlass.range_constexpr(INTS):
        ints[i, slot] = values[i]
    cute.arch.mbarrier_arrive(tile_pipeline.barriers.full + slot)


@cute.jit
def next_number(resident: cutlass.Constexpr, tile_counter: cute.Pointer, tiles: Int32) -> Int32:
    """The number of a CTA's next tile; from `tiles` on there is none."""
    number = tiles
    if resident < tiles:
        number = resident + take_tile_number(tile_counter)
    return number


@cute.jit
def take(tile_pipeline: TilePipeline, count: Int32) -> Tile:
    """A warp: the CTA's `count`-th tile, as soon as it has been announced."""
    pipeline.wait_full(tile_pipeline.barriers, count)
    slot = count % TILE_STAGES
    ints = [cute.arch.make_warp_uniform(tile_pipeline.ints[i, slot]) for i in range(INTS)]
    pipeline.release(tile_pipeline.barriers, count)
    batch, unit, n_block, *sequences, total = ints
    return Tile(batch, unit, n_block, Sequence(*sequences[:2]), Sequence(*sequences[2:]), total)
