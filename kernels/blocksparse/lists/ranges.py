"""Masks given as pairs of a query range and a key range, the way MagiAttention and HSTU describe packed sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import shape_of
from kernels.blocksparse.lists.intervals import intervals, merged_intervals
from kernels.blocksparse.lists.types import BlockSparse

FULL, CAUSAL, INVERSE_CAUSAL, BI_CAUSAL = range(4)


def ranges(
    q_ranges: Sequence[tuple[int, int]],
    k_ranges: Sequence[tuple[int, int]],
    types: Sequence[int],
    len_q: int,
    len_k: int,
    *,
    device: torch.device | str | None = None,
    **options,
) -> BlockSparse:
    """Lists for the union of query ranges that see key ranges. Arguments: as for `range_bounds`; options: as for
    `intervals.intervals`."""
    return intervals(range_bounds(q_ranges, k_ranges, types, len_q, len_k, device), len_q, len_k, **options)


def range_bounds(
    q_ranges: Sequence[tuple[int, int]],
    k_ranges: Sequence[tuple[int, int]],
    types: Sequence[int],
    len_q: int,
    len_k: int,
    device: torch.device | str | None = None,
) -> Tensor:
    """The `lists.Intervals` encoding of ranges, int32 (1, 1, n_func, len_q), n_func as small as the rows allow.

    q_ranges, k_ranges  half-open [start, end), one pair for each type; query q of range i sees the keys
                        start + (q - q_start if types[i] & 2) … end - (q_end - q - 1 if types[i] & 1), end excluded
    types               0 full; 1 causal, aligned at the bottom right of the pair; 2 inverse causal, aligned at its top
                        left; 3 both
    Raises ValueError for lists of unequal lengths, types out of range, ranges outside of the sequence. Asks the device
    for n_func. Memory: two numbers for each range and query.
    """
    if not len(q_ranges) == len(k_ranges) == len(types):
        raise ValueError(f"k_ranges, types: need {len(q_ranges)} of each, got {len(k_ranges)} and {len(types)}")
    for name, pairs, most in (("q_ranges", q_ranges, len_q), ("k_ranges", k_ranges, len_k)):
        if any(not 0 <= start <= end <= most for start, end in pairs):
            raise ValueError(f"{name}: needs 0 <= start <= end <= {most}, got {list(pairs)[:16]}")
    if any(kind not in range(4) for kind in types):
        raise ValueError(f"types: needs 0, 1, 2 or 3, got {list(types)[:16]}")
    table = torch.tensor([(*q, *k, t) for q, k, t in zip(q_ranges, k_ranges, types, strict=True)], dtype=torch.int32)
    q_start, q_end, k_start, k_end, kind = table.view(-1, 5).to(device).T[:, :, None].unbind()
    q = torch.arange(len_q, dtype=torch.int32, device=device)
    inside = (q_start <= q) & (q < q_end)
    start = torch.where(inside, k_start + torch.where(kind & 2 != 0, q - q_start, 0), 0)
    stop = torch.where(inside, k_end - torch.where(kind & 1 != 0, q_end - q - 1, 0), 0)
    joined = torch.stack((start, stop), 1).flatten(0, 1)
    bounds = torch.cat((torch.zeros_like(q)[None], joined))[None, None]
    start, stop = (x[0, 0] for x in merged_intervals(bounds, shape_of(len_q, len_k, 64, 64, device)))
    return _packed(start, stop)


def _packed(start: Tensor, stop: Tensor) -> Tensor:
    """Disjoint intervals (intervals, rows) in their encoding; one that starts at key 0 is F[0]."""
    from_zero = (start == 0) & (start < stop)
    first = (stop * from_zero).amax(0)
    left = (start < stop) & ~from_zero
    most = int(left.sum(0).max()) if left.numel() else 0
    order = (~left).to(torch.int8).argsort(dim=0, stable=True)[:most]
    pairs = torch.stack(((start * left).gather(0, order), (stop * left).gather(0, order)), 1).flatten(0, 1)
    return torch.cat((first[None], pairs))[None, None].to(torch.int32).contiguous()
