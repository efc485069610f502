"""Mutants of the metadata of `kernels.blocksparse`: lists, their transposition, slots, ranks, schedules.

None needs a kernel of its own. Where the lists that a bug acts on are not there (no packed bits, one head), the
metadata stays right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kernels.blocksparse.lists.schedule import permutation
from kernels.blocksparse.lists.transpose import transpose, with_backward
from kernels.blocksparse.lists.types import (
    Bits,
    BlockList,
    BlockLists,
    BlockSparse,
    WriteOrder,
    entries,
)
from kernels.blocksparse.lists.write_order import in_launch_order, with_order, write_order
from kernels.mutants.blocksparse.registration import register_list_mutant


def rows_of(one: BlockList, beside: Tensor | None = None) -> list[list[int]]:
    """The entries of every row, (sequence, head, row) by row; or what stands beside them in a parallel tensor."""
    values = (one.index if beside is None else beside).tolist()
    where = zip(one.begin.flatten().tolist(), one.count.flatten().tolist(), strict=True)
    return [values[begin : begin + count] for begin, count in where]


def flat(rows: list[list[int]], like: BlockList) -> Tensor:
    """Rows one after the other, int32, at least one element."""
    values = [value for row in rows for value in row]
    return torch.tensor(values or [0], dtype=torch.int32, device=like.index.device)


def list_of(rows: list[list[int]], like: BlockList) -> BlockList:
    """The list with these rows, of the shape of another one."""
    count = torch.tensor([len(row) for row in rows], dtype=torch.int32, device=like.index.device)
    return BlockList.csr(count.view(like.count.shape), flat(rows, like))


def redone(blocks: BlockSparse) -> BlockSparse:
    """Backward lists and ranks made again from changed forward lists."""
    return blocks if blocks.backward is None else with_order(with_backward(blocks, blocks.backward.rows))


def reordered(blocks: BlockSparse, backward: BlockLists) -> BlockSparse:
    """Other backward lists, with their ranks."""
    return replace(blocks, backward=backward, order=write_order(backward, blocks.schedule, blocks.m_blocks))


def both(lists: BlockLists, change: Callable[[BlockList], BlockList]) -> BlockLists:
    """A change of partial and full lists alike."""
    return BlockLists(change(lists.partial), change(lists.full))


def both_ways(blocks: BlockSparse, change: Callable[[BlockList], BlockList]) -> BlockSparse:
    """A change of all lists, which leaves their index tensors, and what is parallel to them, as they are."""
    backward = None if blocks.backward is None else both(blocks.backward, change)
    return replace(blocks, forward=both(blocks.forward, change), backward=backward)


# Which blocks, and of which kind


def _called_full(blocks: BlockSparse) -> BlockSparse:
    partial, full = blocks.forward.partial, blocks.forward.full
    joined = [some + more for some, more in zip(rows_of(partial), rows_of(full), strict=True)]
    return redone(replace(blocks, forward=BlockLists(list_of([[] for _ in joined], partial), list_of(joined, full))))


register_list_mutant(
    "partial_called_full",
    "Blocks that the mask meets are called full: what it forbids in them counts.",
    "HSTU block masks: overlap with an interval taken for FULL",
    _called_full,
)


def _called_partial(blocks: BlockSparse) -> BlockSparse:
    mask, (partial, full) = blocks.mask, (blocks.forward.partial, blocks.forward.full)
    if not isinstance(mask, Bits):
        return blocks
    joined = [some + more for some, more in zip(rows_of(partial), rows_of(full), strict=True)]
    slots = [
        own + [0] * len(more) for own, more in zip(rows_of(partial, mask.slot), rows_of(full), strict=True)
    ]  # slot 0 is some other block's
    forward = BlockLists(list_of(joined, partial), list_of([[] for _ in joined], full))
    return redone(replace(blocks, forward=forward, mask=replace(mask, slot=flat(slots, partial))))


register_list_mutant(
    "full_listed_with_stale_slot",
    "Full blocks are listed as partial without bits of their own: they are masked as the first partial block is.",
    "invented, after FlexAttention's relation of full to partial blocks (PyTorch issue 182593)",
    _called_partial,
)


def _listed_twice(blocks: BlockSparse) -> BlockSparse:
    full = blocks.forward.full
    twice = list_of([row + row[-1:] for row in rows_of(full)], full)
    return replace(blocks, forward=BlockLists(blocks.forward.partial, twice))


register_list_mutant(
    "block_listed_twice",
    "Forward: the last full block of each row is listed twice, and its keys count twice.",
    "NVIDIA cudnn-frontend issue 385: duplicate indices; Meta's NSA expands selected blocks without removing doubles",
    _listed_twice,
)


def _longest_row_cut(blocks: BlockSparse) -> BlockSparse:
    full = blocks.forward.full
    if not full.count.numel():
        return blocks
    cut = replace(full, count=full.count.clamp(max=max(int(full.count.max()) - 1, 0)))
    return replace(blocks, forward=BlockLists(blocks.forward.partial, cut))


register_list_mutant(
    "longest_row_cut",
    "Forward: a list's width is one too small, so that its longest rows silently lose their last full block.",
    "HSTU linear block lists: a hint max_combined that is too small truncates",
    _longest_row_cut,
)


# The other direction


def _not_transposed(blocks: BlockSparse) -> BlockSparse:
    if blocks.backward is None or blocks.backward.rows != blocks.m_blocks or blocks.tile_m != blocks.tile_n:
        return blocks
    mask = replace(blocks.mask, slot_backward=blocks.mask.slot) if isinstance(blocks.mask, Bits) else blocks.mask
    return reordered(replace(blocks, mask=mask), blocks.forward)


register_list_mutant(
    "lists_not_transposed",
    "The backward pass gets the forward lists, where there are as many tiles of queries as of keys: O is right, "
    "gradients are wrong unless the mask is symmetric.",
    "FlashAttention issue 2623: block-sparse gradients silently wrong, a transposed list is needed",
    _not_transposed,
)


def _unused_transposed(blocks: BlockSparse) -> BlockSparse:
    if blocks.backward is None:
        return blocks
    full = blocks.forward.full
    rows = rows_of(full)
    width = max(map(len, rows), default=0)
    padded = list_of([row + [0] * (width - len(row)) for row in rows], full)
    return reordered(blocks, replace(blocks.backward, full=transpose(padded, blocks.backward.rows)[0]))


register_list_mutant(
    "unused_entries_transposed",
    "Transposing reads rows to their full width: unused entries name block 0, whose dK and dV get too much.",
    "Meta's NSA, transposition for the backward pass: counts ignored, padding reads as block 0",
    _unused_transposed,
)


def _last_row_lost(blocks: BlockSparse) -> BlockSparse:
    if blocks.backward is None:
        return blocks

    def cut(one: BlockList) -> BlockList:
        count = one.count.clone()
        count[..., -1:] = 0
        return replace(one, count=count)

    short = redone(replace(blocks, forward=both(blocks.forward, cut)))
    return replace(short, forward=blocks.forward)


register_list_mutant(
    "last_row_not_transposed",
    "Transposing stops one row early: gradients miss the last tile of queries.",
    "invented, after the loops of Meta's NSA over floor(length / tile) tiles",
    _last_row_lost,
)


def _multiples_of_32_cut(blocks: BlockSparse) -> BlockSparse:
    if blocks.backward is None:
        return blocks

    def cut(one: BlockList) -> BlockList:
        lost = (one.count > 0) & (one.count % 32 == 0)
        return replace(one, count=one.count - lost.to(one.count.dtype))

    return reordered(blocks, both(blocks.backward, cut))


register_list_mutant(
    "column_of_32_loses_its_last",
    "Transposing loses the last block of a column whose entries are a multiple of 32: gradients miss it.",
    "invented, after scans and ballots over words of 32 blocks",
    _multiples_of_32_cut,
)


def _slots_as_forward(blocks: BlockSparse) -> BlockSparse:
    mask = blocks.mask
    if blocks.backward is None or not isinstance(mask, Bits) or mask.slot_backward is None:
        return blocks
    one, other = entries(blocks.forward.partial), entries(blocks.backward.partial)
    slots = mask.slot_backward.clone()
    slots[other.place[other.valid]] = mask.slot[one.place[one.valid]]
    return replace(blocks, mask=replace(mask, slot_backward=slots))


register_list_mutant(
    "slots_not_transposed",
    "Backward entries have their slots in the order of the forward lists: each is masked as some other block.",
    "FlashAttention-4 b3f1b6a5: a wrong index into what runs parallel; invented for slots",
    _slots_as_forward,
)


# Broadcasting, batch and heads


def _sequence_ignored(blocks: BlockSparse) -> BlockSparse:
    def of(one: BlockList) -> BlockList:
        count, begin = (x[:1].expand(x.shape).contiguous() for x in (one.count, one.begin))
        return BlockList(count, one.index, begin)

    return both_ways(blocks, of)


register_list_mutant(
    "sequence_ignored",
    "All sequences use the first one's block lists: wrong where sequences differ in length or mask.",
    "MagiAttention's arbitrary mask: broadcast indices taken for 0",
    _sequence_ignored,
)


def _axes_swapped(blocks: BlockSparse) -> BlockSparse:
    def of(one: BlockList) -> BlockList:
        batch, heads, rows = one.count.shape
        swapped = (x.view(heads, batch, rows).transpose(0, 1).contiguous() for x in (one.count, one.begin))
        count, begin = swapped
        return BlockList(count, one.index, begin)

    return both_ways(blocks, of)


register_list_mutant(
    "heads_and_sequences_swapped",
    "Lists that are (heads, sequences) are read as (sequences, heads): wrong where both are several and differ.",
    "FlashAttention-4 68649fb7: a head's index in a mask, divided the wrong way",
    _axes_swapped,
)


def _empty_not_counted(blocks: BlockSparse) -> BlockSparse:
    batch = blocks.forward.partial.batch
    there = (blocks.forward.partial.count.flatten(1).sum(1) + blocks.forward.full.count.flatten(1).sum(1)) > 0
    if batch == 1 or bool(there.all()):
        return blocks
    at = (there.cumsum(0) - 1).clamp(min=0)

    def of(one: BlockList) -> BlockList:
        return BlockList(one.count[at].contiguous(), one.index, one.begin[at].contiguous())

    return both_ways(blocks, of)


register_list_mutant(
    "empty_sequence_not_counted",
    "A sequence without any block has no place of its own in the lists: those after it use their predecessor's.",
    "FlashAttention issues 443, 1713: sequences of length zero among others",
    _empty_not_counted,
)


# Ranks and schedules


def _ranks_by(blocks: BlockSparse, tile_of: Callable[[int, int], int]) -> BlockSparse:
    """Ranks in launch order among the entries that share tile_of(group, m), groups being (sequence, head)."""
    if blocks.backward is None:
        return blocks
    merged = in_launch_order(blocks.backward, blocks.schedule)
    e, index = entries(merged), merged.index.tolist()
    ranks, seen = torch.zeros_like(merged.index), Counter[int]()
    for row, place in zip(e.row[e.valid].tolist(), e.place[e.valid].tolist(), strict=True):
        tile = tile_of(row // merged.rows, index[place])
        ranks[place] = seen[tile]
        seen[tile] += 1
    split = blocks.backward.partial.capacity
    return replace(blocks, order=WriteOrder(ranks[:split], ranks[split:]))


register_list_mutant(
    "rank_over_all_heads",
    "KV tiles are ranked among those of all sequences and heads: later heads wait for locks that are never reached.",
    "HSTU linear block lists: (batch, head) missing in the key that ranks are grouped by",
    lambda blocks: _ranks_by(blocks, lambda group, m: m),
)
register_list_mutant(
    "rank_groups_collide",
    "Ranks are grouped by group * n_blocks + m: with more tiles of queries than of keys, groups run into another.",
    "HSTU linear block lists: a segment multiplier from the number of KV tiles alone",
    lambda blocks: _ranks_by(blocks, lambda group, m: group * (blocks.backward.rows if blocks.backward else 1) + m),
)


def _inverted(blocks: BlockSparse) -> BlockSparse:
    positions = blocks.schedule.positions
    if positions is None:
        return blocks
    return replace(blocks, schedule=permutation(positions.argsort(-1).to(torch.int32).contiguous()))


register_list_mutant(
    "permutation_inverted",
    "A schedule's permutation is launched as its inverse, while ranks follow the permutation itself.",
    "FlashAttention pull request 2253: launch order and ranks that disagree",
    _inverted,
)


def _launched_twice(blocks: BlockSparse) -> BlockSparse:
    if blocks.backward is None or blocks.backward.rows < 2:
        return blocks
    order = blocks.schedule.launch_order(blocks.backward.rows, blocks.device).clone()
    order[..., -1] = order[..., 0]
    return replace(blocks, schedule=permutation(order))


register_list_mutant(
    "tile_launched_twice",
    "The schedule names its first KV tile twice and its last one never: no gradients for that one.",
    "FlashAttention-4 7a08d7a5: a tile is run again after the scheduler's state is rebuilt",
    _launched_twice,
)
