"""How a backward launch shares out its work: units of each KV head, and (sequence, unit) pairs that are concurrent.

From shapes and lists alone; nothing here looks at values on the device.
"""

from __future__ import annotations

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
from kernels.blocksparse.planner.reversed_group import causal_concurrent_pairs
from kernels.blocksparse.spec.variant import LARGEST_DIM

BAND_PAIRS = 4  # of windows, whose queries more pairs could have in the L2 cache: 2 to 4 % slower with eight


def group_split_of(
    blocks: BlockSparse, batch: int, heads_q: int, heads_kv: int, deterministic: bool, k: Tensor | None = None
) -> int:
    """Units of each KV head, of blocks with backward lists: `choose_group_split`; where adds are ordered what the
    schedule was computed for, or of descending bands `in_step_group_split`. k: with it, of sequences by length, half as
    many sequences are counted as would have their tiles, were all as long as the longest: most CTAs are shorter than
    the longest ones, so that more of them are needed to end together (docs/performance/log.md, "Packed sequences")."""
    if deterministic and blocks.schedule.group_split is not None:
        return blocks.schedule.group_split
    n_blocks = 0 if blocks.backward is None else blocks.backward.rows
    if k is not None and (order := order_of_keys(k, blocks)) is not None:
        batch = -(-tiles_to_launch(order, k, blocks.tile_n, batch, n_blocks) // (2 * n_blocks))
    shape = (batch, heads_q, heads_kv, blocks.m_blocks, n_blocks)
    if deterministic and is_descending(blocks):
        return in_step_group_split(*shape)
    return choose_group_split(*shape, deterministic)


def concurrent_pairs(q: Tensor, k: Tensor, blocks: BlockSparse, deterministic: bool, group_split: int = 1) -> int:
    """Number of concurrent (sequence, unit) pairs.

    As many as have the Q, dO and sums of dQ that they look at in the L2 cache, so that the long CTAs of several pairs
    come before the short ones of any, and at least as many as have CTAs for all multiprocessors: a wave and a half, or
    four where masks are intervals, documents for example, whose CTAs are of very unequal length; of bands no more than
    BAND_PAIRS beyond those. Ordered adds: what the schedule was computed for, or PAIRS, or of scattered blocks what
    `ordered_concurrent_pairs` says; but where CTAs hardly wait for one another (`in_step`) as first said, and of causal
    masks what `causal_concurrent_pairs` says. Of sequences by length those of the longest. Atomic adds where rows are
    alike, up to head dim 128: 1, as no CTA is longer than another, and those of a pair load the same Q and dO at a
    time.
    """
    batch, rows = q.shape[:2] if q.dim() == 4 else (blocks.forward.partial.batch, 0)
    rows = rows or -(-q.shape[0] // batch)
    by_length = order_of_keys(k, blocks) is not None
    if by_length:  # then those of one sequence are concurrent
        batch, rows = 1, min(blocks.m_blocks * blocks.tile_m, q.shape[0])
    units, heads, dim = batch * k.shape[-2] * group_split, q.shape[-2] // (k.shape[-2] * group_split), q.shape[-1]
    if deterministic and blocks.schedule.pairs is not None:
        return max(1, min(blocks.schedule.pairs, units))
    if deterministic and has_longest_last(blocks) and blocks.backward is not None and not by_length:
        n_blocks, size = max(blocks.backward.rows, 1), unit_bytes(rows, heads, dim)
        return causal_concurrent_pairs(max(units, 1), n_blocks, max(blocks.m_blocks, 1), heads, size, dim)
    if blocks.schedule.alike and not deterministic and dim <= LARGEST_DIM[128]:
        return 1
    if deterministic and not in_step(blocks):
        scattered = not isinstance(blocks.mask, Band | Intervals)  # then CTAs may look at any rows
        return ordered_concurrent_pairs(units, unit_bytes(rows, heads, dim)) if scattered else PAIRS
    if isinstance(blocks.mask, Band):
        rows = min(rows, live_rows(blocks))
    n_blocks = 1 if blocks.backward is None else max(blocks.backward.rows, 1)
    slots = 4 * SLOTS if isinstance(blocks.mask, Intervals) else 3 * SLOTS // 2
    # pairs whose CTAs make so many waves; of sequences by length the next group's CTAs need not wait for these
    in_flight = 1 if deterministic and by_length else -(-slots // n_blocks)
    held = L2_BYTES // max(unit_bytes(rows, heads, dim), 1)
    return even_share(units, max(min(held, BAND_PAIRS) if isinstance(blocks.mask, Band) else held, in_flight))


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


def has_longest_last(blocks: BlockSparse) -> bool:
    """True where rows get longer in launch order: of causal masks under their own schedule."""
    mask = blocks.mask
    return is_descending(blocks) and isinstance(mask, Band) and mask.left == OPEN and mask.right < OPEN
