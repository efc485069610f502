"""How many units a group of query heads is split into where rows of blocks have known lengths: causal and full masks.

NOTE [group split] of group_split.py says what a split costs. Here the divisors of the group are tried on a model of the
launch: CTAs in launch order, each on the SM that is free first, and the sums of dK and dV that postprocess reads. The
unit of time is that of a block. Of 22 problems with 2 and 4 KV heads, 256 to 8,192 tokens at head dim 128, the split it
chooses takes 1.005 times the best one's time with atomic adds on an H200, 1.008 with ordered ones, in the mean
(ci/results/group_splits_h200.json, by `python ci/benchmarks/ordered_pairs.py --splits`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import lru_cache

from kernels.blocksparse.planner.group_split import L2_BYTES, LEAST, MANY, SLOTS, unit_bytes
from kernels.blocksparse.planner.reversed_group import GROUPS, launch_time, row_lengths

START = 2.0  # of a CTA: before its first block, and for its dK and dV
HEAD = 0.5  # of each head of a CTA: blocks that are masked, and the change to the next head
OF_MEMORY = 0.07  # of the time, for each L2 cache that concurrent pairs have beyond the first
SUM = 0.25  # in one CTA of postprocess, which adds those of one unit after the other
SUMS = 1.2  # of one SM, for the sums of dK and dV of a tile of keys and a unit
SplitPairs = Callable[[int, int], int]  # (units, query heads of each) → how many of them are concurrent


def modelled_group_split(
    batch: int,
    heads_q: int,
    heads_kv: int,
    m_blocks: int,
    n_blocks: int,
    rows: int,
    dim: int,
    pairs_of: SplitPairs,
    *,
    alike: bool,
    deterministic: bool,
) -> int:
    """The divisor of the group that takes the least time, of those that leave a CTA LEAST blocks and make no more than
    MANY CTAs; 1 where no other does.

    m_blocks, n_blocks  tiles of queries and of keys of a sequence
    rows                queries of a sequence
    alike               rows of a full mask; else those of a causal one under its own schedule
    """
    group = heads_q // max(heads_kv, 1)

    def may_be(split: int) -> bool:
        return group // split * m_blocks >= LEAST and batch * heads_kv * split * n_blocks <= MANY

    def time(split: int) -> float:
        units, heads = batch * heads_kv * split, group // split
        pairs = pairs_of(units, heads)
        share = pairs * unit_bytes(rows, heads, dim) / L2_BYTES
        launch = _launch_time(max(units, 1), max(n_blocks, 1), max(m_blocks, 1), heads, pairs, alike, deterministic)
        sums = SUMS * units * n_blocks / SLOTS + SUM * split if split > 1 else 0.0
        return launch * (1 + OF_MEMORY * max(0.0, share - 1)) + sums

    splits = [split for split in range(2, group + 1) if group % split == 0 and may_be(split)]
    return min([1, *splits], key=time) if splits else 1


@lru_cache(maxsize=4096)
def _launch_time(
    units: int, n_blocks: int, m_blocks: int, heads: int, pairs: int, alike: bool, deterministic: bool
) -> float:
    """Time of the backward kernel, in blocks."""
    if deterministic and not alike:
        return launch_time(units, n_blocks, m_blocks, heads, pairs)
    lengths = [heads * m_blocks] * n_blocks if alike else row_lengths(n_blocks, m_blocks, heads)
    times = [START + HEAD * heads + length for length in lengths]
    groups = -(-units // pairs)
    before = max(0, groups - GROUPS) * pairs  # pairs whose groups leave no SM idle
    free = [before * sum(times) / SLOTS] * SLOTS
    for first in range(before, units, pairs):
        for time in times:
            for _ in range(min(pairs, units - first)):
                heapq.heapreplace(free, free[0] + time)
    return max(free)
