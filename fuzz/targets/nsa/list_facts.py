"""Block lists of the branches as the builders of kernels.blocksparse make them, what two lists have in common, and a
selection drawn at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.compact import pooled_groups, selected
from kernels.blocksparse.lists.pooled import pooled
from kernels.blocksparse.lists.types import OPEN, Band, Bits, BlockList, BlockSparse, Intervals
from kernels.nsa.config import GROUP, selected_tile_n, tile_m, tile_n
from kernels.nsa.operands import Operands
from kernels.nsa.selection import Selection

WIDE = 64  # entries of a row that are compared, where no other number is given


def drawn(operands: Operands, seed: int = 0) -> Selection:
    """A selection of ascending rows: blocks, and groups, that each sequence has."""
    s = operands.settings
    generator = torch.Generator().manual_seed(seed)
    found = []
    for unit, width in ((s.block, min(s.chosen, s.blocks)), (s.block * GROUP, s.groups)):
        shape = (operands.batch, operands.heads_q, s.tiles)
        rows = torch.full((*shape, width), -1, dtype=torch.int32)
        for b, length in enumerate(operands.lengths.tolist()):
            there = -(-length // unit)
            for row in rows[b].flatten(0, 1):
                number = int(torch.randint(0, min(width, there) + 1, (), generator=generator))
                row[:number] = torch.randperm(there, generator=generator)[:number].sort().values.to(torch.int32)
        found.append(rows.to(operands.q.device))
    return Selection(found[0], found[1] if s.grouped else None)


def expected_lists(name: str, operands: Operands, selection: Selection, backward: bool) -> BlockSparse:
    """The lists of a branch, made by tensor operations."""
    o, s = operands, operands.settings
    tiles = {"tile_m": tile_m(s.tile), "tile_n": tile_n(o.dim, backward)}
    lengths, pools = o.lengths.to(torch.int64), o.block_counts.to(torch.int64)
    tokens: dict[str, Any] = {**tiles, "longest": (s.longest, s.longest), "backward": backward}
    if name == "window":
        width = min(s.window, OPEN)
        left, right = (width - 1, 0) if s.causal else (width // 2, width // 2)
        most = -(-(left + right + tiles["tile_m"]) // tiles["tile_n"]) + 1
        most = min(most, max(-(-s.longest // tiles["tile_n"]), 1))
        capacity = max(o.batch * -(-s.longest // tiles["tile_m"]) * most, 1)
        return band(lengths, lengths, left=left, right=right, capacity=(capacity, capacity), **tokens)
    if name == "selected":
        tokens["tile_n"] = selected_tile_n(o.dim, s.block, backward)
        options: dict[str, Any] = {
            "block_size": s.block,
            "rows_per_tile": s.tile,
            "causal": s.causal > 0,
            "ranks": s.deterministic,
        }
        return selected(selection.blocks, lengths, lengths, **options, **tokens)
    tokens["longest"] = (s.longest, s.blocks)
    if selection.groups is None:
        return pooled(lengths, pools, rule=s.rule, **tokens)
    options = {"group_size": GROUP, "rows_per_tile": s.tile, "rule": s.rule, "ranks": s.deterministic}
    return pooled_groups(selection.groups, lengths, pools, **options, **tokens)


def facts(blocks: BlockSparse, backward: bool, deterministic: bool, width: int = WIDE) -> dict[str, Tensor]:
    """All that kernels read of lists for one pass, as tensors by name: rows padded, nothing of unused places."""
    lists: Any = blocks.backward if backward else blocks.forward
    found: dict[str, Tensor] = {}
    for kind in ("partial", "full"):
        one = getattr(lists, kind)
        found[f"{kind} count"], found[f"{kind} index"] = one.to_padded(width, -1)
        if backward and deterministic:
            found[f"{kind} rank"] = parallel(one, getattr(blocks.order, kind), width)
    mask: Any = blocks.mask
    if isinstance(mask, Bits):
        found["words"] = mask.words
        found["slot"] = parallel(lists.partial, mask.slot_backward if backward else mask.slot, width)
    elif isinstance(mask, Intervals):
        found["bounds"] = mask.bounds
    elif isinstance(mask, Band):
        found["band"] = torch.tensor([mask.left, mask.right, int(mask.offset.abs().max())])
    if not backward and isinstance(mask, Intervals | None) and blocks.lpt is not None:
        found["row order"] = _of_rows_with_entries(blocks.lpt.rows, lists)
    if backward and not deterministic and blocks.lpt is not None and blocks.lpt.columns is not None:
        found["column order"] = _of_rows_with_entries(blocks.lpt.columns, lists)
    found["rows"] = torch.tensor([blocks.m_blocks, blocks.tile_m, blocks.tile_n, int(blocks.merged)])
    return found


def _of_rows_with_entries(positions: Tensor, lists: Any) -> Tensor:
    """A launch order without rows that have no entries, which may come in any order: -1 for these."""
    count = lists.partial.count + lists.full.count
    if positions.shape[1] != count.shape[1]:
        count = count.sum(1, keepdim=True)
    there = count.expand(*positions.shape[:2], -1).gather(-1, positions.long()) > 0
    return torch.where(there, positions, -1)


def parallel(blocks: BlockList, values: Any, width: int) -> Tensor:
    """Values parallel to a list's index, of its rows."""
    return replace(blocks, index=values).to_padded(width, -1)[1]
