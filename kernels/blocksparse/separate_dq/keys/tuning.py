"""Layout of the kernel on an SM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.blocksparse.backward.tiling import Tiling, choose_tiling

if TYPE_CHECKING:
    from kernels.blocksparse.spec.variant import Variant

TILE_N = 64
STEP = 64  # queries that a warpgroup multiplies at a time: half of a tile
GROUPS = 2  # multiplying warpgroups
STAGES_Q, STAGES_DO = 3, 2  # of a warpgroup: Q of a step is read again in the next one
TILES = 2  # of K and V: the next one is loaded during this one's steps
RESIDENT = 132  # CTAs: the multiprocessors of an H100 and of an H200
LOADING, MULTIPLYING = 24, 240  # registers of a thread; launched with 168


def has_keys_kernel(variant: Variant) -> bool:
    """True where the backward kernel of a separate dQ is this one: without a soft cap, whose slope takes registers that
    there are not."""
    shape = variant.tile_m, variant.tile_n, variant.dim_padded
    return variant.separate_dq and not variant.softcap and shape == (2 * STEP, TILE_N, 128)


def keys_tiling(variant: Variant, arch: str) -> Tiling:
    """The tiling of a variant: partial sums lie as the other backward kernel's, for postprocess. `variant.tuning` may
    set resident, the number of CTAs."""
    tuning = tuple((name, value) for name, value in variant.tuning if name != "resident")
    return replace(choose_tiling(replace(variant, tuning=tuning), arch), wait_warp=True)
