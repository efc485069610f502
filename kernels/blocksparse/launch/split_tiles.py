"""Which tiles of a launch are split, and the memory for their sums: NOTE [split tiles] of common/split_tiles.py.

Of n tiles on p CTAs that take one after the other, n % p are left for the last wave. Split into s parts they take
ceil(s * (n % p) / p) rounds of 1 / s of a tile's time, and what a part costs besides its blocks each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.blocksparse.forward.hopper.tuning import ROWS, WARPGROUP
from kernels.blocksparse.spec.variant import Variant

MOST = 8  # parts of a tile
WORTH = 0.85  # of a tile's time, that a last wave in parts should take at most: docs/performance/log.md


class PartCosts(NamedTuple):
    """Costs of a part besides its blocks, in the time of a block.

    start  to load the tile's operands, and to leave the sums in memory
    read   to read the sums again, by the last part to arrive
    """

    start: float
    read: float


FORWARD, BACKWARD = PartCosts(2.0, 0.5), PartCosts(2.5, 0.5)
FREE = PartCosts(0.0, 0.0)  # on an emulated GPU, so that small problems have split tiles too


class Split(NamedTuple):
    """The first tile that is split, how many are, and the parts of each."""

    first: int
    tiles: int
    parts: int

    @property
    def numbers(self) -> int:
        """Whole tiles, and parts of the others."""
        return self.first + self.tiles * self.parts


@lru_cache(4096)
def split_of(tiles: int, ctas: int, blocks: int, costs: PartCosts) -> Split:
    """The split of `tiles` tiles that list so many blocks each, on `ctas` CTAs; no tile where that saves little."""
    rest, most = tiles % ctas, min(MOST, blocks)

    def time(parts: int) -> float:
        return -(-parts * rest // ctas) * (1.0 / parts + costs.start / blocks) + parts * costs.read / blocks

    parts = min(range(2, most + 1), key=time, default=1)
    return Split(tiles - rest, rest, parts) if rest and parts > 1 and time(parts) < WORTH else Split(tiles, 0, 1)


@dataclass(frozen=True, eq=False)
class SplitSums:
    """A split, and memory for it. arrivals: int32, zeros before the launch."""

    split: Split
    sums: Tensor
    arrivals: Tensor

    def values(self) -> dict[str, Tensor | int]:
        """Arguments of a kernel."""
        first, _, parts = self.split
        return {
            "first_split": first, "split_parts": parts, "split_sums": self.sums, "split_arrivals": self.arrivals,
        }  # fmt: skip


def no_split(tiles: int) -> dict[str, Tensor | int]:
    """Arguments of a kernel that splits none of so many tiles."""
    return {"first_split": tiles, "split_parts": 1, "split_sums": 0, "split_arrivals": 0}


def may_split(variant: Variant) -> bool:
    """True for a kernel whose tiles may be split. A launch that splits none takes `without_splits` of it, which is up
    to 3 % faster."""
    return bool(dict(variant.tuning).get("splits"))


@lru_cache(1024)
def without_splits(variant: Variant) -> Variant:
    """The kernel that splits no tiles."""
    return replace(variant, tuning=tuple(pair for pair in variant.tuning if pair[0] != "splits"))


def forward_sums(split: Split, variant: Variant, arrivals: Tensor, cluster: int = 1) -> SplitSums:
    """Memory for a split of the forward kernel: forward/hopper/split_sums.py. cluster: CTAs with a tile each, that
    share one of `split`."""
    groups = cluster * variant.tile_m // ROWS
    of_part = groups * (ROWS * variant.dim_padded + 2 * 2 * WARPGROUP)  # O; two rows' references and sums
    return SplitSums(split, _floats(split, of_part, arrivals), arrivals)


def backward_sums(split: Split, variant: Variant, arrivals: Tensor) -> SplitSums:
    """Memory for a split of the backward kernel: dK and dV of a tile."""
    return SplitSums(split, _floats(split, 2 * variant.tile_n * variant.dim_padded, arrivals), arrivals)


def _floats(split: Split, of_part: int, like: Tensor) -> Tensor:
    return torch.empty(split.tiles * split.parts * of_part, dtype=torch.float32, device=like.device)
