"""Layout of the kernel on an SM; `Variant.tuning` overrides single entries."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from kernels.blocksparse.forward.hopper.tuning import BARRIERS, REGISTERS, ROWS, SHARED, WARPGROUP

if TYPE_CHECKING:
    from kernels.blocksparse.spec.variant import Variant

STEP = 64  # keys at a time: S and dP of them take 64 registers of a thread, beside dQ's 64 at head dim 128
LOADING = 80  # registers of a thread that loads; those that multiply share what is left
WORKERS = 2  # loading warps of K, and as many of V


@dataclass(frozen=True)
class DQTuning:
    """Resources of an SM that the kernel uses; NOTE [loads of dQ] of loads.py.

    stages_k, stages_v   steps of K and of V in shared memory. K of a step is read again in the next one, so it has more
    tiles                of Q and dO in shared memory, 1 or 2: with two the next ones are loaded during this one's steps
    """

    stages_k: int = 4
    stages_v: int = 2
    tiles: int = 2

    def warpgroups(self, variant: Variant) -> int:
        """Those that multiply; one more loads."""
        return variant.tile_m // ROWS

    def threads(self, variant: Variant) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (1 + self.warpgroups(variant))

    def registers(self, variant: Variant) -> int:
        """Registers of a thread that multiplies, where those that load keep LOADING."""
        groups = self.warpgroups(variant)
        launched = REGISTERS // self.threads(variant) // 8 * 8
        return ((groups + 1) * launched - LOADING) // groups // 8 * 8

    def shared_bytes(self, variant: Variant) -> int:
        """Shared memory of one CTA."""
        rows = 2 * self.tiles * variant.tile_m + (self.stages_k + self.stages_v) * STEP
        return 2 * variant.dim_padded * rows + BARRIERS


def dq_tuning(variant: Variant) -> DQTuning:
    """The layout that `variant` is built with. Raises ValueError for variants and overrides that cannot work."""
    if variant.tile_m != 128 or variant.dim_padded not in (64, 128):
        raise ValueError(
            f"variant: the dQ kernel needs tile_m 128 and dim_padded 64 or 128, got {variant.tile_m} and "
            f"{variant.dim_padded}"
        )
    overrides = dict(variant.tuning)
    names = [field.name for field in fields(DQTuning)]
    if unknown := sorted(set(overrides) - set(names)):
        raise ValueError(f"variant.tuning has {unknown}; the dQ kernel knows {names}")
    tuning = DQTuning(**overrides)
    if min(tuning.stages_k, tuning.stages_v) < WORKERS or tuning.tiles not in (1, 2):
        raise ValueError(f"variant.tuning {tuning}: needs {WORKERS} stages of K and of V at least, and 1 or 2 tiles")
    if (size := tuning.shared_bytes(variant)) > SHARED:
        raise ValueError(f"variant.tuning {tuning}: {size} bytes of shared memory; there are {SHARED}")
    return tuning
