"""Mutants of what HSTU, MagiAttention and FlashAttention-4 do with block lists and interval masks that other code has
made: merging and flipping lists, the last tile of queries, padded rows of bounds, compact ranks, words of bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from cutlass import Int32, Uint32, cute, range_constexpr
from torch import Tensor

from kernels.blocksparse.lists.types import BlockList, BlockLists, BlockSparse, Intervals
from kernels.mutants.blocksparse.lists import flat, list_of, rows_of
from kernels.mutants.blocksparse.registration import (
    MUTANTS,
    BlockSparseMutant,
    register_list_mutant,
    register_mutant,
    unchecked,
)

PADDING = 256  # columns of HSTU's bounds beyond the last query


def _full_not_shifted(blocks: BlockSparse) -> BlockSparse:
    """Merged forward rows: full entries are written from the row's start on, over the partial ones."""
    partial, full = blocks.forward.partial, blocks.forward.full
    some, whole = [], []
    for own, more in zip(rows_of(partial), rows_of(full), strict=True):
        row = more + own[len(more) :]
        row += [0] * (len(own) + len(more) - len(row))
        some.append(row[: len(own)])
        whole.append(row[len(own) :])
    return replace(blocks, forward=BlockLists(list_of(some, partial), list_of(whole, full)))


register_list_mutant(
    "full_not_shifted_in_merge",
    "Forward: partial and full lists are merged in rows of one tensor, full entries from the row's start on instead of "
    "after the partial ones: these are overwritten.",
    "HSTU linear block lists: full lists not shifted by the mask count when merging",
    _full_not_shifted,
)


def _flipped(one: BlockList) -> BlockList:
    """The entries of each row right to left, in place of each other: what stands beside them stays."""
    index = one.index.clone()
    for begin, count in zip(one.begin.flatten().tolist(), one.count.flatten().tolist(), strict=True):
        index[begin : begin + count] = one.index[begin : begin + count].flip(0)
    return replace(one, index=index)


def _partial_flipped(blocks: BlockSparse) -> BlockSparse:
    if blocks.backward is None:
        return blocks
    return replace(blocks, backward=replace(blocks.backward, partial=_flipped(blocks.backward.partial)))


register_list_mutant(
    "partial_list_right_to_left",
    "Backward: rows of partial blocks are stored right to left, and their ranks and slots are not turned with them.",
    "HSTU linear block lists: the mask list stored right to left and not flipped",
    _partial_flipped,
)


def _last_tile_full(blocks: BlockSparse) -> BlockSparse:
    """All backward entries of the last m block are called full; slots and ranks go with their entries."""
    if blocks.backward is None:
        return blocks
    partial, full = blocks.backward.partial, blocks.backward.full
    last = blocks.m_blocks - 1
    moved = [[m for m in row if m == last] for row in rows_of(partial)]
    whole = [row + more for row, more in zip(rows_of(full), moved, strict=True)]
    kept = [[place for place, m in enumerate(row) if m != last] for row in rows_of(partial)]
    rest = list_of([[row[at] for at in places] for row, places in zip(rows_of(partial), kept, strict=True)], partial)
    mask = blocks.mask
    if getattr(mask, "slot_backward", None) is not None:
        slots = rows_of(partial, mask.slot_backward)  # type: ignore[union-attr]
        chosen = [[row[at] for at in places] for row, places in zip(slots, kept, strict=True)]
        mask = replace(mask, slot_backward=flat(chosen, partial))  # type: ignore[type-var]
    lists = BlockLists(rest, list_of(whole, full))
    return replace(blocks, backward=lists, mask=mask, order=None, merged=False)


register_list_mutant(
    "last_query_tile_called_full",
    "Backward: blocks of the last tile of queries are called full: O is right, its gradients see what is masked.",
    "HSTU block masks: rows beyond the last query count as FULL in lists for the backward pass too",
    _last_tile_full,
)


def _padding_not_skipped(blocks: BlockSparse) -> BlockSparse:
    if not isinstance(blocks.mask, Intervals):
        return blocks
    bounds = blocks.mask.bounds
    padded = torch.nn.functional.pad(bounds, (0, PADDING)).flatten(2)
    return replace(blocks, mask=Intervals(padded[..., : bounds[0, 0].numel()].view(bounds.shape).contiguous()))


register_list_mutant(
    "bounds_padding_not_skipped",
    "Rows of key intervals, padded by 256 columns, are read as if they were not: all but F[0] are those of others.",
    "HSTU masks: bounds (…, n_func, queries + 256), the padding read",
    _padding_not_skipped,
)


def _dense_order_alone(q: Tensor, k: Tensor, v: Tensor, blocks: BlockSparse, **options: Any) -> tuple[Tensor, Tensor]:
    """The attention, for ranks of as many elements as all blocks of the grid; a ValueError for others."""
    if blocks.backward is not None and blocks.order is not None:
        dense = blocks.backward.partial.count.numel() * blocks.m_blocks
        if blocks.order.partial.numel() != dense:
            raise ValueError(f"order: needs {dense} ranks, a whole grid, got {blocks.order.partial.numel()}")
    return unchecked(lambda given: given, q, k, v, blocks, **options)


MUTANTS["compact_order_refused"] = BlockSparseMutant(
    "compact_order_refused",
    "Ranks are checked against the shape of a whole grid of blocks: those of compact lists are refused.",
    "FlashAttention pull request 2253, review: dq_write_order expected in the dense shape",
    "metadata",
    _dense_order_alone,
)


@cute.jit
def _keep_before_unclamped(mask_rows, keys_left: Int32) -> None:
    for w in range_constexpr(mask_rows.n_words):
        shifted = cute.arch.inline_ptx(
            "shl.b32 {$w0}, {$r0}, {$r1};",
            write_only_types=[Uint32],
            read_only_args=[Uint32(1), Uint32(keys_left - 32 * w)],
        )
        for i in range_constexpr(mask_rows.rows):
            mask_rows.words[i, w] = mask_rows.words[i, w] & (shifted - Uint32(1))


register_mutant(
    "tail_words_not_clamped",
    "Forward: words that mask keys beyond the end are (1 << left) - 1 with left not clamped at 0: those past the end "
    "keep all keys, with score 0.",
    "HSTU and FlashAttention-4: R2P bit masks, (1 << b) - 1 without clamping b",
    forward={"keep_keys": _keep_before_unclamped},
)
