"""How many pairs of a causal mask are concurrent where adds are ordered and the last group is reversed: NOTE [reversed
groups] of backward/tile_iterator.py.

Fewer pairs need less of the L2 cache, but how many groups there are, and how full the last one is, says when the last
CTA ends. So the numbers that the cache allows are tried on a model: CTAs in launch order, each on the SM that is free
first, as long as its row has blocks. The unit of time is that of a block. Beside launches that were measured on an
H200 (ci/results/reversed_groups_h200.json), relative to the mean of each problem, it is off by 2 % (root mean square),
at most by 7 %.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from kernels.blocksparse.planner.group_split import L2_BYTES, SLOTS

START = 1.0  # before a CTA's first block
LAG = 0.6  # by which a CTA must be behind the one that adds to the same dQ tile before it, from head dim 128 on
OF_CACHE = 0.05  # of the time, that pairs which fill the L2 cache take more than such as need nothing of it
GROUPS = 8  # that are looked at: those before them leave no SM idle
WAVE = 0.9  # of the SMs, that the CTAs of concurrent pairs should be at least


@lru_cache(maxsize=4096)
def causal_concurrent_pairs(units: int, n_blocks: int, m_blocks: int, heads: int, size: int, dim: int) -> int:
    """The number of concurrent (sequence, unit) pairs, of `units`, that takes the least time.

    n_blocks, m_blocks  tiles of keys and of queries of a sequence
    heads               query heads of a unit
    size                `unit_bytes` of a unit
    dim                 head dim: blocks of small ones take less time, a semaphore's round trip does not
    """
    lag = LAG * 128 / min(max(dim, 64), 128)
    most = max(1, min(units, L2_BYTES // max(size, 1)))
    numbers = {-(-units // groups) for groups in range(1, units + 1)}  # of so many groups the fullest
    numbers = {pairs for pairs in numbers if pairs <= most}
    numbers = {pairs for pairs in numbers if pairs * n_blocks >= WAVE * SLOTS} or {max(numbers)}

    def time(pairs: int) -> float:
        share = pairs * size / L2_BYTES
        return launch_time(units, n_blocks, m_blocks, heads, pairs, lag=lag) * (1 + OF_CACHE * share)

    return min(sorted(numbers), key=time)


def launch_time(
    units: int,
    n_blocks: int,
    m_blocks: int,
    heads: int,
    pairs: int,
    *,
    slots: int = SLOTS,
    lag: float = LAG,
    reverse: bool = True,
) -> float:
    """Time of a causal launch with so many concurrent pairs, in blocks, on `slots` SMs. lag: as LAG; reverse: its last
    group."""
    groups = -(-units // pairs)
    before = max(0, groups - GROUPS) * pairs  # pairs whose groups leave no SM idle
    steady = before * (sum(row_lengths(n_blocks, m_blocks, heads)) + START * n_blocks) / slots
    ctas = modelled_ctas(units - before, n_blocks, m_blocks, heads, pairs, slots=slots, lag=lag, reverse=reverse)
    return steady + max(cta.end for cta in ctas)


class Cta(NamedTuple):
    """A CTA of the model: its SM, its group, and its times from its first block on and after its last one."""

    slot: int
    group: int
    begin: float
    end: float


def modelled_ctas(
    units: int, n_blocks: int, m_blocks: int, heads: int, pairs: int, *, slots: int, lag: float, reverse: bool
) -> Iterator[Cta]:
    """The CTAs of a causal launch in launch order. Arguments: as for `launch_time`."""
    lengths, groups = row_lengths(n_blocks, m_blocks, heads), -(-units // pairs)
    free = [(0.0, slot) for slot in range(slots)]
    for group in range(groups):
        members = min(units, (group + 1) * pairs) - group * pairs
        last = reverse and group == groups - 1
        # a row begins at the tile of the one before it where the group is reversed, else at an earlier one
        behind = lag if last else lag - m_blocks / n_blocks
        began = [0.0] * members
        for length in lengths if last else reversed(lengths):
            for pair in range(members):
                time, slot = free[0]
                began[pair] = max(time + START, began[pair] + behind)
                end = began[pair] + length
                heapq.heapreplace(free, (end, slot))
                yield Cta(slot, group, began[pair], end)


def row_lengths(n_blocks: int, m_blocks: int, heads: int) -> list[int]:
    """Blocks of each row of tiles of keys of a causal mask, the longest first; each has one at least."""
    return [heads * max(1, m_blocks - n * m_blocks // n_blocks) for n in range(n_blocks)]
