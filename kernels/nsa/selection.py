"""Selection: the key blocks that each tile of queries chose, and the groups of compressed blocks that it sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.nsa.choice import ascending, products, scores, top
from kernels.nsa.config import GROUP, WIDTHS
from kernels.nsa.launches import choose, means
from kernels.nsa.operands import Operands, Settings

WIDEST = max(WIDTHS)


@dataclass(frozen=True, eq=False)
class Selection:
    """What each tile of queries chose.

    blocks  int32 (batch, heads_q, tiles of the longest sequence, k): ascending, then -1 in places that are not used; k
            is num_selected_blocks, or the blocks of the longest sequence where these are fewer
    groups  likewise, groups of 128 compressed blocks; None where all are seen
    """

    blocks: Tensor
    groups: Tensor | None = None


def select(operands: Operands, k_mean: Tensor) -> Selection:
    """The selection of a call, of detached tensors.

    k_mean  compressed keys (batch, blocks, heads_kv, dim) float32
    """
    s = operands.settings
    q_mean = k_mean.new_empty((operands.batch, s.tiles, operands.heads_q, operands.dim))
    operands.launcher.triton(means(operands, operands.q, q_mean, s.tile, s.steps.mean_shift(s.tile, s.causal)))
    selection = _unwritten(operands) if _by_kernel(s, s.blocks) else nothing_selected(operands)
    for first in range(0, s.tiles, step := s.steps.tiles_at_once(operands.batch * operands.heads_q * s.blocks)):
        last = min(first + step, s.tiles)
        width = _columns(s, last)
        found = products(q_mean[:, first:last], k_mean[:, :width], s.steps.folded)
        kernel = _by_kernel(s, width)
        if kernel:
            operands.launcher.triton(choose(operands, found.contiguous(), selection.blocks, first, last))
        if not kernel or selection.groups is not None:
            _by_tensors(operands, scores(found, last - first, s.scale), selection, first, not kernel)
    return selection


def _by_kernel(s: Settings, width: int) -> bool:
    """Whether a row of `width` scores is one program's. A mutant of the order is one of the tensor operations."""
    return width <= WIDEST and s.steps.ascending is ascending


def _by_tensors(operands: Operands, found: Tensor, selection: Selection, first: int, blocks: bool) -> None:
    """Writes what the tiles from `first` on choose. found: `scores`; blocks: blocks too, where there are groups."""
    s = operands.settings
    tiles, width = found.shape[2:]
    last = first + tiles
    there = operands.block_counts.view(-1, 1, 1, 1)
    tile_count = (operands.lengths + (s.tile - 1)).div(s.tile, rounding_mode="floor").view(-1, 1, 1, 1)
    tile = torch.arange(first, last, device=found.device)[:, None]
    block = torch.arange(width, device=found.device)
    exists = (block < there) & (tile < tile_count)
    allowed = exists & s.steps.allowed_blocks(block, tile, s.block, s.tile, s.causal)
    if blocks:
        chosen = top(found, allowed, s.chosen, s.steps.ascending)
        selection.blocks[:, :, first:last, : chosen.shape[-1]] = chosen
    if selection.groups is not None:
        selection.groups[:, :, first:last] = _groups(operands, found, exists, allowed, tile)


def nothing_selected(operands: Operands) -> Selection:
    """A selection with no block in it."""
    selection = _unwritten(operands)
    selection.blocks.fill_(-1)
    return selection


def _unwritten(operands: Operands) -> Selection:
    """Memory of a selection: no groups yet, and any blocks."""
    s = operands.settings
    shape = (operands.batch, operands.heads_q, s.tiles)
    blocks = torch.empty((*shape, min(s.chosen, s.blocks)), dtype=torch.int32, device=operands.q.device)
    return Selection(blocks, blocks.new_full((*shape, s.groups), -1) if s.grouped else None)


def _columns(s: Settings, last: int) -> int:
    """Blocks that tiles before `last` look at: whole groups, as far as there are blocks."""
    if not s.causal:
        return s.blocks
    begun = -(-last * s.tile // s.block)
    return min(s.blocks, -(-begun // GROUP) * GROUP)


def _groups(operands: Operands, found: Tensor, exists: Tensor, allowed: Tensor, tile: Tensor) -> Tensor:
    """int32 (batch, heads_q, tiles, groups): the choice of groups; a sequence with no more groups sees all of its."""
    s = operands.settings
    strict = s.causal == 2
    score, some = s.steps.group_scores(found, (allowed if strict else exists).expand_as(found))
    group = torch.arange(score.shape[-1], device=found.device)
    if not strict:
        some = some & s.steps.allowed_blocks(group, tile, GROUP * s.block, s.tile, s.causal)
    chosen = top(score, some, s.groups, s.steps.ascending)
    chosen = torch.nn.functional.pad(chosen, (0, s.groups - chosen.shape[-1]), value=-1)
    number = (operands.block_counts + (GROUP - 1)).div(GROUP, rounding_mode="floor").view(-1, 1, 1, 1)
    every = torch.arange(s.groups, dtype=torch.int32, device=found.device)
    every = torch.where((every < number) & exists.any(-1, keepdim=True), every, -1)
    return torch.where(number <= s.groups, every, chosen)
