# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""Packed sequences in the order in which their tiles are launched: NOTE [sequences by length] of lists/lpt.py."""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, cute

from kernels.blocksparse.common.list_reader import read


class SequenceOrder(NamedTuple):
    """The order of the sequences, on the device; null pointers: as they come, each with tiles as the longest has.

    sequence  int32 (sequences,): the number of each
    start     int32 (sequences + 1,): tiles of those before it, ascending; the last one is the tiles of all
    """

    sequence: cute.Pointer
    start: cute.Pointer

    @property
    def given(self) -> Boolean:
        """True where there is an order."""
        return self.start.toint() != 0

    def tiles(self, sequences: Int32) -> Int32:
        """Tiles of all sequences, of an order that is given."""
        return read(self.start, sequences)


@cute.jit
def sequence_at(order: SequenceOrder, sequences: Int32, tile: Int32) -> tuple[Int32, Int32, Int32]:
    """(number, tiles of those before it, its own tiles, at least 1) of the sequence that has this tile, of an order
    that is given; of a tile past the last one, of the last sequence. By bisection."""
    least, end = Int32(0), sequences
    while end - least > 1:
        middle = (least + end) // 2
        if read(order.start, middle) <= tile:
            least = middle
        else:
            end = middle
    before = read(order.start, least)
    return read(order.sequence, least), before, cutlass.max(read(order.start, least + 1) - before, 1)


@cute.jit
def pairs_before(order: SequenceOrder, place: Int32) -> Int32:
    """Pairs of tiles that a launch has for the sequences before this place of the order: for each what its tiles need,
    and at most one more."""
    return (read(order.start, place) + place) // 2


@cute.jit
def sequence_of_pair(order: SequenceOrder, sequences: Int32, pair: Int32) -> tuple[Int32, Int32, Int32]:
    """(number, `pairs_before` it, pairs that its own tiles make, at least 1) of the sequence that has this pair of
    tiles, as `sequence_at`."""
    least, end = Int32(0), sequences
    while end - least > 1:
        middle = (least + end) // 2
        if pairs_before(order, middle) <= pair:
            least = middle
        else:
            end = middle
    tiles = cutlass.max(read(order.start, least + 1) - read(order.start, least), 1)
    return read(order.sequence, least), pairs_before(order, least), (tiles + 1) // 2


@cute.jit
def tile_at(
    order: SequenceOrder, sequences: Int32, heads: Int32, blocks: Int32, number: Int32
) -> tuple[Int32, Int32, Int32]:
    """(batch, head, block) of a tile's number where no tile needs another: by the order, or of `blocks` for each
    sequence. A number past the last tile has a block that no sequence has."""
    block, head, batch = number % blocks, number // blocks % heads, number // blocks // heads
    if order.given:
        tile, head = number // heads, number % heads
        batch, before, _ = sequence_at(order, sequences, tile)
        block = tile - before
        if tile >= order.tiles(sequences):
            block = blocks
    return batch, head, block
