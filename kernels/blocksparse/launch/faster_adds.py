"""Which adds to dQ take less time, for callers who leave it open: ordered ones, for short rows on Hopper.

Ordered adds wait for semaphores. But nothing is zeroed before them, as the first one of a tile stores (NOTE [first add]
of backward/dq_accumulator.py), which saves the more the fewer blocks a tile of dQ has; and at head dim 128 they take
steps of 64 queries, where atomic ones take steps of 80 for rows that are long enough. Measured on an H200, 256 to 8,192
tokens: ci/results/short_rows_h200.json, docs/performance/log.md.
"""

from __future__ import annotations

from torch import Tensor

from kernels.blocksparse.launch.concurrency import has_longest_last
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.planner.group_split import SLOTS
from kernels.blocksparse.spec.variant import LARGEST_DIM, backward_products, padded_dim

CAUSAL = {1: 16, 2: 4}  # query heads of a KV head, 2 for two and more → tiles of queries, at most, at head dim 128
FULL = 4  # likewise, of full masks whose query heads have a KV head each
WAVES = 4  # of CTAs, at least, at head dim 64, where fewer gain nothing


def ordered_adds_are_faster(q: Tensor, k: Tensor, blocks: BlockSparse, products: str) -> bool:
    """True where ordered adds take less time than atomic ones. q, k: rows by heads, as for launch.backward; products:
    of the backward kernel. Lists whose ranks would have to be computed first have atomic adds."""
    padded, tiles = padded_dim(q.shape[-1]), (blocks.tile_m, blocks.tile_n)
    if blocks.order is None or blocks.backward is None or tiles != (128, 128) or padded not in (64, 128):
        return False
    if backward_products(products, blocks.tile_n, padded, blocks.tile_m) != "wgmma":
        return False
    group = q.shape[-2] // k.shape[-2]
    if has_longest_last(blocks):
        most = CAUSAL[min(group, 2)]
    else:
        most = FULL if blocks.merged and blocks.schedule.alike and group == 1 and padded == LARGEST_DIM[128] else 0
    if padded < LARGEST_DIM[128]:
        batch = q.shape[0] if q.dim() == 4 else blocks.forward.partial.batch
        most = most if batch * k.shape[-2] * blocks.backward.rows >= WAVES * SLOTS else 0
    return blocks.m_blocks <= most
