"""Mutants of the dense kernel's forward pass: softmax, LSE, tails, rows without keys, causality, a bias, an index
that wraps."""

import triton
import triton.language as tl

from kernels.mutants.sdpa.registration import register_mutant
from kernels.sdpa.scores import LOG2E, score_unit
from kernels.sdpa.tiles import load_tile


@triton.jit
def _sums_not_rescaled(rS, rMax, rSum, scale, step, FOLD: tl.constexpr, EMPTY_ROWS: tl.constexpr):
    rMaxNew = tl.maximum(rMax, tl.max(rS, 1))
    rShift = tl.where(rMaxNew == -float("inf"), 0.0, rMaxNew)
    to_log2 = score_unit(scale, FOLD) * LOG2E
    rP = tl.exp2((rS - rShift[:, None]) * to_log2)
    return rP, tl.exp2((rMax - rShift) * to_log2), rMaxNew, rSum + tl.sum(rP, 1)


register_mutant(
    "sums_not_rescaled",
    "O is rescaled where a row's maximum grows, its sum is not: wrong with more than one tile of keys.",
    "invented, after the online softmax's two running values",
    online_softmax=_sums_not_rescaled,
)


@triton.jit
def _scale_compounds(rS, rMax, rSum, scale, step, FOLD: tl.constexpr, EMPTY_ROWS: tl.constexpr):
    rMaxNew = tl.maximum(rMax, tl.max(rS, 1))
    rShift = tl.where(rMaxNew == -float("inf"), 0.0, rMaxNew)
    to_log2 = score_unit(scale, FOLD) * LOG2E * tl.exp2(tl.zeros_like(rMax) + step * 0.5287663729448977)
    rP = tl.exp2((rS - rShift[:, None]) * to_log2[:, None])
    rShrink = tl.exp2((rMax - rShift) * to_log2)
    return rP, rShrink, rMaxNew, rSum * rShrink + tl.sum(rP, 1)


register_mutant(
    "scale_compounds",
    "Scores are multiplied by log2(e) once more with each tile of keys: right in the first tile only.",
    "FlagGems 73acbe67: qk_scale *= 1.44269504 inside of the loop over keys",
    online_softmax=_scale_compounds,
)


@triton.jit
def _nothing_seen_yet_is_nan(rS, rMax, rSum, scale, step, FOLD: tl.constexpr, EMPTY_ROWS: tl.constexpr):
    rMaxNew = tl.maximum(rMax, tl.max(rS, 1))
    to_log2 = score_unit(scale, FOLD) * LOG2E
    rP = tl.exp2((rS - rMaxNew[:, None]) * to_log2)
    rShrink = tl.exp2((rMax - rMaxNew) * to_log2)
    return rP, rShrink, rMaxNew, rSum * rShrink + tl.sum(rP, 1)


register_mutant(
    "nothing_seen_yet_is_nan",
    "A row whose first tile of keys is masked whole is NaN: -inf is subtracted from -inf.",
    "NVIDIA cudnn-frontend issue 676: NaN on rows without keys",
    online_softmax=_nothing_seen_yet_is_nan,
)


@triton.jit
def _lse_in_log2(rMax, rSum, unit):
    empty = rSum == 0.0
    rSafe = tl.where(empty, 1.0, rSum)
    rLSE = tl.where(empty, -float("inf"), rMax * unit * LOG2E + tl.log2(rSafe))
    return rLSE, tl.where(empty, 0.0, 1.0 / rSafe)


register_mutant(
    "lse_in_log2",
    "LSE is the logarithm to base 2: O is right, LSE and all gradients are wrong.",
    "FlagGems SDPA keeps M = m + log2(l); invented that another kernel reads it",
    row_statistics=_lse_in_log2,
)


@triton.jit
def _empty_rows_plus_infinity(rMax, rSum, unit):
    empty = rSum == 0.0
    rSafe = tl.where(empty, 1.0, rSum)
    rLSE = tl.where(empty, float("inf"), rMax * unit + tl.log(rSafe))
    return rLSE, tl.where(empty, 0.0, 1.0 / rSafe)


register_mutant(
    "empty_rows_lse_plus_infinity",
    "LSE of rows without keys is +inf: a merge of two chunks by LSE drops the other one.",
    "flash-dmattn: rows without keys have lse = +inf, so that P = 0",
    row_statistics=_empty_rows_plus_infinity,
)


@triton.jit
def _empty_rows_divided_by_zero(rMax, rSum, unit):
    return rMax * unit + tl.log(rSum), 1.0 / rSum


register_mutant(
    "empty_rows_divided_by_zero",
    "O of rows without keys is 0 / 0; LSE is right.",
    "FlashAttention issue 2324: garbage where rows have no keys of theirs; NVIDIA cudnn-frontend issue 676",
    row_statistics=_empty_rows_divided_by_zero,
)


@triton.jit
def _interior_by_queries_alone(m_start, len_k, TILE_N: tl.constexpr, CAUSAL: tl.constexpr):
    last = len_k
    if CAUSAL:
        last = m_start + 1
    return last // TILE_N * TILE_N


register_mutant(
    "causal_interior_past_the_keys",
    "Causal with fewer keys than queries: the tiles below the diagonal count as unmasked, also past the last key.",
    "FlashAttention-4 bba578d4: a wrong mask at the boundary tile; unequal lengths",
    last_interior_forward=_interior_by_queries_alone,
)


@triton.jit
def _causal_bottom_right(rS, m, n, len_q, len_k):
    return tl.where(n <= m + len_k - len_q, rS, -float("inf"))


register_mutant(
    "causal_bottom_right",
    "The mask on the diagonal is aligned at the bottom right, the loops at the top left: wrong where lengths differ.",
    "FlashAttention 2.1 changed the alignment of causal masks; PyTorch kept the top left",
    mask_causal_forward=_causal_bottom_right,
    mask_causal_backward=_causal_bottom_right,
)


@triton.jit
def _tail_not_cleared(
    mX,
    tX,
    batch,
    head,
    row,
    rows,
    columns,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    return load_tile(mX, tX, batch, head, row, row + TILE, columns, TILE, BLOCK_D, DESCRIPTOR, INTERPRETED)


register_mutant(
    "value_tail_not_cleared",
    "Values beyond the last key are read, from whatever lies there, and weighted with 0: NaN stays NaN. Only where the "
    "kernel reads by pointer: strides that a descriptor cannot name.",
    "flash-dmattn 8a3bb04, e6168c0, c3b93bc: tails copied unpredicated and not cleared",
    load_values=_tail_not_cleared,
)


@triton.jit
def _narrow_offset(batch, head, heads_q, len_q):
    return (batch * heads_q + head) * len_q % 256


register_mutant(
    "lse_offset_wraps",
    "A head's place in LSE is counted in eight bits, which stand for 32 at sizes that a test can reach: heads beyond "
    "overwrite the first ones' rows.",
    "Meta's NSA 54b60f3: a row's index in int32, before it is multiplied",
    statistics_offset=_narrow_offset,
)


@triton.jit
def _bias_scaled(rS, rBias, scale):
    return rS + rBias * scale


register_mutant(
    "bias_scaled",
    "A float mask is scaled with the scores, in forward and backward alike.",
    "invented, after the order of scale, cap and bias that each kernel has of its own",
    add_bias=_bias_scaled,
)
