"""Layout of the Blackwell backward kernel on an SM: warps, tensor memory, shared memory, registers.

NOTE [columns] Tensor memory of a CTA, 512 columns: S, later P, of 128 queries; dP, later dS; dV; dK; dQ. At head dim
128 dQ takes the place of dP, so that the next dP waits until dQ has been read out. Lanes are keys, except those of
dQ.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.blocksparse.spec.sm100 import COLUMNS, RESERVED, ROWS, SHARED
from kernels.blocksparse.spec.variant import Variant, backward_products

SOFTMAX_WARPS, DQ_WARPS, LOAD_WARPS = 8, 4, 3
FIRST_LOAD = SOFTMAX_WARPS + DQ_WARPS  # the warps that load Q, one for each of its stages, then the one that loads dO
ISSUER = FIRST_LOAD + LOAD_WARPS  # the warp that issues products
THREADS = 32 * (ISSUER + 1)
SOFTMAX_REGISTERS, DQ_REGISTERS, OTHERS = 144, 160, 64  # of a thread; launched with 128
HALF = ROWS // 2  # queries of a softmax thread, and keys of P and dS that lie together in tensor memory
Q_STAGES = 2
DQ_COLUMNS = 16  # of dQ that one bulk reduction adds


@dataclass(frozen=True)
class BlackwellBackwardTuning:
    """Sizes of one CTA's work on (128 x 128) blocks; a step is a block.

    tile_m, tile_n, dim   of the variant; step_m is tile_m
    tma      1: Q, K, V, dO, LSE and delta are loaded by TMA, NOTE [whole tiles] of tma_loads.py; 0: by cp.async
    bulk_dq  1: dQ is added by bulk reductions from shared memory, NOTE [bulk adds] of dq_warps.py; 0: by each thread,
             which spares shared memory, the unit that is used most. By default ordered adds are bulk reductions: one
             thread then waits for the semaphore while the others go on
    """

    dim: int
    tma: int = 1
    bulk_dq: int = 0
    tile_m: int = ROWS
    tile_n: int = ROWS
    step_m: int = ROWS
    threads: int = THREADS

    @property
    def shares_dq(self) -> bool:
        """True where dQ takes the place of dP in tensor memory."""
        return 2 * ROWS + 3 * self.dim > COLUMNS

    @property
    def columns(self) -> dict[str, int]:
        """The first column of each accumulator: NOTE [columns]."""
        return accumulator_columns(self.dim, self.shares_dq)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA: K, V, stages of Q, dO, dS, buffers of dQ, and less than 4 KiB for all else."""
        adds = self.bulk_dq * 2 * 4 * ROWS * DQ_COLUMNS
        return 2 * ROWS * self.dim * (3 + Q_STAGES) + 2 * ROWS * ROWS + adds + 4096


def accumulator_columns(dim: int, shares_dq: bool) -> dict[str, int]:
    """The first column of each accumulator in tensor memory; shares_dq: dQ takes the place of dP."""
    dv = 2 * ROWS
    return {"s": 0, "dp": ROWS, "dv": dv, "dk": dv + dim, "dq": ROWS if shares_dq else dv + 2 * dim}


def blackwell_backward_tuning(variant: Variant) -> BlackwellBackwardTuning:
    """The layout of a backward or postprocess variant with products "tcgen05". Raises ValueError for tiles, dims or
    overrides that it does not have."""
    if backward_products("tcgen05", variant.tile_n, variant.dim_padded, variant.tile_m) != "tcgen05":
        raise ValueError(
            f"variant.products is 'tcgen05': the backward kernel needs tiles of 128 x 128 and dim 64 or 128 for it, "
            f"got {variant.tile_m} x {variant.tile_n} and {variant.dim_padded}"
        )
    overrides = dict(variant.tuning)
    if unknown := sorted(set(overrides) - {"tma", "bulk_dq"}):
        raise ValueError(f"variant.tuning has {unknown}; the Blackwell backward kernel knows ['bulk_dq', 'tma']")
    tuning = BlackwellBackwardTuning(variant.dim_padded, **{"bulk_dq": int(variant.deterministic), **overrides})
    if not {tuning.tma, tuning.bulk_dq} <= {0, 1}:
        raise ValueError(f"variant.tuning has {overrides}; the Blackwell backward kernel takes 0 and 1")
    assert tuning.shared_bytes <= SHARED - RESERVED
    return tuning
