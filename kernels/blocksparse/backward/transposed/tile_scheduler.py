# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The tiles of keys of a persistent CTA, one after the other.

NOTE [tiles of keys] As many CTAs as the GPU runs at once take tiles in their order (`tile_iterator.Order`) by the tile
counter, until all are taken; with atomic adds a CTA begins with the tile of its own number. The loading warp takes a
tile before it loads the last blocks of the one before, and announces it in shared memory. Its first Q and dO, and then
its K and V, are loaded while the multiplying warps are in the last steps, or store dK and dV.
With ordered adds, a CTA waits for tiles of lower numbers only. Each of these has been taken, by a CTA whose tiles
before it have lower numbers still, so the lowest tile that is not done waits for nothing: no wait is circular.
Every role counts for itself what barriers take turns by: tiles, those that have blocks, windows of entries, and steps.
A tile of batch -1 is the end.
"""

from typing import NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.mainloop_mma import Work
from kernels.blocksparse.backward.tile_iterator import place_of, tiles_of
from kernels.blocksparse.backward.tiling import HALF, TILE_STAGES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.common.buffers import stage_of
from kernels.blocksparse.common.list_reader import Sequence, read, sequence
from kernels.blocksparse.common.tile_counter import take_tile_number


class Tile(NamedTuple):
    """A tile of keys as it is announced: its place, how many blocks are listed for it, its sequences and the band's
    offset there."""

    batch: Int32
    unit: Int32
    n_block: Int32
    total: Int32
    queries: Sequence
    keys: Sequence
    band_offset: Int32


INTS = 9  # of an announced tile


class Progress(NamedTuple):
    """What a role has counted before its tile: tiles, tiles that have blocks, windows of entries, steps."""

    tiles: Int32
    loaded: Int32
    windows: Int32
    steps: Int32


def beginning() -> Progress:
    """Before a CTA's first tile."""
    return Progress(*(Int32(0) for _ in Progress._fields))


def after(progress: Progress, tile: Tile, steps: Int32) -> Progress:
    """The progress after a tile. steps: those of this tile among them."""
    return Progress(
        progress.tiles + 1, progress.loaded + Int32(tile.total > 0), progress.windows + windows_of(tile.total), steps
    )


def windows_of(total: Int32) -> Int32:
    """Windows of so many entries: NOTE [entry buffer] of loads.py."""
    return (total + HALF - 1) // HALF


@cute.jit
def announce(w, count: Int32) -> None:
    """The loading warp: takes the CTA's `count`-th tile, the next one that has keys, and announces it."""
    turns.await_empty(w.tile_empty, count, TILE_STAGES)
    counts, order, lists, tile_n, sTile = w.counts, w.order, w.lists, w.tiling.tile_n, w.storage.sTile
    entries, stage = w.kernel.entries, stage_of(count, TILE_STAGES)
    if cute.arch.lane_idx() == 0:
        tiles, number = tiles_of(counts), next_number(w, count == 0)
        batch, unit, n_block, length = Int32(-1), Int32(0), Int32(0), Int32(0)
        if number < tiles:
            batch, unit, n_block = place_of(number, order, counts)
            length = sequence(w.keys, batch).length
        while (number < tiles) & (n_block * tile_n >= length):
            number, batch = next_number(w, False), Int32(-1)
            if number < tiles:
                batch, unit, n_block = place_of(number, order, counts)
                length = sequence(w.keys, batch).length
        total, band_offset = Int32(0), Int32(0)
        seq_q, seq_k = Sequence(Int32(0), Int32(0)), Sequence(Int32(0), Int32(0))
        if batch >= 0:
            total = entries(lists, batch, n_block, unit * counts.share, counts.share)
            seq_q, seq_k = sequence(w.queries, batch), sequence(w.keys, batch)
            if cutlass.const_expr(w.variant.mask == "band"):
                band_offset = read(w.mask.band_offset, batch * w.mask.band_stride)
        values = (batch, unit, n_block, total, *seq_q, *seq_k, band_offset)
        for i in cutlass.range_constexpr(INTS):
            sTile[i, stage] = values[i]
        cute.arch.mbarrier_arrive(w.tile_full + stage)
    cute.arch.sync_warp()


@cute.jit
def announce_ahead(w, following: Int32) -> None:
    """The loading warp, before it loads blocks of a tile: announces the next tile if they are the last ones. following:
    the entry behind them."""
    if following >= w.end_entry:
        announce(w, w.count + 1)


@cute.jit
def next_number(w, first) -> Int32:
    """The number of a CTA's next tile, in one lane. NOTE [tiles of keys]"""
    number = cute.arch.block_idx()[0]
    if cutlass.const_expr(w.variant.deterministic):
        number = take_tile_number(w.order.tile_counter)
    elif not first:
        number = cute.arch.grid_dim()[0] + take_tile_number(w.order.tile_counter)
    return number


@cute.jit
def take(w, count: Int32, releases: cutlass.Constexpr = True) -> Tile:
    """A warp: the CTA's `count`-th tile, as soon as it has been announced. The loading warp releases nothing."""
    turns.await_full(w.tile_full, count, TILE_STAGES)
    ints = [cute.arch.make_warp_uniform(w.storage.sTile[i, stage_of(count, TILE_STAGES)]) for i in range(INTS)]
    if cutlass.const_expr(releases):
        turns.arrive_empty(w.tile_empty, count, TILE_STAGES)
    batch, unit, n_block, total, *sequences, band_offset = ints
    return Tile(batch, unit, n_block, total, Sequence(*sequences[:2]), Sequence(*sequences[2:]), band_offset)


def work_of(w, tile: Tile, progress: Progress) -> Work:
    """The work of a role on a tile. first_entry to end_entry: the numbers of its entries in the CTA, where those of
    earlier tiles count by whole windows; key_turn: which use of the buffers of K and V it is."""
    first_key = tile.n_block * w.tiling.tile_n
    return Work(
        **w.__dict__,
        place=(tile.batch, tile.unit, tile.n_block),
        first_head=tile.unit * w.counts.share,
        total=tile.total,
        seq_q=tile.queries,
        row=Int64(tile.keys.begin) + first_key,
        head_kv=tile.unit // w.counts.group_split,
        keys_left=tile.keys.length - first_key,
        band_offset=tile.band_offset,
        key_turn=progress.loaded,
        first_entry=progress.windows * HALF,
        end_entry=progress.windows * HALF + tile.total,
    )


class LoadingWork(Work):
    """The loading warp's work on a tile. What is said of the tile is read from shared memory each time: the warp has
    few registers."""

    def announced(self, number: int) -> Int32:
        """One of the integers of the tile, as `announce` lists them."""
        return self.storage.sTile[number, stage_of(self.count, TILE_STAGES)]

    @property
    def place(self) -> tuple[Int32, Int32, Int32]:
        """(batch, unit, n_block)."""
        return self.announced(0), self.announced(1), self.announced(2)

    @property
    def first_head(self) -> Int32:
        """The unit's first query head."""
        return self.announced(1) * self.counts.share

    @property
    def seq_q(self) -> Sequence:
        """The queries."""
        return Sequence(self.announced(4), self.announced(5))

    @property
    def row(self) -> Int64:
        """The first key's row in its batch."""
        return Int64(self.announced(6) + self.announced(2) * self.tiling.tile_n)

    @property
    def head_kv(self) -> Int32:
        """The KV head."""
        return self.announced(1) // self.counts.group_split

    @property
    def keys_left(self) -> Int32:
        """Keys from the tile's first one to the sequence's end."""
        return self.announced(7) - self.announced(2) * self.tiling.tile_n


def loading_work_of(w, total: Int32, progress: Progress) -> LoadingWork:
    """The loading warp's work on a tile of so many blocks: as `work_of`."""
    first = progress.windows * HALF
    return LoadingWork(
        **w.__dict__, count=progress.tiles, key_turn=progress.loaded, first_entry=first, end_entry=first + total
    )


def sums_number(w, tile: Tile) -> Int64:
    """The number of a tile's sums of dK and dV: NOTE [dK and dV partials]."""
    tiles = w.gradients.tiles
    begin = dq_accumulator.tile_number(tiles, tile.batch, tile.unit, tile.keys.begin, w.tiling.tile_n)
    return begin + tile.n_block
