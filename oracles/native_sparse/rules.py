"""Which keys a row sees in each branch, and which blocks and groups a tile may choose, as boolean matrices.

NOTE [strict]: with causal='strict' a tile knows what its first row may know: the blocks that end at or before that row,
and the mean of the q_tile queries up to it. So a row depends on no later token, through a mean or a choice either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.native_sparse.problem import GROUP, NativeSparse


def allowed_blocks(p: NativeSparse, length: int, device: torch.device | str) -> Tensor:
    """bool (tiles, blocks): the blocks that a tile may choose."""
    tile = torch.arange(p.tiles(length), device=device)[:, None]
    block = torch.arange(p.blocks(length), device=device)[None, :]
    if p.causal == "strict":
        return (block + 1) * p.compress_block_size <= tile * p.q_tile + 1
    if p.causal:
        return block * p.compress_block_size < (tile + 1) * p.q_tile
    return torch.ones((len(tile), block.shape[1]), dtype=torch.bool, device=device)


def allowed_groups(p: NativeSparse, length: int, device: torch.device | str) -> Tensor:
    """bool (tiles, groups): the groups that a tile may choose, those whose first block it may."""
    return allowed_blocks(p, length, device)[:, ::GROUP]


def mean_rows(p: NativeSparse, length: int) -> list[tuple[int, int]]:
    """Rows [start, stop) of queries whose mean scores the blocks, of each tile."""
    starts = range(0, length, p.q_tile)
    if p.causal == "strict":  # NOTE [strict]
        return [(max(0, start - p.q_tile + 1), start + 1) for start in starts]
    return [(start, min(start + p.q_tile, length)) for start in starts]


def sees_compressed(p: NativeSparse, length: int, groups: Tensor | None, device: torch.device | str) -> Tensor:
    """bool (1 or heads, length, blocks). groups: bool (heads, tiles, groups), the chosen ones; None: all."""
    row = torch.arange(length, device=device)[:, None]
    block = torch.arange(p.blocks(length), device=device)[None, :]
    c = p.compress_block_size
    if p.causal == "strict":
        seen = (block + 1) * c <= row + 1
    elif p.causal:
        seen = block * c <= row
    else:
        seen = torch.ones((length, block.shape[1]), dtype=torch.bool, device=device)
    return seen[None] if groups is None else seen & groups[:, row // p.q_tile, block // GROUP]


def sees_selected(p: NativeSparse, length: int, blocks: Tensor) -> Tensor:
    """bool (heads, length, length). blocks: bool (heads, tiles, blocks), the chosen ones."""
    row = torch.arange(length, device=blocks.device)[:, None]
    key = torch.arange(length, device=blocks.device)[None, :]
    chosen = blocks[:, row // p.q_tile, key // p.compress_block_size]
    return chosen & (key <= row) if p.causal else chosen


def sees_window(p: NativeSparse, length: int, device: torch.device | str) -> Tensor:
    """bool (1, length, length)."""
    row = torch.arange(length, device=device)[:, None]
    key = torch.arange(length, device=device)[None, :]
    if p.causal:
        return ((row - p.window_size < key) & (key <= row))[None]
    return ((key - row).abs() <= p.window_size // 2)[None]
