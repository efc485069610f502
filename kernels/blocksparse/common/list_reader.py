# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Block lists on the device, and where a sequence lies.

A list says, for each row of blocks, how many entries it has and where they start in one flat array of block indices;
padded, compact and CSR metadata all look like this. Strides of 0 broadcast over batch or heads.
"""

from typing import NamedTuple

import cutlass
from cutlass import Int32, Int64, cute


class BlockList(NamedTuple):
    """count int32 and begin int64 (batch|1, heads_q|1, rows) with shared strides; index int32, flat."""

    count: cute.Pointer
    begin: cute.Pointer
    index: cute.Pointer
    stride_batch: Int64
    stride_head: Int64

    def row(self, batch: Int32, head: Int32, row: Int32) -> tuple[Int32, Int64]:
        """Entries of one row of blocks: how many, and the position of the first in `index`."""
        at = batch * self.stride_batch + head * self.stride_head + row
        return read(self.count, at), read(self.begin, at)


class Operand(NamedTuple):
    """One of q, k, v, o and their gradients: (…, rows, heads, dim), strides in elements; the last dim is contiguous."""

    pointer: cute.Pointer
    stride_batch: Int64
    stride_row: Int64
    stride_head: Int64

    def at(self, batch: Int32, row: Int64, head: Int32) -> cute.Pointer:
        """Address of the first element of a row, counted from the batch's start. All strides are multiples of 8."""
        offset = batch * self.stride_batch + row * self.stride_row + head * self.stride_head
        return self.pointer + cute.assume(offset, divby=8)


class Sequence(NamedTuple):
    """A batch's rows: `length` of them, `begin` rows after the batch's start (packed: cu_seqlens; padded: 0)."""

    begin: Int32
    length: Int32


class Sequences(NamedTuple):
    """The rows of all batches: int32 arrays of starts and lengths; or without arrays (null), `rows` of each batch."""

    begin: cute.Pointer
    length: cute.Pointer
    rows: Int32


@cute.jit
def sequence(sequences: Sequences, batch: Int32) -> Sequence:
    """The sequence of this batch."""
    begin, length = Int32(0), sequences.rows
    if sequences.begin.toint() != 0:
        begin, length = read(sequences.begin, batch), read(sequences.length, batch)
    return Sequence(begin, length)


def read(pointer: cute.Pointer, at: Int32 | Int64):
    """The element `at` of an array in global memory."""
    return cute.make_tensor(pointer + at, cute.make_layout(1))[0]


class TileIterator(NamedTuple):
    """One row of both lists as one sequence of entries: the partial ones, then the full ones.

    partial, full  where entry e stands in the index of its list, less e
    first          position of the first partial entry in its index: that of its mask's slot
    moved          so many full entries, the last ones of their list, come before the other full ones; an int: none do
    """

    partial: cute.Pointer
    full: cute.Pointer
    first: Int64
    n_partial: Int32
    entries: Int32
    moved: Int32 | int = 0


def tile_iterator_of(lists: tuple[BlockList, BlockList], place: tuple[Int32, Int32, Int32]) -> TileIterator:
    """The iterator over the tiles of row place[2] of (partial, full) for batch place[0] and head place[1]."""
    (partial, full), (batch, head, row) = lists, place
    n_partial, first = partial.row(batch, head, row)
    n_full, first_full = full.row(batch, head, row)
    return TileIterator(
        partial.index + first, full.index + (first_full - n_partial), first, n_partial, n_partial + n_full
    )


@cute.jit
def listed(tile_iterator: TileIterator, entry: Int32) -> Int32:
    """The block of one entry."""
    block = Int32(0)
    if entry < tile_iterator.n_partial:
        block = read(tile_iterator.partial, entry)
    else:
        block = read(tile_iterator.full, full_entry(tile_iterator, entry))
    return block


@cute.jit
def full_entry(tile_iterator: TileIterator, entry: Int32) -> Int32:
    """The number that a full entry has in the order of its list."""
    if cutlass.const_expr(not isinstance(tile_iterator.moved, int)):
        entry -= tile_iterator.moved
        if entry < tile_iterator.n_partial:
            entry += tile_iterator.entries - tile_iterator.n_partial
    return entry
