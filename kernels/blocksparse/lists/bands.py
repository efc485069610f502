"""Block lists of bands: causal masks and sliding windows, from their parameters alone, in O(entries) + O(rows)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import (
    Align,
    LengthsLike,
    Shape,
    ceil_div,
    finished,
    list_of_ranges,
    shape_of,
    tile_starts,
)
from kernels.blocksparse.lists.schedule import DESCENDING, Schedule
from kernels.blocksparse.lists.types import OPEN, Band, BlockLists, BlockSparse
from kernels.blocksparse.spec.variant import WIDE

NESTED_TILES = 192  # of queries, from which on pairs of them are faster: docs/performance/log.md


def causal(lengths_q: LengthsLike, lengths_k: LengthsLike, *, align: Align = "top_left", **options) -> BlockSparse:
    """Query q sees keys up to q (plus len_k - len_q where aligned at the bottom right). Options: as for `band`."""
    return band(lengths_q, lengths_k, left=None, right=0, align=align, **options)


def window(lengths_q: LengthsLike, lengths_k: LengthsLike, *, left: int, right: int = 0, **options) -> BlockSparse:
    """Query q sees `left` keys before its own and `right` after it. Options: as for `band`."""
    return band(lengths_q, lengths_k, left=left, right=right, **options)


def band(
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    left: int | None,
    right: int | None,
    align: Align = "top_left",
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule = DESCENDING,
    backward: bool = True,
    device: torch.device | str | None = None,
    capacity: tuple[int, int] | None = None,
    longest: tuple[int, int] | None = None,
    wide: bool | int = False,
    nested: bool | None = None,
) -> BlockSparse:
    """Query q sees keys k with -left <= k - (q + offset) <= right; None leaves a side open.

    lengths_q, lengths_k  of the sequences: a number, numbers, or a tensor (batch,)
    align     offset is 0 ("top_left") or len_k - len_q ("bottom_right")
    schedule  descending: rows are visited in ascending order, so a CTA whose neighbour began one block further on, as
              under a causal mask and under a window, finds each dQ tile released when it comes there. In the other
              order each CTA waits for nearly all of the one before
    backward  also make backward lists and ranks
    capacity  (partial, full) elements of the index tensors, and longest (queries, keys): with both the device is asked
              nothing, see build.py
    wide      also make lists of larger tiles: 192 queries (or True), which Hopper's forward kernel takes up to head dim
              64, or 256, which Blackwell's takes up to 128; not with a capacity
    nested    the lists promise nested rows (`BlockLists.nested`), which all with an open left side have: two CTAs of
              Hopper's forward kernel then load K and V for each other, up to head dim 128 where it has more than 96, up
              to 256 where it has more than 192. None: where that is faster, from 192 tiles of queries on
    """
    if wide and capacity is not None:
        raise ValueError("wide: needs capacity None, as lists of wide tiles have other sizes")
    if align not in ("top_left", "bottom_right"):
        raise ValueError(f"align: needs 'top_left' or 'bottom_right', got {align!r}")
    left, right = (OPEN if side is None else side for side in (left, right))
    for name, side in (("left", left), ("right", right)):
        if isinstance(side, float | bool) or abs(side) > OPEN:
            raise ValueError(f"{name}: needs None or a whole number within ±{OPEN}, got {side}")
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, device, longest)
    if nested and left != OPEN:
        raise ValueError(f"nested: needs left None, got {left}")
    if nested is None:
        nested = left == OPEN and shape.m_blocks >= NESTED_TILES
    offset = shape.len_k - shape.len_q if align == "bottom_right" else torch.zeros_like(shape.len_q)
    cover, full = band_ranges(shape, left, right, offset)
    lists = BlockLists(
        list_of_ranges(
            torch.stack((cover[0], full[1]), -1)[:, None],
            torch.stack((full[0], cover[1]), -1)[:, None],
            capacity and capacity[0],
        ),
        list_of_ranges(full[0][:, None, :, None], full[1][:, None, :, None], capacity and capacity[1]),
        nested=nested,
    )
    blocks = finished(lists, Band(left, right, offset.to(torch.int32)), shape, schedule, backward)
    if not wide:
        return blocks
    options: Any = {"align": align, "tile_n": tile_n, "device": device, "longest": longest}
    tile_m = WIDE if wide is True else wide
    beside = band(lengths_q, lengths_k, left=left, right=right, tile_m=tile_m, backward=False, **options)
    return replace(blocks, wide=beside)


def band_ranges(
    shape: Shape, left: int, right: int, offset: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Half-open ranges of n blocks (batch, m_blocks) per m block: those that the band meets, and those of them where
    every query sees every key of its sequence. The second range lies inside the first; where it is empty both its ends
    are the first one's stop."""
    len_q, len_k, offset = shape.len_q[:, None], shape.len_k[:, None], offset[:, None]
    first = tile_starts(shape)[None, :]
    last = torch.minimum(first + shape.tile_m, len_q) - 1
    there = (first < len_q) & (left + right >= 0)
    zero = torch.zeros_like(first)
    start = torch.maximum(first + offset - left, zero)
    stop = torch.minimum(last + offset + right + 1, len_k)
    there = there & (start < stop)
    cover_start, cover_stop = start // shape.tile_n * there, ceil_div(stop, shape.tile_n) * there
    start = torch.maximum(last + offset - left, zero)
    stop = torch.minimum(first + offset + right + 1, len_k)
    full_start = ceil_div(start, shape.tile_n)
    full_stop = torch.where(stop == len_k, ceil_div(stop, shape.tile_n), stop // shape.tile_n)
    some = there & (full_start < full_stop)
    full_start = torch.where(some, full_start, cover_stop)
    full_stop = torch.where(some, full_stop, cover_stop)
    return (cover_start, cover_stop), (full_start, full_stop)
