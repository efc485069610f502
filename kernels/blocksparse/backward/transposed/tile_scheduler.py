# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The tiles of keys of a persistent CTA, one after the other.

NOTE [tiles of keys] As many CTAs as the GPU runs at once take tiles in their order (`tile_iterator.Order`) by the tile
counter, until all are taken; with atomic adds a CTA begins with the tile of its own number. The scheduling warp takes a
tile when the loading ones have come to the last blocks of the one before (`Tiling.takes_late`: when they have loaded
them), and announces it in shared memory. Its first Q and dO, and then its K and V, are loaded while the multiplying
warps are in the last steps, or store dK and dV.
With ordered adds, a CTA waits for tiles of lower numbers only. Each of these has been taken, by a CTA whose tiles
before it have lower numbers still, so the lowest tile that is not done waits for nothing: no wait is circular.
Every role counts for itself what barriers take turns by: tiles, those that have blocks, windows of entries, and steps.
A tile of batch -1 is the end.

NOTE [windows] The scheduling warp also looks up the tile's entries, 32 at once, a window, for half of the entry buffer.
Windows are counted over tiles: a tile's first entry begins one.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from kernels.blocksparse.backward import dq_accumulator
from kernels.blocksparse.backward.mainloop_mma import Work
from kernels.blocksparse.backward.tile_iterator import find_entry, place_of, tiles_of
from kernels.blocksparse.backward.tiling import ENTRY_STAGES, HALF, TILE_STAGES
from kernels.blocksparse.backward.transposed import turns
from kernels.blocksparse.common.buffers import stage_of
from kernels.blocksparse.common.list_reader import Sequence, read, sequence
from kernels.blocksparse.common.split_tiles import numbers_of, tile_of
from kernels.blocksparse.common.tile_counter import take_tile_number


class Tile(NamedTuple):
    """A tile of keys as it is announced: its place, how many blocks are listed for it, its sequences and the band's
    offset there. Or a part of one: how many blocks of it, the number of its first one, and its number among all parts;
    -1 of a whole tile. NOTE [split tiles] of common/split_tiles.py."""

    batch: Int32
    unit: Int32
    n_block: Int32
    total: Int32
    queries: Sequence
    keys: Sequence
    band_offset: Int32
    first_listed: Int32
    split: Int32


def ints_of(tiling) -> int:
    """Integers of an announced tile: those that say which part of a tile it is only where any may be one."""
    return 11 if tiling.splits else 9


class Progress(NamedTuple):
    """The counts of a role before its tile: tiles, tiles that have blocks, windows of entries, steps."""

    tiles: Int32
    loaded: Int32
    windows: Int32
    steps: Int32


def beginning() -> Progress:
    """The progress before a CTA's first tile."""
    return Progress(*(Int32(0) for _ in Progress._fields))


def after(progress: Progress, tile: Tile, steps: Int32) -> Progress:
    """The progress after a tile. steps: those of this tile among them."""
    return Progress(
        progress.tiles + 1, progress.loaded + Int32(tile.total > 0), progress.windows + windows_of(tile.total), steps
    )


def windows_of(total: Int32) -> Int32:
    """The number of windows of so many entries: NOTE [windows]."""
    return (total + HALF - 1) // HALF


@cute.jit
def schedule(w, look_up: cutlass.Constexpr) -> None:
    """The scheduling warp's work. look_up: writes a window of entries."""
    progress, more = beginning(), Boolean(True)
    while more:
        announce(w, progress.tiles)
        tile = take(w, progress.tiles, releases=False)
        more = tile.batch >= 0
        if tile.total > 0:
            write_windows(waiting_work_of(w, tile.total, progress), look_up)
            turns.await_full(w.tile_due, progress.loaded, 1)
        progress = after(progress, tile, Int32(0))


@cute.jit
def write_windows(w, look_up: cutlass.Constexpr) -> None:
    """All windows of a tile, each when its half of the buffer is empty."""
    windows = windows_of(w.end_entry - w.first_entry)
    for number in cutlass.range(windows, unroll=1):
        first = w.first_entry + number * HALF
        turns.await_empty(w.entries_empty, turns.window_of(first), 2)
        look_up(w, first)
        cute.arch.sync_warp()
        if cute.arch.lane_idx() == 0:
            cute.arch.mbarrier_arrive(w.entries_full + stage_of(turns.window_of(first), 2))


@cute.jit
def look_up_window(w, first: Int32) -> None:
    """Writes the window of a tile's entries that begins with entry `first`, an entry in each lane."""
    entry = first + w.thread % 32
    number = w.number_of(entry)
    if entry < w.end_entry:
        rBlock = cute.make_rmem_tensor(4, Int32)
        find_entry(w.variant, w.lists, w.order, w.counts, w.place, number, rBlock)
        cute.autovec_copy(rBlock, w.storage.sEntries[None, stage_of(entry, ENTRY_STAGES)])


@cute.jit
def announce(w, count: Int32) -> None:
    """The scheduling warp: takes the CTA's `count`-th tile, the next one that has keys, and announces it."""
    turns.await_empty(w.tile_empty, count, TILE_STAGES)
    counts, order, lists, tile_n, sTile = w.counts, w.order, w.lists, w.tiling.tile_n, w.storage.sTile
    entries, stage = w.kernel.entries, stage_of(count, TILE_STAGES)
    entries_of_part = w.kernel.entries_of_part
    if cute.arch.lane_idx() == 0:
        numbers, number = numbers_of(tiles_of(order, counts), w.splits), next_number(w, count == 0)
        batch, unit, n_block, length = Int32(-1), Int32(0), Int32(0), Int32(0)
        tile, split = tile_of(number, w.splits)
        if number < numbers:
            batch, unit, n_block = place_of(tile, order, counts)
            length = sequence(w.keys, batch).length
        while (number < numbers) & (n_block * tile_n >= length):
            number, batch = next_number(w, False), Int32(-1)
            tile, split = tile_of(number, w.splits)
            if number < numbers:
                batch, unit, n_block = place_of(tile, order, counts)
                length = sequence(w.keys, batch).length
        total, band_offset = Int32(0), Int32(0)
        seq_q, seq_k = Sequence(Int32(0), Int32(0)), Sequence(Int32(0), Int32(0))
        if batch >= 0:
            total = entries(lists, batch, n_block, unit * counts.share, counts.share)
            seq_q, seq_k = sequence(w.queries, batch), sequence(w.keys, batch)
            if cutlass.const_expr(w.variant.mask == "band"):
                band_offset = read(w.mask.band_offset, batch * w.mask.band_stride)
        values = (batch, unit, n_block, total, *seq_q, *seq_k, band_offset)
        if cutlass.const_expr(w.splits is not None):
            first, end = entries_of_part(split, total, w.splits)
            values = (batch, unit, n_block, end - first, *seq_q, *seq_k, band_offset, first, split)
        for i in cutlass.range_constexpr(len(values)):
            sTile[i, stage] = values[i]
        cute.arch.mbarrier_arrive(w.tile_full + stage)
    cute.arch.sync_warp()


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
    """A warp: the CTA's `count`-th tile, as soon as it has been announced. releases: it has read all that it will."""
    turns.await_full(w.tile_full, count, TILE_STAGES)
    ints = [
        cute.arch.make_warp_uniform(w.storage.sTile[i, stage_of(count, TILE_STAGES)]) for i in range(ints_of(w.tiling))
    ]
    if cutlass.const_expr(releases):
        turns.arrive_empty(w.tile_empty, count, TILE_STAGES)
    batch, unit, n_block, total, *sequences, band_offset = ints[:9]
    of_part = ints[9:] if w.tiling.splits else (Int32(0), Int32(-1))
    return Tile(batch, unit, n_block, total, Sequence(*sequences[:2]), Sequence(*sequences[2:]), band_offset, *of_part)


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


class WaitingWork(Work):
    """The work on a tile of a warp that does not multiply. What is said of the tile is read from shared memory each
    time: such a warp has few registers."""

    def announced(self, number: int) -> Int32:
        """One of the integers of the tile, as `announce` lists them."""
        return self.storage.sTile[number, stage_of(self.count, TILE_STAGES)]

    def number_of(self, entry: Int32) -> Int32:
        """The number of an entry among those of its tile."""
        number = entry - self.first_entry
        return number + self.announced(9) if self.splits else number

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


def waiting_work_of(w, total: Int32, progress: Progress) -> WaitingWork:
    """The work of such a warp on a tile of so many blocks: as `work_of`."""
    first = progress.windows * HALF
    return WaitingWork(
        **w.__dict__, count=progress.tiles, key_turn=progress.loaded, first_entry=first, end_entry=first + total
    )


def sums_number(w, tile: Tile) -> Int64:
    """The number of a tile's sums of dK and dV: NOTE [dK and dV partials]."""
    tiles = w.gradients.tiles
    begin = dq_accumulator.tile_number(tiles, tile.batch, tile.unit, tile.keys.begin, w.tiling.tile_n)
    return begin + tile.n_block
