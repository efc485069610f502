# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The query tiles of a persistent CTA, one after the other.

NOTE [tiles] A CTA begins with the tile of its own number and then takes numbers from the tile counter, until all tiles
have been taken: the hardware's order of launches, without its start of a CTA for each. One loading warp announces tiles
in pipeline stages in shared memory, one ahead: it finds out where the next tile lies and which blocks are listed for it
while the others are still busy, and the loading warps fetch its Q, K and V while the multiplying ones finish the last.
By TMA it takes the next tile's number when K of the last `HopperTuning.lead` steps is yet to be loaded, which the warp
that loads K tells it at a named barrier. A number that a CTA takes at the start of a long tile waits for the tile's end
while other CTAs run out of tiles, and CTAs are then spread over more heads' K and V than the L2 cache holds.
Every warp takes every announced tile, in order, and says when it has read it; a tile of batch -1 is the end. All that
is counted over tiles (steps, for the buffers of K and V; tiles, for those of Q and of the announced tiles) every warp
counts for itself.

NOTE [tiles of a cluster] The CTAs of a cluster take neighbouring query tiles of a head, for which the same blocks are
listed: those of the first one. So they load K and V for each other, NOTE [multicast] of common/tma_loads.py. Their rows
are equally long, so clusters need no counter: the numbers of a cluster are as far apart as there are clusters. Where a
head has no tile for the last CTA, that one loads its share of K and V and releases them all the same.

NOTE [nested rows] With `HopperTuning.nested` the rows of a cluster are not alike: each has all blocks of the one before
(`BlockLists.nested`). The CTAs read the last one's list. Its partial blocks come first, then the full ones that are not
full in the first row, which are the last of their list, then the others. A CTA applies the mask to the partial blocks
and to those that are not full in its own row; of the blocks that its row does not have, it hides every score. Rows are
longer from pair to pair: the host lays out positions in which all clusters have as much to do (launch/pair_order.py).
"""

from typing import NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.common import buffers
from kernels.blocksparse.common.buffers import Buffers
from kernels.blocksparse.common.clusters import ALONE, Cluster
from kernels.blocksparse.common.list_reader import BlockList, Sequence, TileIterator, sequence
from kernels.blocksparse.common.split_tiles import SplitTiles, entries_of, numbers_of, tile_of
from kernels.blocksparse.common.tile_counter import take_tile_number
from kernels.blocksparse.forward.tile_order import place_of, tiles_of

TILE_STAGES = 2  # of announced tiles
INTS, LONGS = 10, 2  # of an announced tile


class Tile(NamedTuple):
    """A query tile, as announced: where it is, its sequences and the blocks that are listed for it, or for a part of
    it."""

    batch: Int32
    head: Int32
    m_block: Int32
    queries: Sequence
    keys: Sequence
    tile_iterator: TileIterator


class TilePipeline(NamedTuple):
    """Announced tiles in shared memory: (INTS, TILE_STAGES) int32, (LONGS, TILE_STAGES) int64, and their barriers."""

    ints: cute.Tensor
    longs: cute.Tensor
    barriers: Buffers


def tile_pipeline(ints: cute.Pointer, longs: cute.Pointer, first: cute.Pointer) -> TilePipeline:
    """The stages of announced tiles. first: the first of 2 · TILE_STAGES barriers."""
    return TilePipeline(
        cute.make_tensor(ints, cute.make_layout((INTS, TILE_STAGES))),
        cute.make_tensor(longs, cute.make_layout((LONGS, TILE_STAGES))),
        Buffers(first, TILE_STAGES),
    )


@cute.jit
def announce(
    tile_pipeline: TilePipeline,
    count: Int32,
    number: Int32,
    tile_m: cutlass.Constexpr,
    problem,
    persistent,
    cluster: Cluster = ALONE,
    splits: SplitTiles | None = None,
    entries_of: cutlass.Constexpr = entries_of,
    nested_rows: cutlass.Constexpr = None,
) -> Int32:
    """One lane: the tile of this number, or of the first later number that has rows, becomes the CTA's `count`-th.
    Returns its number.

    problem     shape, order and lists as the kernel has them, then (begin, length) of queries and of keys
    persistent  (CTAs, tile counter)
    cluster     numbers are of its tiles together, NOTE [tiles of a cluster]
    splits      tiles of which numbers are parts; None: of none. entries_of: as in common/split_tiles.py
    nested_rows `nested_rows`, where the rows of a cluster are nested; None: they are alike
    """
    shape, order, lists, queries, keys = problem
    resident, tile_counter = persistent
    ctas, rank = cluster
    m_blocks = shape[3]
    shape = (*shape[:3], (shape[3] + ctas - 1) // ctas)
    numbers = numbers_of(tiles_of(shape, order), splits)
    batch, head, m_block, length = Int32(-1), Int32(0), Int32(0), Int32(0)
    tile, split = tile_of(number, splits)
    if number < numbers:
        batch, head, m_block = place_of(tile, shape, order)
        length = sequence(queries, batch).length
    while (number < numbers) & (m_block * ctas * tile_m >= length):
        number, batch = next_number(resident, tile_counter, numbers, number, cluster), Int32(-1)
        tile, split = tile_of(number, splits)
        if number < numbers:
            batch, head, m_block = place_of(tile, shape, order)
            length = sequence(queries, batch).length
    slot, ints, longs = count % TILE_STAGES, tile_pipeline.ints, tile_pipeline.longs
    buffers.wait_empty(tile_pipeline.barriers, count)
    seq_q, seq_k = Sequence(Int32(0), Int32(0)), Sequence(Int32(0), Int32(0))
    n_partial, n_full, first, first_full = Int32(0), Int32(0), Int64(0), Int64(0)
    row, moved = m_block * ctas, Int32(0)
    if batch >= 0:
        if cutlass.const_expr(nested_rows is not None):
            row, moved = nested_rows(lists[1], (batch, head, row), ctas, m_blocks)
        n_partial, first = lists[0].row(batch, head, row)
        n_full, first_full = lists[1].row(batch, head, row)
        seq_q, seq_k = sequence(queries, batch), sequence(keys, batch)
    first_full, entries = first_full - n_partial, n_partial + n_full
    values = (batch, head, m_block * ctas + rank, *seq_q, *seq_k, n_partial, entries)
    if cutlass.const_expr(splits is not None):
        first_entry, end = entries_of(split, entries, splits)
        first, first_full, entries = first + first_entry, first_full + first_entry, end - first_entry
        n_partial = cutlass.min(cutlass.max(n_partial - first_entry, 0), entries)
        values = (*values[:-2], n_partial, entries, split)
    if cutlass.const_expr(nested_rows is not None):
        values = (*values, moved)
    for i in cutlass.range_constexpr(len(values)):
        ints[i, slot] = values[i]
    longs[0, slot], longs[1, slot] = first, first_full
    cute.arch.mbarrier_arrive(tile_pipeline.barriers.full + slot)
    return number


@cute.jit
def nested_rows(full: BlockList, place, ctas: cutlass.Constexpr, m_blocks: Int32) -> tuple[Int32, Int32]:
    """The row whose list a cluster reads, and how many of its full blocks come before the others: those that are not
    full in the cluster's first row. place: (batch, head, first row). NOTE [nested rows]"""
    batch, head, first = place
    last = cutlass.min(first + ctas, m_blocks) - 1
    return last, full.row(batch, head, last)[0] - full.row(batch, head, first)[0]


@cute.jit
def next_number(
    resident: Int32, tile_counter: cute.Pointer, tiles: Int32, number: Int32 | int = 0, cluster: Cluster = ALONE
) -> Int32:
    """The number of a CTA's next tile; from `tiles` on there is none. number: the one before, in a cluster."""
    if cutlass.const_expr(cluster.ctas > 1):
        number += resident // cluster.ctas
    else:
        number = tiles
        if resident < tiles:
            number = resident + take_tile_number(tile_counter)
    return number


@cute.jit
def take(
    tile_pipeline: TilePipeline,
    count: Int32,
    lists: tuple[BlockList, BlockList],
    releases: cutlass.Constexpr = True,
    nested: cutlass.Constexpr = False,
) -> Tile:
    """A warp: the CTA's `count`-th tile, as soon as it has been announced. releases, nested: as of `read_tile`."""
    buffers.wait_full(tile_pipeline.barriers, count)
    return read_tile(tile_pipeline, count, lists, releases, nested)


@cute.jit
def read_tile(
    tile_pipeline: TilePipeline,
    count: Int32,
    lists: tuple[BlockList, BlockList],
    releases: cutlass.Constexpr = True,
    nested: cutlass.Constexpr = False,
) -> Tile:
    """A warp: the CTA's `count`-th tile, which has been announced. releases: it releases the stage that has it; nested:
    rows of a cluster are."""
    slot = count % TILE_STAGES
    ints = [cute.arch.make_warp_uniform(tile_pipeline.ints[i, slot]) for i in range(INTS - 1)]
    first, first_full = Int64(tile_pipeline.longs[0, slot]), Int64(tile_pipeline.longs[1, slot])
    moved = cute.arch.make_warp_uniform(tile_pipeline.ints[INTS - 1, slot]) if nested else 0
    if cutlass.const_expr(releases):
        buffers.release(tile_pipeline.barriers, count)
    batch, head, m_block, *sequences, n_partial, entries = ints
    tile_iterator = TileIterator(lists[0].index + first, lists[1].index + first_full, first, n_partial, entries, moved)
    return Tile(batch, head, m_block, Sequence(*sequences[:2]), Sequence(*sequences[2:]), tile_iterator)


def part_of(tile_pipeline: TilePipeline, count: Int32) -> Int32:
    """The number among all parts of the CTA's `count`-th tile, of a warp that has not released it yet; -1 of a whole
    tile. NOTE [split tiles] of common/split_tiles.py."""
    return cute.arch.make_warp_uniform(tile_pipeline.ints[INTS - 1, count % TILE_STAGES])
