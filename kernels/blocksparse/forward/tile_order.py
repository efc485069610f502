# CuTe DSL is traced: shapes and values have no static types
# mypy: ignore-errors
"""The order in which the tiles of queries of all heads and sequences are worked through."""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from kernels.blocksparse.common.arguments import sequence_order_of
from kernels.blocksparse.common.list_reader import read
from kernels.blocksparse.common.sequence_order import SequenceOrder, sequence_at


class Order(NamedTuple):
    """Order of the work of all CTAs.

    schedule         0 for a head's tiles from the first, 1 from the last, 2 from positions
    l2_head_section  heads whose tiles are launched together; where sequences have an order, of the longest one
    positions        int32: m block of each launch position, at [b·stride_batch + h·stride_head + position]
    sequences        order of the sequences, each of which then has sections of its own
    """

    schedule: Int32
    l2_head_section: Int32
    positions: cute.Pointer
    stride_batch: Int64
    stride_head: Int64
    sequences: SequenceOrder


def order_of(arguments) -> Order:
    """The order among the arguments of a kernel that works on tiles of queries."""
    a = arguments
    of_positions = a.positions, a.positions_stride_batch, a.positions_stride_head
    return Order(a.schedule, a.l2_head_section, *of_positions, sequence_order_of(a, "order"))


@cute.jit
def tiles_of(shape, order: Order) -> Int32:
    """Tiles of all heads, those past a sequence's end among them where sequences have no order."""
    sequences, heads_q, _, m_blocks = shape
    tiles = sequences * m_blocks
    if order.sequences.given:
        tiles = order.sequences.tiles(sequences)
    return tiles * heads_q


@cute.jit
def place_of(number: Int32, shape, order: Order) -> tuple[Int32, Int32, Int32]:
    """(batch, head, m_block) of a tile's number in the order of launches; a number past the last tile is one past a
    sequence's end."""
    sequences, heads_q, _, m_blocks = shape
    first, tiles, past = Int32(0), m_blocks, Boolean(False)
    if order.sequences.given:
        past = number >= tiles_of(shape, order)
        first, before, tiles = sequence_at(order.sequences, sequences, number // heads_q)
        number -= before * heads_q
        sequences = Int32(1)
        if past:
            number = Int32(0)
    section = order.l2_head_section * m_blocks // tiles  # so that as many tiles are in one of a shorter sequence
    heads_before = number // (section * tiles) * section
    heads_here = cutlass.min(section, sequences * heads_q - heads_before)
    place = number - heads_before * tiles
    m_block, group_head = place // heads_here, heads_before + place % heads_here
    batch, head = first + group_head // heads_q, group_head % heads_q
    if order.schedule == 1:
        m_block = tiles - 1 - m_block
    if order.schedule == 2:
        m_block = read(order.positions, batch * order.stride_batch + head * order.stride_head + m_block)
    if past:
        m_block = m_blocks
    return batch, head, m_block
