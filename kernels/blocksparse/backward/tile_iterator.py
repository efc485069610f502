"""The work of a CTA of the backward kernel: its tile of keys, and the blocks of queries that the lists name for it.

NOTE [reversed groups] Pairs of (batch, unit) are worked through in groups of concurrent ones. Where rows get longer in
launch order, as under a causal mask and under most planned orders, the CTAs of the longest ones would be the last to
end, beside SMs that have nothing left to do. So the last group is reversed: its positions are taken from the last to
the first, the blocks of a row are visited from the last to the first, and a rank counts from the other end: of c
contributors to a dQ tile rank r becomes c - 1 - r. Its ranks follow its launch order then, as those of the other groups
follow theirs: NOTE [write order] of lists/write_order.py.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, cute

from kernels.blocksparse.backward.tiling import ENTRY_STAGES
from kernels.blocksparse.common.list_reader import BlockList, read
from kernels.blocksparse.common.sequence_order import SequenceOrder, sequence_at, sequence_of_pair
from kernels.blocksparse.common.tile_counter import take_tile_number


class Order(NamedTuple):
    """Order of the work of all CTAs.

    schedule      0 ascending n blocks, 1 descending, 2 from positions
    positions     int32: n block of each launch position, at [b·stride_batch + h·stride_head + position], h a KV head
    pairs         concurrent (batch, unit) pairs: their positions are interleaved; where sequences have an order, those
                  of the longest one
    tile_counter  int32, zero before the launch
    semaphores    int32 (semaphores_of_tile, batch, heads_q, m_blocks)
    reversed_from first pair of the reversed groups, of which it begins one: NOTE [reversed groups]; none in variants
                  that are not deterministic, and none where sequences have an order
    sequences     order of the sequences, by which pairs of one alone are concurrent
    """

    schedule: Int32
    positions: cute.Pointer
    stride_batch: Int64
    stride_head: Int64
    pairs: Int32
    tile_counter: cute.Pointer
    semaphores: cute.Pointer
    reversed_from: Int32
    sequences: SequenceOrder


class Counts(NamedTuple):
    """Sizes of the problem; `group` query heads share a KV head, `group_split` units share these evenly: NOTE [group
    split] of group_split.py; m_blocks and n_blocks of the longest sequence."""

    batch: Int32
    heads_q: Int32
    heads_kv: Int32
    group: Int32
    group_split: Int32
    m_blocks: Int32
    n_blocks: Int32

    @property
    def share(self) -> Int32:
        """Query heads of one unit."""
        return self.group // self.group_split

    @property
    def units(self) -> Int32:
        """Units of one sequence."""
        return self.heads_kv * self.group_split


class Contributors(NamedTuple):
    """How many tiles of keys add to each tile of dQ: partial, full, int32 (batch|1, heads_q|1, m_blocks), are the
    entries of the forward lists."""

    partial: cute.Pointer
    full: cute.Pointer
    stride_batch: Int64
    stride_head: Int64

    def of(self, batch: Int32, head: Int32, m_block: Int32) -> Int32:
        """The number of tiles of keys that add to one tile of dQ."""
        at = batch * self.stride_batch + head * self.stride_head + m_block
        return read(self.partial, at) + read(self.full, at)


class Lists(NamedTuple):
    """The parts of the backward lists that the kernel reads.

    merged        1 where a row's blocks are visited in ascending order, which needs rows that ascend
    partial_rank, full_rank   their write order, int32, parallel to their index, for deterministic variants
    slot          of packed masks, parallel to partial's index
    contributors  for reversed groups
    """

    partial: BlockList
    full: BlockList
    merged: Int32
    partial_rank: cute.Pointer
    full_rank: cute.Pointer
    slot: cute.Pointer
    contributors: Contributors


class Block(NamedTuple):
    """An entry of the lists: m block, 2 · query head + 1 where it is partial, rank, slot. Four words, so that a thread
    reads it from shared memory at once."""

    m_block: Int32
    head_partial: Int32
    rank: Int32
    slot: Int32

    @property
    def head(self) -> Int32:
        """The query head."""
        return self.head_partial >> 1

    @property
    def partial(self) -> Int32:
        """1 or 0."""
        return self.head_partial & 1

    @property
    def starts_run(self) -> Any:
        """True in the first of a run of tiles: NOTE [pieces] of transposed/runs_loads.py."""
        return self.slot < 0


@cute.jit
def take_place(by_counter: cutlass.Constexpr, order: Order, counts: Counts, sTileNumber: cute.Tensor, thread: Int32):
    """(batch, unit, n_block) of this CTA.

    By the tile counter, CTAs take their places in the order in which they start, whatever the hardware does.
    """
    number = cute.arch.block_idx()[0]
    if cutlass.const_expr(by_counter):
        if thread == 0:
            sTileNumber[0] = take_tile_number(order.tile_counter)
        cute.arch.sync_threads()
        number = sTileNumber[0]
    return place_of(number, order, counts)


@cute.jit
def tiles_of(order: Order, counts: Counts) -> Int32:
    """Tiles of keys of all units, those past a sequence's end among them where sequences have no order."""
    tiles = counts.batch * counts.n_blocks
    if order.sequences.given:
        tiles = order.sequences.tiles(counts.batch)
    return tiles * counts.units


@cute.jit
def place_of(number: Int32, order: Order, counts: Counts):
    """(batch, unit, n_block) of the tile that has this number in the order of the work.

    Positions are slowest within `order.pairs` pairs of (batch, unit), so a pair's lower positions always have lower
    numbers, or in a reversed group its higher ones. A number past the last tile is one past a sequence's end.
    """
    first_sequence, sequences, tiles, past = Int32(0), counts.batch, counts.n_blocks, Boolean(False)
    if order.sequences.given:
        past = number >= tiles_of(order, counts)
        first_sequence, before, tiles = sequence_at(order.sequences, sequences, number // counts.units)
        number -= before * counts.units
        sequences = Int32(1)
        if past:
            number = Int32(0)
    pairs = order.pairs * counts.n_blocks // tiles  # so that as many tiles are concurrent in a shorter sequence
    first = number // (tiles * pairs) * pairs
    number = number - first * tiles
    concurrent_pairs = cutlass.min(pairs, sequences * counts.units - first)
    position = number // concurrent_pairs
    pair = first + number - position * concurrent_pairs
    batch = pair // counts.units
    unit = pair - batch * counts.units
    batch += first_sequence
    if first >= order.reversed_from:
        position = tiles - 1 - position
    n_block = position
    if order.schedule == 1:
        n_block = tiles - 1 - position
    if order.schedule == 2:
        head_kv = unit // counts.group_split
        n_block = read(order.positions, batch * order.stride_batch + head_kv * order.stride_head + position)
    if past:
        n_block = counts.n_blocks
    return batch, unit, n_block


@cute.jit
def place_of_pair(number: Int32, order: Order, counts: Counts):
    """(batch, unit, n_block of the first half) of the cluster that has this number, whose two CTAs have the halves of a
    tile of keys, each a tile of the lists. A number past a sequence's last pair is one past its end.

    In positions the halves of a tile are neighbours. A second half that is not there comes behind those that are, so
    that behind its first half pairs begin at odd positions: the one at an even position is a half of each pair.
    """
    most = (counts.n_blocks + 1) // 2
    first_sequence, sequences, tiles, past = Int32(0), counts.batch, most, Boolean(False)
    if order.sequences.given:
        first_sequence, before, tiles = sequence_of_pair(order.sequences, sequences, number // counts.units)
        number -= before * counts.units
        sequences = Int32(1)
        past = number >= tiles * counts.units
        if past:
            number = Int32(0)
    pairs = order.pairs * most // tiles  # so that as many tiles are concurrent in a shorter sequence
    first = number // (tiles * pairs) * pairs
    number = number - first * tiles
    concurrent_pairs = cutlass.min(pairs, sequences * counts.units - first)
    position = number // concurrent_pairs
    pair = first + number - position * concurrent_pairs
    batch = pair // counts.units
    unit = pair - batch * counts.units
    batch += first_sequence
    if first >= order.reversed_from:
        position = tiles - 1 - position
    tile = position
    if order.schedule == 1:
        tile = tiles - 1 - position
    if order.schedule == 2:
        head_kv = unit // counts.group_split
        at = batch * order.stride_batch + head_kv * order.stride_head + 2 * position
        tile = read(order.positions, at) // 2
    if past:
        tile = most
    return batch, unit, 2 * tile


def pair_rank(order: Order, rank: Int32) -> Int32:
    """The rank of a pair of halves among pairs, from that of its first half among halves. In descending order the
    second half is before it. One tile may have one half alone, whose rank is even in descending order, where it is the
    first; in other ones, where it may be any, those behind it have ranks of the other parity."""
    return (rank + Int32(order.schedule != 1)) // 2


def is_reversed(order: Order, counts: Counts, batch: Int32, unit: Int32) -> Boolean:
    """True for a pair of a reversed group."""
    return batch * counts.units + unit >= order.reversed_from


@cute.jit
def entries(lists: Lists, batch: Int32, n_block: Int32, first_head: Int32, share: Int32) -> Int32:
    """Blocks that the lists name for a tile of keys, over all query heads of its unit. Lists that all heads share are
    read once: each read that waits for the one before delays the CTA's first load."""
    total, heads, same = Int32(0), share, Int32(1)
    if lists.partial.stride_head == 0 and lists.full.stride_head == 0:
        heads, same = Int32(1), share
    for g in cutlass.range(heads, unroll=1):
        partials, _ = lists.partial.row(batch, first_head + g, n_block)
        fulls, _ = lists.full.row(batch, first_head + g, n_block)
        total += partials + fulls
    return total * same


@cute.jit
def load_entry(
    variant: cutlass.Constexpr,
    lists: Lists,
    order: Order,
    counts: Counts,
    place: tuple[Int32, Int32, Int32],
    total: Int32,
    sEntries: cute.Tensor,
    entry: Int32,
    halved: cutlass.Constexpr = False,
) -> None:
    """Looks up entry number `entry` in this thread, if there are so many, and stores it in the entry buffer."""
    if entry < total:
        rBlock = cute.make_rmem_tensor(4, Int32)
        find_entry(variant, lists, order, counts, place, entry, rBlock, halved)
        cute.autovec_copy(rBlock, sEntries[None, entry % ENTRY_STAGES])


@cute.jit
def find_entry(
    variant: cutlass.Constexpr,
    lists: Lists,
    order: Order,
    counts: Counts,
    place: tuple[Int32, Int32, Int32],
    entry: Int32,
    rBlock: cute.Tensor,
    halved: cutlass.Constexpr = False,
) -> None:
    """Looks up entry number `entry`, which must be there, of the tile at place (batch, unit, n_block): the four words
    of a Block.

    Head after head; of a row the partial blocks first, then the full ones, both as listed, or merged: a schedule may
    count on it. In a reversed group each row from its last block to its first. halved: ranks are those of pairs of
    halves, `pair_rank`.
    """
    batch, unit, n_block = place
    head, left = unit * counts.share, entry
    partials, partial_at = lists.partial.row(batch, head, n_block)
    fulls, full_at = lists.full.row(batch, head, n_block)
    while left >= partials + fulls:
        left -= partials + fulls
        head += 1
        partials, partial_at = lists.partial.row(batch, head, n_block)
        fulls, full_at = lists.full.row(batch, head, n_block)
    backwards = Boolean(False)
    if cutlass.const_expr(variant.deterministic):
        backwards = is_reversed(order, counts, batch, unit)
        if backwards:
            left = partials + fulls - 1 - left
    before = cutlass.min(left, partials)  # partial blocks that come before this one
    is_partial = Int32(left < partials)
    if lists.merged != 0:
        before, is_partial = merged_place(lists, (partials, partial_at), (fulls, full_at), left)
    m_block, rank, slot = Int32(0), Int32(0), Int32(0)
    if is_partial != 0:
        at = partial_at + before
        m_block = read(lists.partial.index, at)
        if cutlass.const_expr(variant.deterministic):
            rank = read(lists.partial_rank, at)
        if cutlass.const_expr(variant.mask == "bits"):
            slot = read(lists.slot, at)
    else:
        at = full_at + (left - before)
        m_block = read(lists.full.index, at)
        if cutlass.const_expr(variant.deterministic):
            rank = read(lists.full_rank, at)
    if cutlass.const_expr(halved):
        rank = pair_rank(order, rank)
    if backwards:
        contributors = lists.contributors.of(batch, head, m_block)
        if cutlass.const_expr(halved):
            contributors = (contributors + 1) // 2
        rank = contributors - 1 - rank
    rBlock[0], rBlock[1], rBlock[2], rBlock[3] = m_block, 2 * head + is_partial, rank, slot


@cute.jit
def merged_place(
    lists: Lists, partial: tuple[Int32, Int64], full: tuple[Int32, Int64], number: Int32
) -> tuple[Int32, Int32]:
    """(partial blocks before it, 1 where it is partial itself) for entry `number` of two ascending rows merged into
    one. partial, full: (entries, where they start). By bisection, O(log of the shorter row)."""
    least, most = cutlass.max(number - full[0], 0), cutlass.min(number, partial[0])
    while least < most:
        middle = (least + most) // 2
        here = read(lists.partial.index, partial[1] + middle)
        there = read(lists.full.index, full[1] + (number - middle - 1))
        if here < there:
            least = middle + 1
        else:
            most = middle
    is_partial = Int32(least < partial[0])
    if is_partial != 0 and number - least < full[0]:
        here = read(lists.partial.index, partial[1] + least)
        is_partial = Int32(here < read(lists.full.index, full[1] + (number - least)))
    return least, is_partial


@cute.jit
def block_at(sEntries: cute.Tensor, entry: Int32) -> Block:
    """Entry number `entry`, which must be in the entry buffer."""
    rBlock = cute.make_rmem_tensor(4, Int32)
    # entries are not negative: unsigned division takes fewer instructions
    cute.autovec_copy(sEntries[None, Int32(Uint32(entry) % ENTRY_STAGES)], rBlock)
    return as_block(rBlock)


def rank_at(sEntries: cute.Tensor, entry: Int32) -> Int32:
    """The rank of entry number `entry`, which must be in the entry buffer: one word, for threads with few registers."""
    return Int32(sEntries[Block._fields.index("rank"), Int32(Uint32(entry) % ENTRY_STAGES)])


def as_block(rBlock: Any) -> Block:
    """The Block of four words."""
    return Block(rBlock[0], rBlock[1], rBlock[2], rBlock[3])


@cute.jit
def semaphore(order: Order, counts: Counts, batch: Int32, block: Block) -> cute.Pointer:
    """The semaphore of the dQ tile that a block is added to; of several the first."""
    return order.semaphores + (Int64(batch * counts.heads_q + block.head) * counts.m_blocks + block.m_block)
