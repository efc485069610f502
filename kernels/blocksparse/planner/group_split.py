"""The number of units that a group of query heads is split into: fewer, longer CTAs, or more, shorter ones.

NOTE [group split] One CTA of the backward pass works for one tile of keys and one unit of query heads. A unit is a KV
head's whole group, whose dK and dV then stay in the CTA's registers to the end; or, with a `group_split` above 1, a
share of the group: each unit writes its float32 sums apart (NOTE [dK and dV partials] of backward/dkv_partials.py), and
postprocess adds them in the order of the units. So dK and dV have the same bits in every run either way; but another
group split has others, which is why it follows from the shapes and the schedule alone and not from the device. Nothing
about dQ changes: a query head belongs to one unit, so the CTAs that add to a dQ tile are those of one unit, still in
the order of their positions.

What it costs: 8 bytes · dim_padded for each key and each unit, written once and read once; with as many units as query
heads that is twice the sums of dQ.
"""

from __future__ import annotations

from kernels.blocksparse.lists.lpt import even_share
from kernels.blocksparse.spec.variant import padded_dim

SLOTS = 132  # multiprocessors of an H100 and of an H200, each with one CTA
PAIRS = 16  # concurrent (sequence, unit) pairs where adds are ordered
L2_BYTES = 40 << 20  # of Q, dO and sums of dQ that tiles launched together should not exceed
FEW, MANY = 3 * SLOTS, 16 * SLOTS  # CTAs: below the one groups are split, above the other they are not
PRODUCTS = 0.7  # of Q and dO: an H100 moves that from memory while it multiplies what belongs to all of it
LEAST, MOST = 4, 512  # tiles of queries that a CTA should visit at least and at most, counting those of all its heads


def choose_group_split(
    batch: int, heads_q: int, heads_kv: int, m_blocks: int, n_blocks: int, deterministic: bool
) -> int:
    """Units of each KV head: a divisor of the group, 1 for none.

    The fewest that make three waves of CTAs, so that short ones fill what long ones leave, and that let a CTA visit no
    more tiles than MOST: those in flight, which drift apart over many heads, share less of what the cache holds.
    Ordered adds: also as many units as are concurrent, so that few of the CTAs in flight share a dQ tile.
    """
    group, ctas = heads_q // max(heads_kv, 1), batch * heads_kv * n_blocks
    group_split = 1
    for more in (p for p in range(2, group + 1) if group % p == 0):
        long_ctas = group // group_split * m_blocks > MOST
        few_units = deterministic and batch * heads_kv * group_split < PAIRS
        split_further = group_split * ctas < FEW or ((long_ctas or few_units) and group_split * ctas < MANY)
        if not split_further or group // more * m_blocks < LEAST:
            break
        group_split = more
    return group_split


def scattered_group_split(
    batch: int,
    heads_q: int,
    heads_kv: int,
    rows: int,
    dim: int,
    m_blocks: int,
    n_blocks: int,
    deterministic: bool,
) -> int:
    """`choose_group_split`, or more units where tiles of keys list few and scattered tiles of queries.

    Such a tile of queries is read again by many CTAs, at times that have nothing to do with one another: it stays in
    the L2 cache only if all rows of the heads in flight do. So a unit has as many heads as fit there, or one where that
    exceeds the cache up to four times; beyond that no split helps, and the partial sums of dK and dV would be large.
    rows: queries of a sequence.
    """
    usual = choose_group_split(batch, heads_q, heads_kv, m_blocks, n_blocks, deterministic)
    group = heads_q // max(heads_kv, 1)
    if not rows or unit_bytes(rows, 1, dim) > 4 * L2_BYTES:
        return usual
    splits = [p for p in range(usual, group + 1) if group % p == 0]
    return next((p for p in splits if unit_bytes(rows, group // p, dim) <= L2_BYTES), max(group, 1))


def separate_group_split(
    batch: int, heads_q: int, heads_kv: int, rows: int, dim: int, m_blocks: int, n_blocks: int, visits: int
) -> int:
    """Units where tiles of keys list scattered tiles of queries, and dQ is another kernel's: the divisor of the group,
    from `choose_group_split`'s on, with the least `separate_traffic`.

    rows    queries of a sequence, and keys
    visits  tiles of keys that a tile of queries is listed by, at most
    """
    group = heads_q // max(heads_kv, 1)
    splits = [p for p in range(1, group + 1) if group % p == 0]
    least = choose_group_split(batch, heads_q, heads_kv, m_blocks, n_blocks, False)
    return min(
        (p for p in splits if p >= least),
        key=lambda p: separate_traffic(batch, heads_q, heads_kv, rows, dim, visits, p),
        default=1,
    )


def separate_traffic(
    batch: int, heads_q: int, heads_kv: int, rows: int, dim: int, visits: int, group_split: int
) -> float:
    """Cost of dK and dV in the backward kernel and in postprocess, in bytes that memory would move in that time.

    Q and dO are read `visits` times. The CTAs in flight read rows of all heads of a unit, at times that have nothing to
    do with one another: of what they read, the L2 cache has its own size's share of a unit's rows, and memory moves the
    rest. Products take as long as memory would for PRODUCTS of all that is read. More units than one write sums, which
    postprocess reads.
    """
    heads = heads_q // heads_kv // group_split
    reads = 4.0 * batch * heads_q * rows * visits * dim
    missed = 1 - min(1.0, L2_BYTES / max(unit_bytes(rows, heads, dim, False), 1))
    sums = 8.0 * batch * heads_kv * rows * padded_dim(dim) * group_split if group_split > 1 else 0.0
    return max(PRODUCTS * reads, missed * reads + sums) + sums


def in_step_group_split(batch: int, heads_q: int, heads_kv: int, m_blocks: int, n_blocks: int) -> int:
    """Units where adds are ordered and each CTA visits its dQ tiles a step behind the one before: the most, up to MANY
    CTAs and LEAST tiles for each, and `choose_group_split`'s at least.

    In step, CTAs of a unit wait little for one another, and the fewer heads they go through, the less of the L2 cache
    the concurrent units need. With 2 KV heads and a causal mask of 8,192 tokens 8 units of each were 1 to 2 % faster
    than 4 on an H200 (ci/results/reversed_groups_tried_h200.json), though their sums take twice as long.
    """
    group, ctas = heads_q // max(heads_kv, 1), batch * heads_kv * n_blocks
    least = choose_group_split(batch, heads_q, heads_kv, m_blocks, n_blocks, True)
    splits = (p for p in range(least, group + 1) if group % p == 0)
    return max((p for p in splits if p * ctas <= MANY and group // p * m_blocks >= LEAST), default=least)


def unit_bytes(rows: int, heads: int, dim: int, sums: bool = True) -> int:
    """Q, dO and, where there are some, the sums of dQ of a unit: rows of all its query heads, in half precision and
    float32."""
    return rows * heads * (2 * 2 * dim + 4 * padded_dim(dim) * sums)


def ordered_concurrent_pairs(units: int, size: int) -> int:
    """The most concurrent (sequence, unit) pairs where adds are ordered; size: `unit_bytes` of each.

    PAIRS, so that few of the CTAs in flight wait for one another; fewer where those would exceed the L2 cache four
    times, as then all would wait for memory."""
    most = 4 * L2_BYTES // max(size, 1)
    return even_share(units, most) if most < PAIRS else PAIRS
