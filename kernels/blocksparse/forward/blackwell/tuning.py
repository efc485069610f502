"""Layout of the Blackwell forward kernel on an SM; `Variant.tuning` overrides single entries."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.blocksparse.spec.variant import Variant

ROWS = 128  # of a query tile: the lanes of tensor memory
SHARED = 232448  # bytes of shared memory that a CTA of sm_100 can have
COLUMNS = 512  # of tensor memory
SOFTMAX_WARPS = ROWS // 32  # one thread for each row
BARRIERS = 256  # bytes set aside for barriers and the address of the columns


@dataclass(frozen=True)
class BlackwellTuning:
    """Resources of an SM that the kernel uses; NOTE [warps] of blackwell/kernel.py.

    step      keys at a time, a divisor of tile_n
    stages    tiles of K and of V in shared memory, 1 or 2: as many pairs of loading warps
    buffers   tiles of scores in tensor memory, 1 or 2: with two the next ones are computed during a softmax
    ctas      of an SM for which registers are limited
    """

    step: int
    stages: int
    buffers: int
    ctas: int = 1

    def threads(self, variant: Variant) -> int:
        """Threads of a CTA: those of the softmax, those that load, and a warp that issues the products."""
        return 32 * (SOFTMAX_WARPS + 2 * self.stages + 1)

    def shared_bytes(self, variant: Variant) -> int:
        """Shared memory of one CTA."""
        return 2 * variant.dim_padded * (variant.tile_m + 2 * self.stages * self.step) + BARRIERS

    def columns(self, variant: Variant) -> int:
        """Columns of tensor memory that one CTA allocates: a power of two."""
        used = self.buffers * self.step + variant.dim_padded
        return max(32, 1 << (used - 1).bit_length())


def blackwell_tuning(variant: Variant) -> BlackwellTuning:
    """The layout that `variant` is built with. Raises ValueError for tiles or overrides that cannot work."""
    if variant.tile_m != ROWS:
        raise ValueError(f"variant.tile_m is {variant.tile_m}; products by tcgen05 need {ROWS}")
    values = {"step": 64 if variant.dim_padded > 128 else variant.tile_n, "stages": 2, "buffers": 2, "ctas": 1}
    overrides = dict(variant.tuning)
    names = [field.name for field in fields(BlackwellTuning)]
    if unknown := sorted(set(overrides) - set(names)):
        raise ValueError(f"variant.tuning has {unknown}; the Blackwell forward kernel knows {names}")
    tuning = BlackwellTuning(**{**values, **overrides})
    if variant.tile_n % tuning.step or tuning.step % 32 or not {tuning.stages, tuning.buffers} <= {1, 2}:
        raise ValueError(f"variant.tuning {tuning} does not fit tiles {variant.tile_m} × {variant.tile_n}")
    if (size := tuning.ctas * tuning.shared_bytes(variant)) > SHARED:
        raise ValueError(f"variant.tuning {tuning}: {size} bytes of shared memory; there are {SHARED}")
    if (columns := tuning.ctas * tuning.columns(variant)) > COLUMNS:
        raise ValueError(f"variant.tuning {tuning}: {columns} columns of tensor memory; there are {COLUMNS}")
    return tuning
