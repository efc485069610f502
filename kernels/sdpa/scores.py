"""Device helpers between the two matrix products: from raw scores to probabilities, and the rows' statistics.

NOTE [score units] Raw scores are q·k. With FOLD (a positive scale and no float mask) they stay raw and the scale is
folded into the exponent: `unit` is the scale, and probabilities are exp2(s * unit * log2(e) - …), one fused
multiply-add and one exp2 per score. Otherwise scores are scaled (and biased) at once, `unit` is 1, and differences of
scores are taken before they are multiplied: a maximum over raw scores would be wrong for a negative scale, and a bias
near the end of float32's range times log2(e) overflows.

NOTE [rows without keys] A row that may see no key has maximum -inf and sum 0. Forward writes O = 0 and LSE = -inf.
Backward takes that LSE for +inf, so that every probability of the row is exp2(-inf) = 0, see NOTE [row state].

The index tensors `m` and `n` (queries, keys) broadcast against the scores, so that the same helpers serve a tile of
scores and a transposed one.
"""

import triton
import triton.language as tl

from kernels.sdpa.tiles import wide_product, widen

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


MASK_STRIDES = ["mask_batch_stride", "mask_head_stride", "mask_row_stride", "mask_column_stride"]
# Compiled anew where the column stride is 1, so that neighbouring threads load neighbouring elements, and for no other.
MASK_RUNTIME = MASK_STRIDES[:3]


@triton.jit
def apply_mask(
    rS,
    scale,
    mMask,
    tMask,
    batch,
    head,
    m,
    n,
    len_q,
    len_k,
    MASK: tl.constexpr,
    FOLD: tl.constexpr,
    add_bias: tl.constexpr,
):
    """Raw scores to scores in units (see NOTE [score units]), with attn_mask applied; causality is not."""
    if not FOLD:
        rS = rS * scale
    if MASK != "none":
        offsets = wide_product(batch, tMask[0]) + wide_product(head, tMask[1])
        offsets += wide_product(m, tMask[2]) + wide_product(n, tMask[3])
        rMask = tl.load(mMask + offsets, mask=(m < len_q) & (n < len_k), other=0)
        if MASK == "bool":
            rS = tl.where(rMask != 0, rS, -float("inf"))
        else:
            rS = add_bias(rS, widen(rMask), scale)
    return rS


@triton.jit
def add_bias(rS, rBias, scale):
    """A float mask is added to scores that are scaled already."""
    return rS + rBias


@triton.jit
def score_unit(scale, FOLD: tl.constexpr):
    """What one unit of a score is worth, see NOTE [score units]."""
    if FOLD:
        unit = scale
    else:
        unit = 1.0
    return unit


@triton.jit
def online_softmax(rS, rMax, rSum, scale, step, FOLD: tl.constexpr, EMPTY_ROWS: tl.constexpr):
    """One step of the online softmax (Milakov and Gimelshein, arXiv:1805.02867).

    rS (TILE_M, TILE_N) scores in units; rMax, rSum (TILE_M,) running maximum and sum; step, the tile's number, is not
    used
    returns probabilities relative to the new maximum, the factor that old sums shrink by, new maximum, new sum

    EMPTY_ROWS says that a row may have seen no key yet; without it every row has, and a guard is saved.
    """
    rMaxNew = tl.maximum(rMax, tl.max(rS, 1))
    rShift = rMaxNew
    if EMPTY_ROWS:
        rShift = tl.where(rMaxNew == -float("inf"), 0.0, rMaxNew)
    to_log2 = score_unit(scale, FOLD) * LOG2E
    if FOLD:
        rP = tl.exp2(rS * to_log2 - (rShift * to_log2)[:, None])
    else:
        rP = tl.exp2((rS - rShift[:, None]) * to_log2)
    rShrink = tl.exp2((rMax - rShift) * to_log2)
    return rP, rShrink, rMaxNew, rSum * rShrink + tl.sum(rP, 1)


@triton.jit
def row_statistics(rMax, rSum, unit):
    """LSE (natural logarithm) and 1 / sum of each row; (-inf, 0) where a row has no key."""
    empty = rSum == 0.0
    rSafe = tl.where(empty, 1.0, rSum)
    rLSE = tl.where(empty, -float("inf"), rMax * unit + tl.log(rSafe))
    return rLSE, tl.where(empty, 0.0, 1.0 / rSafe)


@triton.jit
def probabilities(rS, rLSE, scale, FOLD: tl.constexpr):
    """exp(score - LSE): rS scores in units, rLSE as in NOTE [row state], broadcastable against them."""
    if FOLD:
        rP = tl.exp2(rS * (scale * LOG2E) - rLSE)
    else:
        rP = tl.exp2((rS - rLSE) * LOG2E)
    return rP


@triton.jit
def score_gradient(rP, rdP, rDelta):
    """dS, see backward.py; rDelta broadcasts against the others."""
    return rP * (rdP - rDelta)
