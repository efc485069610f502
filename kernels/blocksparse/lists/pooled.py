"""Block lists over pooled keys: key j stands for the tokens j·pool … (j+1)·pool - 1, and queries see a first part of
them that grows with a slope of 1 / pool.

A query sees key j where j·pool <= i (its pool has begun, "begun") or where (j+1)·pool <= i+1 (no token of it comes
later, "ended"). As `lists.Intervals` both are one bound per query; the lists follow from the bounds of each tile's
first and last query alone, in O(entries), and nothing is asked of the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import (
    LengthsLike,
    Shape,
    ceil_div,
    finished,
    list_of_ranges,
    shape_of,
    tile_starts,
)
from kernels.blocksparse.lists.schedule import DESCENDING, Schedule
from kernels.blocksparse.lists.types import BlockLists, BlockSparse, Intervals


@dataclass(frozen=True)
class PoolRule:
    """When a query sees a pooled key.

    pool  tokens of a key
    when  "begun": j·pool <= i; "ended": (j+1)·pool <= i+1
    """

    pool: int
    when: Literal["begun", "ended"]


def pools_seen(query: Tensor, rule: PoolRule) -> Tensor:
    """Pooled keys that a query sees: those below this number."""
    if rule.when == "begun":
        return query.div(rule.pool, rounding_mode="floor") + 1
    return (query + 1).div(rule.pool, rounding_mode="floor")


def pool_bounds(length: int, rule: PoolRule, device: torch.device) -> Tensor:
    """The rule as `Intervals.bounds`, int32 (1, 1, 1, length); at least one query long."""
    query = torch.arange(max(length, 1), dtype=torch.int32, device=device)
    return pools_seen(query, rule).view(1, 1, 1, -1)


def pooled(
    lengths_q: LengthsLike,
    lengths_k: LengthsLike,
    *,
    rule: PoolRule | None,
    tile_m: int = 128,
    tile_n: int = 128,
    schedule: Schedule = DESCENDING,
    backward: bool = True,
    device: torch.device | str | None = None,
    longest: tuple[int, int] | None = None,
) -> BlockSparse:
    """Queries see the pooled keys that `rule` allows; None: all of their sequence.

    lengths_k  pooled keys of the sequences
    longest    (queries, keys) of the longest sequences; None: the device is asked where lengths are tensors
    other arguments as for `bands.band`
    """
    shape = shape_of(lengths_q, lengths_k, tile_m, tile_n, device, longest)
    first = tile_starts(shape)
    there = first < shape.len_q[:, None]
    last = torch.minimum(first + tile_m, shape.len_q[:, None]) - 1
    len_k = shape.len_k[:, None]
    if rule is None:
        seen_first = seen_last = len_k.expand(-1, shape.m_blocks)
    else:
        seen_first = torch.minimum(pools_seen(first, rule), len_k)
        seen_last = torch.minimum(pools_seen(last, rule), len_k)
    cover = ceil_div(seen_last, tile_n) * there
    full = torch.where(seen_first == len_k, cover, seen_first // tile_n * there)
    zero = torch.zeros_like(cover)
    ranges = ((full, cover), (zero, full))
    device = shape.len_q.device
    lists = BlockLists(
        *(
            list_of_ranges(start[:, None, :, None], stop[:, None, :, None], most)
            for (start, stop), most in zip(ranges, _capacity(shape, rule), strict=True)
        )
    )
    mask = None if rule is None else Intervals(pool_bounds(shape.longest_q, rule, device))
    return finished(lists, mask, shape, schedule, backward)


def _capacity(shape: Shape, rule: PoolRule | None) -> tuple[int, int]:
    """The most (partial, full) entries that sequences of at most the longest's lengths have."""
    rows = shape.batch * shape.m_blocks
    if rule is None:
        return 1, max(rows * shape.n_blocks, 1)
    partial = min(ceil_div(ceil_div(shape.tile_m, rule.pool) + 1, shape.tile_n) + 1, shape.n_blocks)
    full = _most_full(shape.m_blocks, shape.n_blocks, shape.tile_m, rule.pool * shape.tile_n)
    return max(rows * partial, 1), max(shape.batch * full, 1)


@lru_cache
def _most_full(m_blocks: int, n_blocks: int, tile_m: int, tokens: int) -> int:
    """Full entries of a sequence at most; tokens: that a tile of keys stands for. A shorter sequence of keys may end in
    a tile that is full there and only begun in the longest one."""
    return sum(min(m_block * tile_m // tokens + 1, n_blocks) for m_block in range(m_blocks))
