"""What a CTA of the backward kernel works on: its tile of keys, and the blocks of queries that the lists name for
it."""

from typing import NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from kernels.blocksparse.backward.device import take_ticket
from kernels.blocksparse.common.lists import BlockList, read


class Order(NamedTuple):
    """Who works on what, when.

    schedule   0 ascending n blocks, 1 descending, 2 from positions
    positions  int32: n block of each launch position, at [b·stride_batch + h·stride_head + position] with h a KV head
    pairs      (batch, head_kv) pairs that are launched side by side: their positions are interleaved
    ticket     int32, zero before the launch; semaphores int32 (batch, heads_q, m_blocks)
    """

    schedule: Int32
    positions: cute.Pointer
    stride_batch: Int64
    stride_head: Int64
    pairs: Int32
    ticket: cute.Pointer
    semaphores: cute.Pointer


class Counts(NamedTuple):
    """Sizes of the problem; `group` query heads share a KV head; m_blocks and n_blocks of the longest sequence."""

    batch: Int32
    heads_q: Int32
    heads_kv: Int32
    group: Int32
    m_blocks: Int32
    n_blocks: Int32


class Block(NamedTuple):
    """An entry of the lists: query head, m block, place in its list's index, 1 where it is partial."""

    head: Int32
    m_block: Int32
    place: Int64
    partial: Int32


class Cursor(NamedTuple):
    """The next entry to look up: entry number `entry` of the row of query head `head`."""

    head: Int32
    entry: Int32


@cute.jit
def take_place(by_ticket: cutlass.Constexpr, order: Order, counts: Counts, sTicket: cute.Tensor, thread: Int32):
    """(batch, head_kv, n_block) of this CTA.

    By ticket, CTAs take their places in the order in which they start, whatever the hardware does. Positions are
    slowest within `order.pairs` pairs of (batch, head_kv), so a pair's lower positions always have lower numbers.
    """
    number = cute.arch.block_idx()[0]
    if cutlass.const_expr(by_ticket):
        if thread == 0:
            sTicket[0] = take_ticket(order.ticket)
        cute.arch.sync_threads()
        number = sTicket[0]
    first = number // (counts.n_blocks * order.pairs) * order.pairs
    number = number - first * counts.n_blocks
    side_by_side = cutlass.min(order.pairs, counts.batch * counts.heads_kv - first)
    position = number // side_by_side
    pair = first + number - position * side_by_side
    batch = pair // counts.heads_kv
    head_kv = pair - batch * counts.heads_kv
    n_block = position
    if order.schedule == 1:
        n_block = counts.n_blocks - 1 - position
    if order.schedule == 2:
        n_block = read(order.positions, batch * order.stride_batch + head_kv * order.stride_head + position)
    return batch, head_kv, n_block


@cute.jit
def entries(
    partial: BlockList, full: BlockList, batch: Int32, n_block: Int32, first_head: Int32, group: Int32
) -> Int32:
    """Blocks that the lists name for a tile of keys, over all query heads of its group."""
    total = Int32(0)
    for g in cutlass.range(group, unroll=1):
        partials, _ = partial.row(batch, first_head + g, n_block)
        fulls, _ = full.row(batch, first_head + g, n_block)
        total += partials + fulls
    return total


@cute.jit
def look_up(partial: BlockList, full: BlockList, batch: Int32, n_block: Int32, cursor: Cursor):
    """(block, next cursor) at the cursor, past heads that have none left; there must be one. A row's partial blocks
    come first."""
    head, entry = cursor.head, cursor.entry
    partials, partial_at = partial.row(batch, head, n_block)
    fulls, full_at = full.row(batch, head, n_block)
    while entry >= partials + fulls:
        head += 1
        entry = Int32(0)
        partials, partial_at = partial.row(batch, head, n_block)
        fulls, full_at = full.row(batch, head, n_block)
    place = full_at + (entry - partials)
    m_block = Int32(0)
    if entry < partials:
        place = partial_at + entry
        m_block = read(partial.index, place)
    else:
        m_block = read(full.index, place)
    return Block(head, m_block, place, Int32(entry < partials)), Cursor(head, entry + 1)
