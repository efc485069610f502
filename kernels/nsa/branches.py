"""The three branches as block-sparse attention: their keys, their block lists, and their passes.

Branches are launched without the checks of users' block lists: these lists are made here, and asking the device about
them would cost more than the attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.blocksparse.launch.forward import Sequences
from kernels.blocksparse.lists.bands import band
from kernels.blocksparse.lists.builder import ceil_div
from kernels.blocksparse.lists.compact import pooled_groups, selected
from kernels.blocksparse.lists.pooled import pooled
from kernels.blocksparse.lists.types import OPEN, Bits, BlockList, BlockLists, BlockSparse
from kernels.blocksparse.planner.group_split import scattered_group_split
from kernels.nsa.config import GROUP, selected_tile_n, tile_m, tile_n
from kernels.nsa.operands import Operands
from kernels.nsa.selection import Selection

BRANCHES = ("compressed", "selected", "window")  # in the order of the gates


@dataclass(frozen=True, eq=False)
class Branch:
    """Keys and values of a branch, laid out as the operands, and where each sequence's are.

    name   one of BRANCHES
    k, v   (batch, keys, heads_kv, dim), or (rows, heads_kv, dim) in a packed call
    """

    name: str
    operands: Operands
    selection: Selection
    k: Tensor
    v: Tensor

    def sequences(self) -> Sequences:
        """Where the rows of each sequence are. Compressed keys of packed sequences are padded to the longest's."""
        o = self.operands
        if self.name != "compressed":
            return Sequences(o.begins, o.lengths, o.begins, o.lengths)
        begins = torch.arange(o.batch, dtype=torch.int32, device=o.q.device) * (o.settings.blocks if o.packed else 0)
        return Sequences(o.begins, o.lengths, begins.to(torch.int32), o.block_counts)

    def lists(self, backward: bool) -> BlockSparse:
        """The block lists, for the forward kernel or the backward ones."""
        built = {"compressed": _compressed, "selected": _selected, "window": _window}[self.name]
        blocks = self.operands.settings.steps.lists(built(self.operands, self.selection, backward), self.name, backward)
        return _without_entries(blocks) if backward else blocks

    def forward(self) -> tuple[Tensor, Tensor]:
        """(out like q but contiguous, lse)."""
        o = self.operands
        out = torch.empty(o.q.shape, dtype=o.q.dtype, device=o.q.device)
        lse_shape = (o.heads_q, o.rows) if o.packed else (o.batch, o.heads_q, o.length)
        lse = torch.empty(lse_shape, dtype=torch.float32, device=o.q.device)
        blocks = self.lists(backward=False)
        inputs, settings = (o.q, self.k, self.v), o.settings
        o.launcher.forward(inputs, (out, lse), self.sequences(), blocks, settings.scale, settings.steps.attention)
        return out, lse

    def backward(self, out: Tensor, lse: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(dQ, dK, dV) of this branch, float32, contiguous; those of compressed keys that do not exist are 0."""
        o = self.operands
        dq = torch.empty(o.q.shape, dtype=torch.float32, device=o.q.device)
        new = torch.zeros if self.name == "compressed" and o.packed else torch.empty
        dk, dv = (new(x.shape, dtype=torch.float32, device=x.device) for x in (self.k, self.v))
        blocks = self.lists(backward=True)
        o.launcher.backward(
            (o.q, self.k, self.v),
            (out, lse, grad_out),
            (dq, dk, dv),
            self.sequences(),
            blocks,
            o.settings.scale,
            o.settings.deterministic,
            self.group_split(blocks),
        )
        return dq, dk, dv

    def group_split(self, blocks: BlockSparse) -> int | None:
        """Units of each KV head in the backward kernel; None: as it chooses."""
        o = self.operands
        if self.name != "selected" or blocks.backward is None:
            return None
        sizes = o.batch, o.heads_q, o.heads_kv, o.settings.longest, o.dim
        return scattered_group_split(*sizes, blocks.m_blocks, blocks.backward.rows, o.settings.deterministic)


def _without_entries(blocks: BlockSparse) -> BlockSparse:
    """Lists of the backward kernels, which read nothing of the forward ones but how many rows these have."""
    batch, heads, rows = blocks.forward.partial.count.shape
    nothing = BlockList.empty(batch, heads, rows, blocks.device)
    mask = blocks.mask
    if isinstance(mask, Bits):
        mask = replace(mask, slot=nothing.index)
    return replace(blocks, forward=BlockLists(nothing, nothing), mask=mask)


def _compressed(o: Operands, selection: Selection, backward: bool) -> BlockSparse:
    s = o.settings
    options: dict[str, Any] = {"rule": s.rule, "backward": backward, "longest": (s.longest, s.blocks)}
    options |= {"tile_m": tile_m(s.tile), "tile_n": tile_n(o.dim, backward)}
    if selection.groups is None:
        return pooled(o.lengths, o.block_counts, device=o.q.device, **options)
    return pooled_groups(
        selection.groups,
        o.lengths,
        o.block_counts,
        group_size=GROUP,
        rows_per_tile=s.tile,
        ranks=s.deterministic,
        **options,
    )


def _selected(o: Operands, selection: Selection, backward: bool) -> BlockSparse:
    s = o.settings
    return selected(
        selection.blocks,
        o.lengths,
        o.lengths,
        block_size=s.block,
        rows_per_tile=s.tile,
        causal=s.causal > 0,
        tile_m=tile_m(s.tile),
        tile_n=selected_tile_n(o.dim, s.block, backward),
        backward=backward,
        ranks=s.deterministic,
        longest=(s.longest, s.longest),
    )


def _window(o: Operands, _: Selection, backward: bool) -> BlockSparse:
    s = o.settings
    width = min(s.steps.width_of_window(s.window, backward), OPEN)
    left, right = (width - 1, 0) if s.causal else (width // 2, width // 2)
    tiles = tile_m(s.tile), tile_n(o.dim, backward)
    # a tile of queries meets so many keys, and so many tiles of keys where these do not begin with it
    most = min(ceil_div(left + right + tiles[0], tiles[1]) + 1, max(ceil_div(s.longest, tiles[1]), 1))
    capacity = max(o.batch * ceil_div(s.longest, tiles[0]) * most, 1)
    return band(
        o.lengths,
        o.lengths,
        left=left,
        right=right,
        tile_m=tiles[0],
        tile_n=tiles[1],
        backward=backward,
        device=o.q.device,
        capacity=(capacity, capacity),
        longest=(s.longest, s.longest),
    )
