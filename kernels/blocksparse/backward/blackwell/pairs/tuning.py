"""Layout of the Blackwell backward kernel of pairs on the SMs of a pair: tensor memory, shared memory.

NOTE [shares] Products of a pair of CTAs have half of the rows of A and of the result, and half of the columns of B, in
each CTA, at the same place in both. All tcgen05 instructions of a kernel must be of the same number of CTAs, so that
dQ is a product of the pair too. Of each CTA:

    S = K Q^T, dP = V dO^T     its 128 keys; half of the queries of Q and dO, all columns
    dV += P dO, dK += dS Q     its 128 keys; all queries of dO and Q, half of the columns
    dQ = dS^T K                half of the queries, of all 256 keys; all keys of K, half of the columns

So Q, dO and K are in shared memory in two shares, by rows and by columns. An element that is in both of a CTA's shares
is there twice: one instruction gives both CTAs the same addresses. dS of the queries that the other CTA has is written
into that one's shared memory.

NOTE [columns of pairs] Tensor memory of each CTA, 512 columns: S, later P, of 128 queries; dP, later dS; dV; dK; all
with the CTA's keys as lanes. dQ has its 64 queries in lanes 0 to 63, and again in lanes 64 to 127 with the second half
of the columns: it takes dim / 2 columns, at head dim 128 in place of dP.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.blocksparse.backward.blackwell.tuning import HALF, Q_STAGES, THREADS, accumulator_columns
from kernels.blocksparse.spec.sm100 import COLUMNS, RESERVED, ROWS, SHARED
from kernels.blocksparse.spec.variant import PAIR_KEYS, Variant, backward_products

CTAS = 2  # of a pair


@dataclass(frozen=True)
class PairTuning:
    """Sizes of a pair's work on (128 x 256) blocks; a step is a block.

    tile_m, tile_n, dim   of the variant; step_m is tile_m
    tma      1: operands, LSE and delta are loaded by TMA, NOTE [whole tiles] of tma_loads.py; 0: by cp.async
    """

    dim: int
    tma: int = 1
    tile_m: int = ROWS
    tile_n: int = PAIR_KEYS
    step_m: int = ROWS
    threads: int = THREADS

    @property
    def shares_dq(self) -> bool:
        """True where dQ takes the place of dP in tensor memory."""
        return 2 * ROWS + 2 * self.dim + self.dim // 2 > COLUMNS

    @property
    def columns(self) -> dict[str, int]:
        """The first column of each accumulator: NOTE [columns of pairs]."""
        return accumulator_columns(self.dim, self.shares_dq)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA: K, V, K by columns; stages of Q by rows, Q by columns; dO twice; dS of 256 keys;
        less than 4 KiB for all else."""
        half = ROWS * self.dim
        return half * (2 + 2 + 2) + half * (Q_STAGES + 1) + 2 * half + 2 * PAIR_KEYS * HALF + 4096


def pair_tuning(variant: Variant) -> PairTuning:
    """The layout of a backward variant with products "tcgen05" and tiles of PAIR_KEYS keys. Raises
    ValueError for tiles, dims or overrides that it does not have."""
    there = backward_products("tcgen05", variant.tile_n, variant.dim_padded, variant.tile_m) == "tcgen05"
    if not there or variant.tile_n != PAIR_KEYS:
        raise ValueError(
            f"variant.tile_n is {variant.tile_n}: pairs of CTAs need tiles of 128 x {PAIR_KEYS} and dim 64 or 128, got "
            f"{variant.tile_m} x {variant.tile_n} and {variant.dim_padded}"
        )
    overrides = dict(variant.tuning)
    if unknown := sorted(set(overrides) - {"tma"}):
        raise ValueError(f"variant.tuning has {unknown}; the Blackwell backward kernel of pairs knows ['tma']")
    tuning = PairTuning(variant.dim_padded, **overrides)
    if tuning.tma not in (0, 1):
        raise ValueError(f"variant.tuning has {overrides}; the Blackwell backward kernel of pairs takes 0 and 1")
    assert tuning.shared_bytes <= SHARED - RESERVED
    return tuning
