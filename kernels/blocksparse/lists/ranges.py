"""Masks given as pairs of a query range and a key range, the way MagiAttention and HSTU describe packed sequences; both
ways between them and intervals per query row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import TILES, shape_of
from kernels.blocksparse.lists.intervals import intervals, merged_intervals
from kernels.blocksparse.lists.types import BlockSparse

FULL, CAUSAL, INVERSE_CAUSAL, BI_CAUSAL = range(4)
Ranges: TypeAlias = Sequence[tuple[int, int]]
Row: TypeAlias = tuple[int, int, int, int, int]  # q_start, q_end, type, k_start, k_end


def ranges(
    q_ranges: Ranges,
    k_ranges: Ranges,
    types: Sequence[int],
    len_q: int | Sequence[int],
    len_k: int | Sequence[int],
    *,
    device: torch.device | str | None = None,
    **options,
) -> BlockSparse:
    """Lists for the union of query ranges that see key ranges. Arguments: as for `range_bounds`; options: as for
    `intervals.intervals`."""
    return intervals(range_bounds(q_ranges, k_ranges, types, len_q, len_k, device), len_q, len_k, **options)


def range_bounds(
    q_ranges: Ranges,
    k_ranges: Ranges,
    types: Sequence[int],
    len_q: int | Sequence[int],
    len_k: int | Sequence[int],
    device: torch.device | str | None = None,
) -> Tensor:
    """The `lists.Intervals` encoding of ranges, int32 (batch, 1, n_func, longest query sequence), n_func as small as
    the rows allow.

    q_ranges, k_ranges  half-open [start, end), one pair for each type; query q of range i sees the keys
                        start + (q - q_start if types[i] & 2) … end - (q_end - q - 1 if types[i] & 1), end excluded
    types               0 full; 1 causal, aligned at the bottom right of the pair; 2 inverse causal, aligned at its top
                        left; 3 both
    len_q, len_k        one length, of one sequence (batch 1); or those of packed sequences: positions of ranges then
                        count over all of them, and both ranges of a pair lie in the same sequence
    Raises ValueError for lists of unequal lengths, types out of range, ranges outside of their sequence. Asks the
    device for n_func. Time and memory: the sum of the query ranges' lengths, and the result.
    """
    rows_q, rows_k = ([x] if isinstance(x, int) else list(x) for x in (len_q, len_k))
    table = _local(_checked(q_ranges, k_ranges, types, rows_q, rows_k), rows_q, rows_k)
    rows = max(rows_q)
    line, start, stop = _keys_of_queries(table.to(device), rows)
    line, start, stop = _merged(line, start, stop, max(rows_k))
    return _encoded(line, start, stop, len(rows_q), rows)


def bounds_ranges(bounds: Tensor) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]:
    """The query ranges, key ranges and types of an encoding, the other way of `range_bounds`: each query and key that
    sees another is in exactly one pair of ranges.

    bounds  int32 (1, 1, n_func, length): one sequence, all heads alike; positions inside of it
    A range grows by a query while its ends stay, or move by one key with each query. Asks the device once. Memory:
    a few numbers for each bound; time: that, and a step on the host for each range.
    Raises ValueError for bounds of another shape.
    """
    if bounds.dim() != 4 or bounds.shape[:2] != (1, 1) or bounds.shape[2] % 2 == 0:
        raise ValueError(f"bounds: needs (1, 1, odd n_func, length), got {tuple(bounds.shape)}")
    longest = max(int(bounds.max()), 0) if bounds.numel() else 0
    shape = shape_of(bounds.shape[3], longest, TILES[0], TILES[0], bounds.device)
    start, stop = (x[0, 0].cpu().long() for x in merged_intervals(bounds, shape))
    q_ranges, k_ranges, types = [], [], []
    for q_start, q_end, kind, k_start, k_end in sorted(row for x in zip(start, stop, strict=True) for row in _runs(*x)):
        q_ranges.append((q_start, q_end))
        k_ranges.append((k_start, k_end))
        types.append(kind)
    return q_ranges, k_ranges, types


def _checked(q_ranges: Ranges, k_ranges: Ranges, types: Sequence[int], rows_q: list[int], rows_k: list[int]) -> Tensor:
    """The ranges as int64 (ranges, 5): q_start, q_end, k_start, k_end, type."""
    if not len(q_ranges) == len(k_ranges) == len(types):
        raise ValueError(f"k_ranges, types: need {len(q_ranges)} of each, got {len(k_ranges)} and {len(types)}")
    if len(rows_q) != len(rows_k) or not rows_q:
        raise ValueError(f"len_k: needs {len(rows_q)} lengths as len_q, at least one, got {len(rows_k)}")
    for name, pairs, most in (("q_ranges", q_ranges, sum(rows_q)), ("k_ranges", k_ranges, sum(rows_k))):
        if any(not 0 <= start <= end <= most for start, end in pairs):
            raise ValueError(f"{name}: needs 0 <= start <= end <= {most}, got {list(pairs)[:16]}")
    if any(kind not in range(4) for kind in types):
        raise ValueError(f"types: needs 0, 1, 2 or 3, got {list(types)[:16]}")
    rows = [(*q, *k, t) for q, k, t in zip(q_ranges, k_ranges, types, strict=True)]
    return torch.tensor(rows, dtype=torch.int64).view(-1, 5)


def _local(table: Tensor, rows_q: list[int], rows_k: list[int]) -> Tensor:
    """The ranges that hold a query and a key, with positions inside of their sequence: (ranges, 6), the sequence
    first."""
    table = table[(table[:, 0] < table[:, 1]) & (table[:, 2] < table[:, 3])]
    first_q, first_k = (torch.tensor([0, *accumulate(rows)]) for rows in (rows_q, rows_k))
    sequence = torch.searchsorted(first_q, table[:, 0].contiguous(), right=True) - 1
    base_q, base_k = first_q[sequence], first_k[sequence]
    outside = (table[:, 1] > first_q[sequence + 1]) | (table[:, 2] < base_k) | (table[:, 3] > first_k[sequence + 1])
    if bool(outside.any()):
        raise ValueError(f"k_ranges: need both ranges of a pair in one sequence, got {table[outside][0, :4].tolist()}")
    q, k, kind = table[:, :2] - base_q[:, None], table[:, 2:4] - base_k[:, None], table[:, 4:]
    return torch.cat((sequence[:, None], q, k, kind), 1)


def _keys_of_queries(table: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """What each query of each range sees, empty ones left out: (line, start, stop), line = sequence * rows + query."""
    queries = table[:, 2] - table[:, 1]
    total = int(queries.sum())
    which = torch.repeat_interleave(torch.arange(len(table), device=table.device), queries, output_size=total)
    sequence, q_start, q_end, k_start, k_end, kind = table[which].T
    at = torch.arange(total, device=table.device) - (queries.cumsum(0) - queries)[which]
    start = k_start + torch.where(kind & INVERSE_CAUSAL != 0, at, 0)
    stop = k_end - torch.where(kind & CAUSAL != 0, q_end - q_start - at - 1, 0)
    kept = (start < stop).nonzero().flatten()
    return (sequence * rows + q_start + at)[kept], start[kept], stop[kept]


def _merged(line: Tensor, start: Tensor, stop: Tensor, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """The intervals sorted by line and start, those of a line that touch or overlap made one.

    Positions become numbers that ascend over all lines, `keys` + 2 for each: no interval touches one of another line.
    """
    base = line * (keys + 2)
    begin, order = (base + start).sort()
    reached = (base + stop)[order].cummax(0).values
    first = torch.ones_like(begin, dtype=torch.bool)
    first[1:] = begin[1:] > reached[:-1]
    last = torch.ones_like(first)
    last[:-1] = first[1:]
    begin, end = begin[first], reached[last]
    line = begin // (keys + 2)
    return line, begin - line * (keys + 2), end - line * (keys + 2)


def _encoded(line: Tensor, start: Tensor, stop: Tensor, batch: int, rows: int) -> Tensor:
    """Disjoint intervals in their encoding, those of a line one after the other; one from key 0 is F[0]."""
    from_zero = start == 0
    count = torch.bincount(line[~from_zero], minlength=batch * rows)
    most = int(count.max()) if count.numel() else 0
    bounds = torch.zeros((2 * most + 1, batch * rows), dtype=torch.int32, device=line.device)
    bounds[0, line[from_zero]] = stop[from_zero].to(torch.int32)
    line, start, stop = (x[~from_zero] for x in (line, start, stop))
    at = torch.arange(len(line), device=line.device) - (count.cumsum(0) - count)[line]
    bounds[2 * at + 1, line] = start.to(torch.int32)
    bounds[2 * at + 2, line] = stop.to(torch.int32)
    return bounds.view(2 * most + 1, batch, 1, rows).permute(1, 2, 0, 3).contiguous()


def _runs(start: Tensor, stop: Tensor) -> Iterator[Row]:
    """The ranges of one interval of each query; start, stop int64 (length,).

    Steps from a query to the next are alike in stretches; a stretch is a range, without the query that the range before
    it ends with.
    """
    by_start, by_stop, some = start.diff(), stop.diff(), start < stop
    straight = (by_start >= 0) & (by_start <= 1) & (by_stop >= 0) & (by_stop <= 1) & some[:-1] & some[1:]
    kind = torch.where(straight, 2 * by_start + by_stop, -1)
    edges = [0, *((kind.diff() != 0).nonzero().flatten() + 1).tolist(), len(kind)]
    query = 0  # the next one that is in no range
    for first, last in pairwise(edges) if len(kind) else ():
        if int(kind[first]) < 0:
            alone = some[query:last].nonzero().flatten() + query
            yield from ((q, q + 1, FULL, int(start[q]), int(stop[q])) for q in alone.tolist())
            query = max(query, last)
        elif query < last:
            yield query, last + 1, int(kind[first]), int(start[query]), int(stop[last])
            query = last + 1
    if query < len(start) and bool(some[query]):
        yield query, query + 1, FULL, int(start[query]), int(stop[query])
