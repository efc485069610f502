"""Block lists of masks given as key intervals per query row, in O(rows) + O(entries): never a tensor of m x n blocks.

Each interval of each row becomes four events on its tile row's line of n blocks: it enters and leaves the blocks that
it meets, and those that it covers whole. Sorted events and a running sum give stretches of blocks of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import LengthsLike, Shape, ceil_div, finished, list_of_segments, shape_of
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, Schedule
from kernels.blocksparse.lists.types import BlockLists, BlockSparse, Intervals

_SHIFT = 20  # of the count of covering rows in an event's value; rows x intervals of one tile stay below 1 << _SHIFT


def intervals(
    bounds: Tensor,
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule = ASCENDING,
    backward: bool = True,
    capacity: tuple[int, int] | None = None,
    longest: tuple[int, int] | None = None,
) -> BlockSparse:
    """Lists for a mask in the encoding of `lists.Intervals`; everything on bounds' device.

    bounds    int32 (batch|1, heads_q|1, n_func, length), n_func odd; columns past a sequence's length are not read
    capacity  (partial, full) elements of the index tensors, and longest (queries, keys): with both the device is asked
              nothing, see build.py
    other arguments as for `bands.band`

    A block is full where every query of its sequence sees every key of its sequence in it; touching and overlapping
    intervals count as one. Raises ValueError for bounds of another dtype or shape.
    """
    if bounds.dtype != torch.int32 or bounds.dim() != 4 or bounds.shape[2] % 2 == 0:
        raise ValueError(
            f"bounds: needs int32 (batch|1, heads|1, odd n_func, length), got {bounds.dtype} {tuple(bounds.shape)}"
        )
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, bounds.device, longest)
    if bounds.shape[3] < shape.longest_q:
        raise ValueError(f"bounds: needs length at least {shape.longest_q}, the longest queries, got {bounds.shape[3]}")
    if 1 not in (bounds.shape[0], shape.batch) and bounds.shape[0] != shape.batch:
        raise ValueError(f"bounds: needs batch 1 or {shape.batch}, got {bounds.shape[0]}")
    start, stop = merged_intervals(bounds[..., : shape.longest_q], shape)
    return finished(
        _classified(start, stop, shape, capacity), Intervals(bounds.contiguous()), shape, schedule, backward
    )


def documents(
    q_bounds: Sequence[int],
    lengths_q: int,
    lengths_k: int,
    *,
    k_bounds: Sequence[int] | None = None,
    causal: bool = False,
    device: torch.device | str | None = None,
    **options,
) -> BlockSparse:
    """Queries see the keys of their own document. Bounds are the ascending positions at which a new document starts;
    the keys' own where they differ. `causal`: only keys up to the query's own position. The schedule is descending
    where none is given: ascending, a document's first KV tile would wait for the last one of the document before, with
    which it shares a dQ tile. Options: as for `intervals`."""
    options.setdefault("schedule", DESCENDING)
    return intervals(
        document_bounds(q_bounds, lengths_q, lengths_k, k_bounds, causal, device), lengths_q, lengths_k, **options
    )


def document_bounds(
    q_bounds: Sequence[int],
    len_q: int,
    len_k: int,
    k_bounds: Sequence[int] | None = None,
    causal: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """The `Intervals` encoding of documents, int32 (1, 1, 3, len_q). Raises ValueError for bounds that do not
    ascend."""
    for name, bounds in (("q_bounds", q_bounds), ("k_bounds", () if k_bounds is None else k_bounds)):
        if list(bounds) != sorted(bounds):
            raise ValueError(f"{name}: needs positions that ascend, got {list(bounds)[:16]}")
    query = torch.arange(len_q, device=device)
    document = torch.searchsorted(torch.tensor(list(q_bounds), dtype=torch.int64, device=device), query, right=True)
    edges = [0, *(q_bounds if k_bounds is None else k_bounds)]
    edges += [len_k] * (len(q_bounds) + 2 - len(edges))
    edge = torch.tensor(edges, dtype=torch.int64, device=device)
    start, stop = edge[document], edge[document + 1]
    if causal:
        stop = torch.minimum(stop, query + 1)
    return torch.stack((torch.zeros_like(start), start, stop)).to(torch.int32).view(1, 1, 3, len_q)


def merged_intervals(bounds: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Disjoint intervals that do not touch, clipped to the keys: start, stop int32 (batch, heads, intervals,
    longest_q); empty ones, and those of rows past the end, are start = stop = 0."""
    start = torch.cat((torch.zeros_like(bounds[:, :, :1]), bounds[:, :, 1::2]), 2).clamp_(min=0)
    stop = torch.minimum(bounds[:, :, ::2], shape.len_k.view(-1, 1, 1, 1).to(torch.int32))
    row = torch.arange(shape.longest_q, device=bounds.device)
    there = (start < stop) & (row < shape.len_q.view(-1, 1, 1, 1))
    never = shape.longest_k + 1
    start, order = torch.where(there, start, never).sort(2)
    stop = torch.where(there, stop, 0).gather(2, order).cummax(2).values
    opens = torch.ones_like(start, dtype=torch.bool)
    opens[:, :, 1:] = start[:, :, 1:] > stop[:, :, :-1]
    closes = torch.ones_like(opens)
    closes[:, :, :-1] = opens[:, :, 1:]
    start = torch.where(opens, start, 0).cummax(2).values
    real = closes & (start < never)
    return torch.where(real, start, 0), torch.where(real, stop, 0)


def _classified(start: Tensor, stop: Tensor, shape: Shape, capacity: tuple[int, int] | None) -> BlockLists:
    batch, heads, _, _ = start.shape
    rows, width = batch * heads * shape.m_blocks, shape.n_blocks + 1
    tile_row, weight, (enter, leave, begin, end) = _blocks_of_rows(start, stop, shape, distinct=capacity is None)
    some, whole = (enter < leave) * weight, (begin < end) * weight
    event = (tile_row * width + torch.stack((enter, leave, begin, end))).reshape(-1)
    covering = 1 << _SHIFT
    value = torch.stack((some, -some, whole * covering, whole * -covering)).reshape(-1)
    event, order = torch.sort(event)
    state = value[order].cumsum(0)
    tile_row, at = event // width, event % width
    following = torch.cat((event[1:], event[-1:])) if event.numel() else event
    length = torch.where(following // width == tile_row, following - event, 0)
    met, covered = state & (covering - 1), state >> _SHIFT
    per_row = torch.arange(shape.m_blocks, device=start.device) * shape.tile_m
    queries = (shape.len_q[:, None] - per_row).clamp(0, shape.tile_m).expand(batch, -1)
    queries = queries[:, None].expand(batch, heads, shape.m_blocks).reshape(-1)
    full = (covered > 0) & (covered == queries[tile_row]) if rows else covered > 0
    kinds = ((met > 0) & ~full, full)
    return BlockLists(
        *(
            list_of_segments(tile_row, at, length * kind, (batch, heads, shape.m_blocks), capacity and capacity[i])
            for i, kind in enumerate(kinds)
        )
    )


def _blocks_of_rows(
    start: Tensor, stop: Tensor, shape: Shape, distinct: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Intervals of each query row in n blocks, all of shape (intervals, rows of all sequences and heads).

    returns  (tile_row, weight, (enter, leave, begin, end)): number of the row's tile; how many rows it stands for; the
             blocks that an interval meets, enter … leave - 1, and those of them that it covers, begin … end - 1
    distinct neighbouring rows of a tile that are alike in blocks become one, which asks the device how many are left.
             Most are alike: masks change from block to block more than from row to row
    """
    batch, heads, intervals, length = start.shape
    enter, leave = start // shape.tile_n, ceil_div(stop, shape.tile_n)
    begin = ceil_div(start, shape.tile_n)
    end = torch.where(stop == shape.len_k.view(-1, 1, 1, 1), leave, stop // shape.tile_n)
    of_rows = [x.permute(2, 0, 1, 3).reshape(intervals, -1) for x in (enter, leave, begin, end)]
    group = torch.arange(batch * heads, device=start.device).view(batch, heads, 1) * shape.m_blocks
    tile_row = (group + torch.arange(length, device=start.device) // shape.tile_m).reshape(-1)
    weight = torch.ones_like(tile_row)
    if distinct and tile_row.numel():
        first = torch.ones_like(tile_row, dtype=torch.bool)
        first[1:] = tile_row[1:] != tile_row[:-1]
        for x in of_rows:
            first[1:] |= (x[:, 1:] != x[:, :-1]).any(0)
        kept = first.nonzero().flatten()
        weight = torch.diff(kept, append=kept.new_tensor([tile_row.numel()]))
        tile_row, of_rows = tile_row[kept], [x[:, kept] for x in of_rows]
    return tile_row, weight, tuple(of_rows)  # type: ignore[return-value]
