"""Layout of the Blackwell forward kernel on an SM; `Variant.tuning` overrides single entries.

NOTE [two CTAs] Up to head dim 128 two CTAs share an SM: while one's softmax runs the other's products do, and neither
needs a second buffer for that. Half of shared memory then holds one stage of K and V, half of tensor memory one tile of
scores. Larger dims have an SM for each CTA, which computes the next scores during its softmax. So has a tile of 256
queries, which fills tensor memory at head dim 128: NOTE [two query tiles] of kernel.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from kernels.blocksparse.spec.sm100 import COLUMNS, MOST, REGISTERS, RESERVED, ROWS, SHARED
from kernels.blocksparse.spec.variant import PAIR

if TYPE_CHECKING:
    from kernels.blocksparse.spec.variant import Variant

SOFTMAX_WARPS = ROWS // 32  # of a query tile: one thread for each row
BARRIERS = 512  # bytes set aside for barriers, the address of the columns and announced tiles
GROUP = 4  # pairs of exponentials of which `polynomials` are
# Registers of a thread that has no row, where those of the softmax take more than their share: up to head dim 64, and
# beyond; so ptxas spills the least
OTHERS = (48, 56)


@dataclass(frozen=True)
class BlackwellTuning:
    """Resources of an SM that the kernel uses; NOTE [warps] of blackwell/kernel.py.

    step      keys at a time, a divisor of tile_n
    stages    tiles of K and of V in shared memory, 1 or 2
    buffers   tiles of scores in tensor memory, 1 or 2: with two the next ones are computed during a softmax
    ctas      of an SM, 1 or 2: NOTE [two CTAs]
    tma       1: Q, K and V are loaded and O is stored by TMA, NOTE [whole tiles] of tma_loads.py; 0: loads by cp.async,
              and O by all softmax threads
    q_stages  tiles of 128 queries in shared memory: those of a CTA, or up to twice as many, NOTE [stages of Q]
    lead      steps of a tile whose K is still to be loaded when the CTA takes its next one, NOTE [tiles] of
              tile_scheduler.py; 0: it takes it at the tile's start, as it does without TMA
    polynomials   pairs of exponentials, of each GROUP, that are polynomials: NOTE [polynomials] of exponentials.py
    """

    step: int
    stages: int
    buffers: int
    ctas: int
    tma: int
    q_stages: int
    lead: int
    polynomials: int

    @property
    def loaders(self) -> int:
        """Warps that load K and V: one for each by TMA, else one for each of their buffers."""
        return 2 if self.tma else 2 * self.stages

    def threads(self, variant: Variant) -> int:
        """Threads of a CTA, those of its warps in whole warpgroups, as setmaxnreg needs them."""
        return 32 * (-(-self.warps(variant) // 4) * 4)

    def warps(self, variant: Variant) -> int:
        """Warps with work: those of the softmax, those that load, one that issues the products, and one that announces
        tiles and, by TMA, stores O."""
        return SOFTMAX_WARPS * (variant.tile_m // ROWS) + self.loaders + 2

    def registers(self, variant: Variant) -> int:
        """Registers of a softmax thread; 0: all threads keep those of the launch, else the others keep `others`."""
        groups, rows = self.threads(variant) // 128, variant.tile_m // ROWS  # warpgroups; those of the softmax
        launched = min(REGISTERS // (128 * groups * self.ctas) // 8 * 8, MOST)
        most = min((groups * launched - (groups - rows) * self.others(variant)) // rows, MOST) // 8 * 8
        return 0 if launched == MOST else most

    def others(self, variant: Variant) -> int:
        """Registers of the other threads, where `registers` is not 0."""
        return OTHERS[variant.dim_padded > 64]

    def shared_bytes(self, variant: Variant) -> int:
        """Shared memory of one CTA."""
        return 2 * variant.dim_padded * (self.q_stages * ROWS + 2 * self.stages * self.step) + BARRIERS

    def all_shared_bytes(self, variant: Variant) -> int:
        """Shared memory of an SM's CTAs, with what the system takes."""
        return self.ctas * (self.shared_bytes(variant) + RESERVED)

    def columns(self, variant: Variant) -> int:
        """Columns of tensor memory that one CTA allocates: a power of two."""
        used = variant.tile_m // ROWS * (self.buffers * self.step + variant.dim_padded)
        return max(32, 1 << (used - 1).bit_length())


def blackwell_tuning(variant: Variant, arch: str = "sm_100a") -> BlackwellTuning:
    """The layout that `variant` is built with for `arch`, which decides on polynomials alone: sm_103a has twice as many
    MUFU.EX2 a clock. Raises ValueError for tiles or overrides that cannot work."""
    if variant.tile_m not in (ROWS, PAIR):
        raise ValueError(f"variant.tile_m is {variant.tile_m}; products by tcgen05 need {ROWS} or {PAIR}")
    overrides = dict(variant.tuning)
    large, pair, tiles = variant.dim_padded > 128, variant.tile_m == PAIR, variant.tile_m // ROWS
    ctas = overrides.get("ctas", 1 if large or pair else 2)
    each = 2 if ctas == 1 else 1
    values = {
        "step": 64 if large else variant.tile_n,
        "stages": each,
        "ctas": ctas,
        "tma": 1,
        "q_stages": tiles,
        "lead": 4,
        "polynomials": 0 if large or arch == "sm_103a" else 1,
    }
    values["buffers"] = 1 if pair else each
    names = [field.name for field in fields(BlackwellTuning)]
    if unknown := sorted(set(overrides) - set(names)):
        raise ValueError(f"variant.tuning has {unknown}; the Blackwell forward kernel knows {names}")
    tuning = BlackwellTuning(**{**values, **overrides})
    if tuning.tma and "q_stages" not in overrides:
        more = (replace(tuning, q_stages=n) for n in range(2 * tiles, tiles, -1))
        tuning = next((larger for larger in more if larger.all_shared_bytes(variant) <= SHARED + RESERVED), tuning)
    numbers = {tuning.stages, tuning.buffers, tuning.ctas} <= {1, 2} and tuning.tma in (0, 1)
    numbers = numbers and tuning.polynomials in range(GROUP + 1) and tuning.lead in range(256)
    numbers = numbers and tuning.q_stages in range(tiles, tiles * (2 if tuning.tma else 1) + 1)
    if variant.tile_n % tuning.step or tuning.step % 32 or not numbers:
        raise ValueError(f"variant.tuning {tuning} does not fit tiles {variant.tile_m} × {variant.tile_n}")
    if tuning.registers(variant) and tuning.registers(variant) < 200:
        raise ValueError(f"variant.tuning {tuning}: a thread of the softmax has too few registers for its row")
    if (size := tuning.all_shared_bytes(variant)) > SHARED + RESERVED:
        raise ValueError(f"variant.tuning {tuning}: {size} bytes of shared memory; there are {SHARED + RESERVED}")
    if (columns := tuning.ctas * tuning.columns(variant)) > COLUMNS:
        raise ValueError(f"variant.tuning {tuning}: {columns} columns of tensor memory; there are {COLUMNS}")
    return tuning
