"""Operands: the tensors and settings of one call as a value, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.blocksparse.launch.forward import fits
from kernels.blocksparse.lists.pooled import PoolRule
from kernels.nsa.config import GROUP
from kernels.nsa.injection import InjectionPoints, find_injection
from kernels.nsa.launcher import LAUNCHER, Launcher, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

CAUSAL: dict[object, int] = {False: 0, True: 1, "strict": 2}


@dataclass(frozen=True)
class Settings:
    """The numbers of a call.

    block     tokens of a compressed, and of a selectable, block
    chosen    selectable blocks that a tile of queries chooses at most
    window    keys of the window
    groups    groups of compressed blocks that a tile chooses at most; 0: all are seen
    causal    0 no, 1 the published rule, 2 strict
    tile      queries that choose together
    longest   tokens of the longest sequence
    """

    block: int
    chosen: int
    window: int
    groups: int
    causal: int
    tile: int
    longest: int
    scale: float
    deterministic: bool
    injection: str = ""

    @property
    def numbers(self) -> list[int]:
        """What the custom operators take as integers."""
        return [self.block, self.chosen, self.window, self.groups, self.causal, self.tile, self.longest]

    @property
    def blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.longest // self.block)

    @property
    def tiles(self) -> int:
        """Tiles of queries of the longest sequence."""
        return -(-self.longest // self.tile)

    @property
    def all_groups(self) -> int:
        """Groups of the longest sequence."""
        return -(-self.blocks // GROUP)

    @property
    def grouped(self) -> bool:
        """Whether the compressed branch sees chosen groups alone."""
        return 0 < self.groups < self.all_groups

    @property
    def rule(self) -> PoolRule | None:
        """Which compressed blocks a query sees."""
        return None if not self.causal else PoolRule(self.block, "begun" if self.causal == 1 else "ended")

    @property
    def steps(self) -> InjectionPoints:
        """The steps that a mutant replaces."""
        return find_injection(self.injection)


def settings_of(numbers: Sequence[int], scale: float, deterministic: bool, injection: str) -> Settings:
    """The inverse of `Settings.numbers`."""
    block, chosen, window, groups, causal, tile, longest = numbers
    return Settings(block, chosen, window, groups, causal, tile, longest, scale, deterministic, injection)


@dataclass(frozen=True, eq=False)
class Operands:
    """The tensors of a call.

    q         (batch, length, heads_q, dim), or (total, heads_q, dim) with cu_seqlens
    k, v      likewise, of heads_kv
    w_k, w_v  (heads_kv, dim, dim) or None;  w_gate  (heads_q, 3, dim) or None
    cu        int32 (batch + 1,) in a packed call, else None
    plan      what notes the kernels instead of launching them, or None
    """

    q: Tensor
    k: Tensor
    v: Tensor
    w_k: Tensor | None
    w_v: Tensor | None
    w_gate: Tensor | None
    cu: Tensor | None
    settings: Settings
    plan: Plan | None = None

    @property
    def launcher(self) -> Launcher:
        return LAUNCHER if self.plan is None else self.plan

    @property
    def packed(self) -> bool:
        return self.cu is not None

    @property
    def batch(self) -> int:
        return self.q.shape[0] if self.cu is None else self.cu.shape[0] - 1

    @property
    def heads_q(self) -> int:
        return self.q.shape[-2]

    @property
    def heads_kv(self) -> int:
        return self.k.shape[-2]

    @property
    def dim(self) -> int:
        return self.q.shape[-1]

    @property
    def rows(self) -> int:
        """Rows of all sequences."""
        return self.q.shape[0] if self.packed else self.q.shape[0] * self.q.shape[1]

    @property
    def length(self) -> int:
        """Rows of a batch entry: of padded sequences the length of each."""
        return self.q.shape[0] if self.packed else self.q.shape[1]

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, int32 (batch,)."""
        if self.cu is not None:
            return self.cu[1:] - self.cu[:-1]
        return torch.full((self.batch,), self.length, dtype=torch.int32, device=self.q.device)

    @cached_property
    def begins(self) -> Tensor:
        """Each sequence's first row in its batch entry, int32 (batch,)."""
        return torch.zeros_like(self.lengths) if self.cu is None else self.cu[:-1].contiguous()

    @cached_property
    def block_counts(self) -> Tensor:
        """Compressed blocks of each sequence, int32 (batch,)."""
        block = self.settings.block
        if self.cu is None:
            return torch.full((self.batch,), -(-self.length // block), dtype=torch.int32, device=self.q.device)
        return (self.lengths + (block - 1)).div(block, rounding_mode="floor")


def readable(x: Tensor) -> Tensor:
    """A tensor as kernels can read it: itself, or a copy, of one too that is contiguous, but begins off alignment."""
    return x if fits(x) else x.clone(memory_format=torch.contiguous_format)


def aligned(*tensors: Tensor) -> bool:
    """NOTE [aligned] in rows.py."""
    return all(fits(x) and x.shape[-1] % 8 == 0 for x in tensors)


def readable_operands(operands: Operands) -> Operands:
    """Operands as kernels can read them."""
    o = operands
    w_k, w_v, w_gate = (None if x is None else x.contiguous() for x in (o.w_k, o.w_v, o.w_gate))
    return replace(o, q=readable(o.q), k=readable(o.k), v=readable(o.v), w_k=w_k, w_v=w_v, w_gate=w_gate)


def strides_of(x: Tensor) -> tuple[int, int, int]:
    """(batch, row, head) strides of (batch, rows, heads, dim), or of packed (rows, heads, dim), whose first is 0."""
    *batch, row, head, _ = x.stride()
    return batch[0] if batch else 0, row, head
