"""Means over blocks of tokens and over rows of queries, of one sequence; differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.native_sparse.problem import GROUP, NativeSparse
from oracles.native_sparse.rules import mean_rows


def block_sizes(length: int, size: int, device: torch.device) -> Tensor:
    """int64 (blocks,): tokens of each block; the last one has what is left."""
    starts = torch.arange(0, length, size, device=device)
    return (length - starts).clamp_max(size)


def block_means(x: Tensor, size: int) -> Tensor:
    """Means of blocks of `size` rows: x (…, length, dim) to (…, blocks, dim), each over the rows that it has."""
    length = x.shape[-2]
    padded = torch.nn.functional.pad(x, (0, 0, 0, -length % size))
    sums = padded.unflatten(-2, (-1, size)).sum(-2)
    return sums / block_sizes(length, size, x.device)[:, None]


def mean_queries(p: NativeSparse, q: Tensor) -> Tensor:
    """The mean query of each tile: q (heads, length, dim) to (heads, tiles, dim)."""
    spans = mean_rows(p, q.shape[-2])
    return torch.stack([q[..., start:stop, :].mean(-2) for start, stop in spans], -2)


def group_means(scores: Tensor, counted: Tensor) -> Tensor:
    """Mean score of each group, over the blocks that count: scores (heads, tiles, blocks), counted bool (tiles,
    blocks), to (heads, tiles, groups); NaN where none counts."""
    more = -scores.shape[-1] % GROUP
    kept = torch.nn.functional.pad(torch.where(counted, scores, 0.0), (0, more)).unflatten(-1, (-1, GROUP))
    count = torch.nn.functional.pad(counted, (0, more)).unflatten(-1, (-1, GROUP)).sum(-1)
    return kept.sum(-1) / count
