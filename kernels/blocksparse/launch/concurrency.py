"""How a backward launch shares out its work: units of each KV head, and (sequence, unit) pairs that are concurrent.

From shapes and lists alone; nothing here looks at values on the device.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from kernels.blocksparse.launch.by_length import order_of_keys, tiles_to_launch
from kernels.blocksparse.lists.lpt import even_share
from kernels.blocksparse.lists.types import OPEN, Band, BlockSparse, Intervals
from kernels.blocksparse.planner.group_split import (
    L2_BYTES,
    PAIRS,
    SLOTS,
    choose_group_split,
    in_step_group_split,
    ordered_concurrent_pairs,
    unit_bytes,
)
from kernels.blocksparse.planner.group_split_model import modelled_group_split
from kernels.blocksparse.planner.reversed_group import causal_concurrent_pairs
from kernels.blocksparse.spec.variant import LARGEST_DIM

BAND_PAIRS = 4  # of windows, whose queries more pairs could have in the L2 cache: 2 to 4 % slower with eight


class Shape(NamedTuple):
    """The sizes and orders of block lists by which the launcher shares out its work.

    kind       of the mask: "band", "intervals", or "" for any other
    in_step, alike, descending, longest_last
               of the rows: `in_step`, `Schedule.alike`, `is_descending`, `has_longest_last`
    m_blocks, n_blocks
               tiles of queries and of keys of the longest sequence
    rows       queries that the CTAs in flight of a unit look at: of its longest sequence, or a window's
    dim        head dim
    by_length  sequences are launched by length
    """

    kind: str
    in_step: bool
    alike: bool
    descending: bool
    longest_last: bool
    m_blocks: int
    n_blocks: int
    rows: int
    dim: int
    by_length: bool


def group_split_of(blocks: BlockSparse, batch: int, q: Tensor, k: Tensor, deterministic: bool) -> int:
    """Units of each KV head, of blocks with backward lists: where adds are ordered what the schedule was computed for;
    of causal masks under their own schedule and of full ones `modelled_group_split`, of other descending bands
    `in_step_group_split`, else `choose_group_split`. Of sequences by length half as many are counted as would have
    their tiles, were all as long as the longest: most CTAs are shorter than the longest ones, so that more of them are
    needed to end together (docs/performance/log.md, "Packed sequences")."""
    if deterministic and blocks.schedule.group_split is not None:
        return blocks.schedule.group_split
    n_blocks = 0 if blocks.backward is None else blocks.backward.rows
    if (order := order_of_keys(k, blocks)) is not None:
        batch = -(-tiles_to_launch(order, k, blocks.tile_n, batch, n_blocks) // (2 * n_blocks))
    return _group_split(_shape(blocks, q, k), batch, q.shape[-2], k.shape[-2], deterministic)


@lru_cache(maxsize=4096)
def _group_split(shape: Shape, batch: int, heads_q: int, heads_kv: int, deterministic: bool) -> int:
    """`group_split_of` where the schedule says nothing."""
    sizes = batch, heads_q, heads_kv, shape.m_blocks, shape.n_blocks
    if shape.longest_last or (shape.in_step and shape.alike):
        return modelled_group_split(
            *sizes,
            shape.rows,
            shape.dim,
            lambda units, heads: _concurrent_pairs(shape, units, heads, deterministic),
            alike=shape.alike,
            deterministic=deterministic,
        )
    if deterministic and shape.descending:
        return in_step_group_split(*sizes)
    return choose_group_split(*sizes, deterministic)


def concurrent_pairs(q: Tensor, k: Tensor, blocks: BlockSparse, deterministic: bool, group_split: int = 1) -> int:
    """Number of concurrent (sequence, unit) pairs.

    As many as have the Q, dO and sums of dQ that they look at in the L2 cache, so that the long CTAs of several pairs
    come before the short ones of any, and at least as many as have CTAs for all multiprocessors: a wave and a half, or
    four where masks are intervals, documents for example, whose CTAs are of very unequal length; of bands no more than
    BAND_PAIRS beyond those. Ordered adds: what the schedule was computed for, or PAIRS, or of scattered blocks what
    `ordered_concurrent_pairs` says; but where CTAs hardly wait for one another (`in_step`) as first said, where rows
    are alike no more than PAIRS, and of causal masks what `causal_concurrent_pairs` says. Of sequences by length those
    of the longest. Atomic adds where rows are alike, up to head dim 128: 1, as no CTA is longer than another, and those
    of a pair load the same Q and dO at a time.
    """
    shape = _shape(blocks, q, k)
    batch = q.shape[0] if q.dim() == 4 else blocks.forward.partial.batch
    units = (1 if shape.by_length else batch) * k.shape[-2] * group_split  # by length those of one sequence
    if deterministic and blocks.schedule.pairs is not None:
        return max(1, min(blocks.schedule.pairs, units))
    return _concurrent_pairs(shape, units, q.shape[-2] // (k.shape[-2] * group_split), deterministic)


def _shape(blocks: BlockSparse, q: Tensor, k: Tensor) -> Shape:
    """The `Shape` of block lists, for q and k by rows and heads as for launch.backward."""
    by_length = order_of_keys(k, blocks) is not None
    if q.dim() == 4:
        rows = q.shape[1]
    elif by_length:
        rows = min(blocks.m_blocks * blocks.tile_m, q.shape[0])
    else:
        rows = -(-q.shape[0] // blocks.forward.partial.batch)
    band = isinstance(blocks.mask, Band)
    return Shape(
        "band" if band else "intervals" if isinstance(blocks.mask, Intervals) else "",
        in_step(blocks),
        blocks.schedule.alike,
        is_descending(blocks),
        has_longest_last(blocks),
        blocks.m_blocks,
        0 if blocks.backward is None else blocks.backward.rows,
        min(rows, live_rows(blocks)) if band else rows,
        q.shape[-1],
        by_length,
    )


def _concurrent_pairs(shape: Shape, units: int, heads: int, deterministic: bool) -> int:
    """`concurrent_pairs` of `units` pairs of so many query heads, where the schedule says nothing."""
    size, n_blocks = unit_bytes(shape.rows, heads, shape.dim), max(shape.n_blocks, 1)
    if deterministic and shape.longest_last and shape.n_blocks and not shape.by_length:
        return causal_concurrent_pairs(max(units, 1), n_blocks, max(shape.m_blocks, 1), heads, size, shape.dim)
    if shape.alike and not deterministic and shape.dim <= LARGEST_DIM[128]:
        return 1
    if deterministic and not shape.in_step:  # CTAs of scattered blocks may look at any rows
        return PAIRS if shape.kind else ordered_concurrent_pairs(units, size)
    slots = 4 * SLOTS if shape.kind == "intervals" else 3 * SLOTS // 2
    # pairs whose CTAs make so many waves; of sequences by length the next group's CTAs need not wait for these
    in_flight = 1 if deterministic and shape.by_length else -(-slots // n_blocks)
    held = L2_BYTES // max(size, 1)
    most = max(min(held, BAND_PAIRS) if shape.kind == "band" else held, in_flight)
    return even_share(units, min(most, PAIRS) if deterministic and shape.alike else most)


def in_step(blocks: BlockSparse) -> bool:
    """True where each CTA of a unit visits its dQ tiles a step behind the one before: bands under their own schedule,
    and rows that are alike."""
    return is_descending(blocks) or (blocks.merged and blocks.schedule.alike)


def is_descending(blocks: BlockSparse) -> bool:
    """True for bands under their own schedule, which begins with the shortest tiles of keys."""
    return blocks.merged and isinstance(blocks.mask, Band) and blocks.schedule.kind == "descending"


def live_rows(blocks: BlockSparse) -> int:
    """Rows of queries that the CTAs in flight of a band's unit look at: a window's own, and the next tiles'."""
    assert isinstance(blocks.mask, Band)
    return blocks.mask.left + blocks.mask.right + PAIRS * blocks.tile_n


def last_group(pairs: int, units: int) -> int:
    """First of the last group of so many concurrent pairs, of `units` (sequence, unit) pairs."""
    return (max(units, 1) - 1) // pairs * pairs


def reverses_last_group(blocks: BlockSparse) -> bool:
    """True where the last group of concurrent pairs is reversed if adds are ordered (NOTE [reversed groups] of
    backward/tile_iterator.py): where rows get longer, and where the schedule says so."""
    return has_longest_last(blocks) or blocks.schedule.reverses


def has_longest_last(blocks: BlockSparse) -> bool:
    """True where rows get longer in launch order: of causal masks under their own schedule."""
    mask = blocks.mask
    return is_descending(blocks) and isinstance(mask, Band) and mask.left == OPEN and mask.right < OPEN
