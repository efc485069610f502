"""The three branches as block-sparse attention: their keys, their block lists, and their passes.

Branches are launched without the checks of users' block lists: these lists are made here, and asking the device about
them would cost more than the attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.blocksparse.launch.forward import Sequences
from kernels.blocksparse.lists.types import Bits, BlockSparse, LPTOrder
from kernels.blocksparse.planner.group_split import scattered_group_split, separate_group_split
from kernels.nsa.config import selected_tile_n, tile_m
from kernels.nsa.lists.build import branch_lists
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
        if not o.packed:
            return Sequences(o.begins, o.lengths, o.begins, o.block_counts)
        begins = torch.arange(o.batch, dtype=torch.int32, device=o.q.device) * o.settings.blocks
        return Sequences(o.begins, o.lengths, begins.to(torch.int32), o.block_counts)

    def lists(self, backward: bool) -> BlockSparse:
        """The block lists, for the forward kernel or the backward ones."""
        blocks = branch_lists(self.name, self.operands, self.selection, backward)
        return self.operands.settings.steps.lists(blocks, self.name, backward)

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

    def backward(
        self, out: Tensor, lse: Tensor, grad_out: Tensor, separate_dq: bool | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dQ, dK, dV) of this branch, float32, contiguous; those of compressed keys that do not exist are 0.
        separate_dq: dQ by a kernel of its own; None: where `scattered`."""
        o = self.operands
        separate_dq = self.scattered() if separate_dq is None else separate_dq
        dq = torch.empty(o.q.shape, dtype=torch.float32, device=o.q.device)
        new = torch.zeros if self.name == "compressed" and o.packed else torch.empty
        dk, dv = (new(x.shape, dtype=torch.float32, device=x.device) for x in (self.k, self.v))
        blocks = self.both_lists() if separate_dq else self.lists(backward=True)
        o.launcher.backward(
            (o.q, self.k, self.v),
            (out, lse, grad_out),
            (dq, dk, dv),
            self.sequences(),
            blocks,
            o.settings.scale,
            o.settings.deterministic,
            self.group_split(blocks, separate_dq),
            separate_dq,
            o.settings.steps.attention_backward,
        )
        return dq, dk, dv

    def scattered(self) -> bool:
        """True where tiles of 64 keys list few and scattered tiles of queries, and dQ can be a kernel's of its own."""
        o = self.operands
        tiles = tile_m(o.settings.tile), selected_tile_n(o.dim, o.settings.block, backward=True)
        return self.name == "selected" and tiles[1] == 64 and o.launcher.may_separate_dq(o.q, *tiles)

    def both_lists(self) -> BlockSparse:
        """The block lists for the forward kernel and, without the order of adds, for the backward ones: their tiles,
        and so the masks' words, are the same."""
        settings = replace(self.operands.settings, deterministic=False)
        unordered = replace(self, operands=replace(self.operands, settings=settings))
        forward, backward = self.lists(backward=False), unordered.lists(backward=True)
        assert (forward.tile_m, forward.tile_n) == (backward.tile_m, backward.tile_n)
        assert isinstance(forward.mask, Bits) and isinstance(backward.mask, Bits) and backward.lpt is not None
        rows = torch.arange(forward.m_blocks - 1, -1, -1, dtype=torch.int32, device=forward.device)
        lpt = LPTOrder(rows.view(1, 1, -1), backward.lpt.columns)  # later tiles of queries have more keys
        return replace(backward, forward=forward.forward, mask=replace(backward.mask, slot=forward.mask.slot), lpt=lpt)

    def group_split(self, blocks: BlockSparse, separate_dq: bool = False) -> int | None:
        """Units of each KV head in the backward kernel; None: as it chooses."""
        o = self.operands
        if self.name != "selected" or blocks.backward is None:
            return None
        sizes = o.batch, o.heads_q, o.heads_kv, o.settings.longest, o.dim
        rows = blocks.m_blocks, blocks.backward.rows
        if separate_dq:
            visits = -(-self.selection.blocks.shape[-1] * o.settings.block // blocks.tile_n)
            return separate_group_split(*sizes, *rows, visits)
        return scattered_group_split(*sizes, *rows, o.settings.deterministic)
