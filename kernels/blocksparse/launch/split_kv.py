"""Which tiles of a forward launch are split, and the memory for their sums: NOTE [split tiles] of
forward/split_kv.py.

Of n tiles on p CTAs that take one after the other, n % p are left for the last wave. Split into s parts they take
ceil(s * (n % p) / p) rounds of 1 / s of a tile's time, and what a part costs besides its blocks each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.blocksparse.forward.hopper.tuning import ROWS, WARPGROUP
from kernels.blocksparse.spec.variant import Variant

MOST = 8  # parts of a tile
PART = 2.0  # blocks' time that a part takes besides its blocks: Q and the first K, sums to memory and back


class Split(NamedTuple):
    """The first tile that is split, how many are, and the parts of each."""

    first: int
    tiles: int
    parts: int


@lru_cache(4096)
def split_of(tiles: int, ctas: int, blocks: int) -> Split:
    """The split of `tiles` tiles that list so many blocks each, on `ctas` CTAs; no tile where no split is faster than
    none, and where all tiles are in one wave."""
    rest = tiles % ctas

    def time(parts: int) -> float:
        return -(-parts * rest // ctas) * (1.0 / parts + (parts > 1) * PART / max(blocks, 1))

    parts = min(range(1, min(MOST, max(blocks, 1)) + 1), key=time)
    return Split(tiles - rest, rest, parts) if parts > 1 else Split(tiles, 0, 1)


@dataclass(frozen=True, eq=False)
class SplitSums:
    """A split, and memory for it: `SplitTiles` of forward/split_kv.py. counters: int32, zeros, the tile counter and
    then `arrivals`."""

    split: Split
    sums: Tensor
    counters: Tensor

    @classmethod
    def empty(cls, split: Split, variant: Variant, device: torch.device) -> SplitSums:
        """Memory for a split by a kernel of this variant."""
        groups = variant.tile_m // ROWS
        of_part = groups * (ROWS * variant.dim_padded + 2 * 2 * WARPGROUP)  # O; two rows' references and sums
        sums = torch.empty(split.tiles * split.parts * of_part, dtype=torch.float32, device=device)
        return cls(split, sums, torch.zeros(1 + split.tiles * groups, dtype=torch.int32, device=device))

    @property
    def numbers(self) -> int:
        """Whole tiles, and parts of others."""
        return self.split.first + self.split.tiles * self.split.parts

    @property
    def tile_counter(self) -> Tensor:
        """int32 (1,)."""
        return self.counters[:1]

    @property
    def arrivals(self) -> Tensor:
        """int32 (tiles, multiplying warpgroups)."""
        return self.counters[1:]


def split_sums(variant: Variant, tiles: int, ctas: int, blocks: int, device: torch.device) -> SplitSums | None:
    """The split of a forward launch of this variant, `split_of`, with memory for it; None where no tile is split."""
    if not dict(variant.tuning).get("splits"):
        return None
    split = split_of(tiles, ctas, blocks)
    return SplitSums.empty(split, variant, device) if split.tiles else None
