"""Which adds to dQ take less time, for callers who leave it open: ordered ones, for short rows and narrow windows on
Hopper, and where two CTAs exchange dS.

Ordered adds wait for semaphores. But nothing is zeroed before them, as the first one of a tile stores (NOTE [first add]
of backward/dq_accumulator.py), which saves the more the fewer blocks a tile of dQ has. Measured on an H200 with 256 to
8,192 tokens, ci/results/short_rows_h200.json; with full masks, ci/results/ordered_turns_h200.json; with windows of 128
to 2,048 keys, ci/results/narrow_windows_h200.json; where two CTAs exchange dS, ci/results/exchanged_ds_256_h200.json.
"""

from __future__ import annotations

from torch import Tensor

from kernels.blocksparse.launch.backward_tuning import exchanges_ds, window_width
from kernels.blocksparse.launch.concurrency import has_longest_last, in_step, is_descending
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.planner.group_split import SLOTS
from kernels.blocksparse.spec.variant import LARGEST_DIM, backward_dim, backward_products, depth_of

LONGEST = 32  # tiles of queries: of causal masks, of launches that leave SMs idle at head dim 128, of others at 64
MANY = {1: 16, 2: 4}  # likewise, of launches that fill them at 128, by query heads of a KV head, 2 for more as well
FULL = 8  # likewise, of full masks whose query heads have a KV head each
WINDOW, PACKED_WINDOW = 512, 128  # keys of windows, likewise: of padded sequences, and of packed ones
EXCHANGED = 192  # head dim beyond which full masks have them where two CTAs exchange dS; bands have them at any
WAVES = {128: 4, 64: 3}  # head dim → of CTAs, were each for one query head, from which on a launch fills the SMs


def ordered_adds_are_faster(q: Tensor, k: Tensor, blocks: BlockSparse, products: str, softcap: bool = False) -> bool:
    """True where ordered adds take less time than atomic ones. q, k: rows by heads, as for launch.backward; products:
    of the backward kernel; softcap: scores have one. Lists whose ranks would have to be computed first have atomic
    adds, and without an exchange of dS packed sequences too but for windows, as no group of theirs is reversed."""
    tiles, group = (blocks.tile_m, blocks.tile_n), q.shape[-2] // k.shape[-2]
    padded = backward_dim(products, *tiles, q.shape[-1])
    if blocks.order is None or blocks.backward is None:
        return False
    if backward_products(products, blocks.tile_n, padded, blocks.tile_m) != "wgmma":
        return False
    packed, depth = q.dim() == 3, depth_of(q.shape[-1], padded)
    if tiles == (128, 64) and exchanges_ds(blocks, padded, depth, softcap, True):
        return is_descending(blocks) or (in_step(blocks) and (depth or padded) > EXCHANGED)
    if tiles != (128, 128) or padded not in WAVES:
        return False
    rows = k.shape[0] // blocks.tile_n if packed else q.shape[0] * blocks.backward.rows
    fills = rows * q.shape[-2] >= WAVES[padded] * SLOTS
    if (width := window_width(blocks.mask)) is not None:
        narrow = width <= (PACKED_WINDOW if packed else WINDOW)
        return narrow and fills and is_descending(blocks) and (padded, group) == (LARGEST_DIM[128], 1)
    return not packed and blocks.m_blocks <= _longest(blocks, padded, group, fills)


def _longest(blocks: BlockSparse, padded: int, group: int, fills: bool) -> int:
    """The most tiles of queries for which ordered adds are faster. group: query heads of a KV head; fills: the launch
    fills the SMs."""
    if not has_longest_last(blocks):
        alike = blocks.merged and blocks.schedule.alike and group == 1
        return FULL if alike and fills and padded == LARGEST_DIM[128] else 0
    if padded < LARGEST_DIM[128]:
        return LONGEST if fills else 0
    return MANY[min(group, 2)] if fills else LONGEST
