"""Choice of blocks: scores of each tile of queries, which blocks it may choose, and the top k of them.

Scores are float32 products of means, made for a chunk of tiles at a time, so that nothing of the size tiles × blocks
exists whole. Equal scores go to the lower block: score and block together are one int64 key, of which no two are equal.
Nothing is asked of the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.nsa.config import CHUNK, GROUP, SEGMENT

_NEVER = torch.iinfo(torch.int64).min
_LOW = (1 << 32) - 1


def folded(q_mean: Tensor, heads_kv: int) -> Tensor:
    """(batch, tiles, heads_q, dim) as (batch, heads_kv, tiles · group, dim): rows of the query heads that share a KV
    head."""
    batch, tiles, heads_q, dim = q_mean.shape
    group = heads_q // max(heads_kv, 1)
    return q_mean.view(batch, tiles, heads_kv, group, dim).transpose(1, 2).reshape(batch, heads_kv, tiles * group, dim)


def products(q_mean: Tensor, k_mean: Tensor, fold: Callable[[Tensor, int], Tensor]) -> Tensor:
    """q_mean · k_mean, float32 (batch, heads_kv, tiles · group, blocks).

    q_mean  (batch, tiles, heads_q, dim) float32;  k_mean: (batch, blocks, heads_kv, dim) float32
    fold    `folded`, or its replacement
    """
    return fold(q_mean, k_mean.shape[2]) @ k_mean.permute(0, 2, 3, 1)


def scores(found: Tensor, tiles: int, scale: float) -> Tensor:
    """scale · `products`, float32 (batch, heads_q, tiles, blocks)."""
    batch, heads_kv, rows, blocks = found.shape
    found = found.view(batch, heads_kv, tiles, rows // tiles, blocks).transpose(2, 3)
    return found.reshape(batch, -1, tiles, blocks) * scale


def tiles_at_once(scores_of_a_tile: int) -> int:
    """Tiles whose scores exist at one time; scores_of_a_tile: over all sequences, heads and blocks."""
    return max(1, CHUNK // max(scores_of_a_tile, 1))


def allowed_blocks(block: Tensor, tile: Tensor, size: int, per_tile: int, causal: int) -> Tensor:
    """Which blocks of `size` tokens a tile of `per_tile` queries may choose, as far as they exist.

    causal  0: all; 1: those that begin before the tile ends; 2: those that end with the tile's first query, or before
    """
    if causal == 0:
        return (block >= 0) & (tile >= 0)
    if causal == 1:
        return block * size < (tile + 1) * per_tile
    return (block + 1) * size <= tile * per_tile + 1


def top(score: Tensor, allowed: Tensor, number: int, ascend: Callable[[Tensor], Tensor]) -> Tensor:
    """int32 (…, number): the columns of the largest scores among those allowed, equal ones the lower first; in
    ascending order, then -1 in the places left over. allowed: bool that broadcasts to score.

    Long rows are first cut to the `number` segments whose largest scores are the largest, of equal ones the first: all
    that is wanted lies in them. One pass over the scores finds these.
    """
    width = score.shape[-1]
    number = min(number, width)
    if not number:
        return score.new_zeros((*score.shape[:-1], 0), dtype=torch.int32)
    if width <= 2 * number * SEGMENT:
        found = _largest(score, allowed, torch.arange(width, device=score.device), number)
    else:
        pad = (0, -width % SEGMENT)
        allowed = torch.nn.functional.pad(allowed, pad).unflatten(-1, (-1, SEGMENT))
        parts = torch.nn.functional.pad(score, pad).unflatten(-1, (-1, SEGMENT))
        most = parts.masked_fill(~allowed, -torch.inf).amax(-1)
        segment = _largest(most, allowed.any(-1), torch.arange(most.shape[-1], device=score.device), number)
        some = segment.clamp(min=0)[..., None].expand(*segment.shape, SEGMENT)
        column = some * SEGMENT + torch.arange(SEGMENT, device=score.device)
        there = allowed.expand(parts.shape).gather(-2, some) & (segment >= 0)[..., None]
        found = _largest(parts.gather(-2, some).flatten(-2), there.flatten(-2), column.flatten(-2), number)
    found = ascend(torch.where(found < 0, width, found))
    return torch.where(found == width, -1, found).to(torch.int32)


def _largest(score: Tensor, allowed: Tensor, column: Tensor, number: int) -> Tensor:
    """int64 (…, number): of `column`, which is below 2**31, those of the largest scores, the largest first; -1 in the
    places left over."""
    bits = (score + 0.0).view(torch.int32)  # -0 is 0
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    key = torch.where(allowed, (order << 32) + (_LOW - column), _NEVER)
    key = key.topk(number, dim=-1).values
    return torch.where(key == _NEVER, -1, _LOW - (key & _LOW))


def ascending(found: Tensor) -> Tensor:
    """Chosen blocks in ascending order, as the builders of block lists take them."""
    return found.sort(-1).values


def group_scores(score: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Mean score of each group of GROUP blocks over those that count, and which groups have any.

    score    (batch, heads, tiles, blocks);  counted: bool that broadcasts to it
    """
    pad = (0, -score.shape[-1] % GROUP)
    kept = torch.nn.functional.pad(torch.where(counted, score, 0.0), pad).unflatten(-1, (-1, GROUP))
    number = torch.nn.functional.pad(counted.to(torch.float32), pad).unflatten(-1, (-1, GROUP)).sum(-1)
    return kept.sum(-1) / number.clamp(min=1), number > 0
