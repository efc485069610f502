"""The kernel of dK and dV: a program per tile of keys walks along the queries of all heads of its group.

With P the probabilities, dP = dO V^T and delta as in row_state.py:

    dS = P ∘ (dP - delta)    dV = P^T dO    dK = dS^T Q · scale    dQ = dS K · scale (dq.py)

(Dao, arXiv:2307.08691, section 3.1). Tiles without a pair that counts are skipped, see NOTE [skip] in forward.py.

NOTE [splits] The queries of one tile of keys can be spread over several programs (`splits`), each of which has every
splits-th tile of queries. Each writes float32 sums of its own, which the host adds in their order: the same bits in
every run. ATOMIC programs add to one sum instead, in whatever order they come; then bits may differ.
"""

import triton
import triton.language as tl

from kernels.dynamic_mask.forward import COLUMNS, PLANES, SIZES, row_offset
from kernels.dynamic_mask.row_state import load_row_state
from kernels.dynamic_mask.scores import choose, probabilities, raw_gradient, soft_capped
from kernels.dynamic_mask.tiles import keep_tile, load_bias, load_rows, row_pointers, sequence, store_rows
from kernels.sdpa.forward import locate
from kernels.sdpa.tiles import dot, round_to


@triton.jit
def first_query(n_start, shift, TILE_M: tl.constexpr, CAUSAL: tl.constexpr):
    """Start of the first tile of queries that causality lets see any key of the tile; a multiple of TILE_M."""
    first = n_start * 0
    if CAUSAL:
        first = tl.maximum(n_start - shift, 0) // TILE_M * TILE_M
    return first


@triton.jit
def heads_of(head_kv, heads_q, heads_kv):
    """(first, number) of the query heads that share a KV head."""
    group = heads_q // heads_kv
    return head_kv * group, group


@triton.jit
def finish_gradient(rX, scale):
    """dQ or dK from dS K or dS^T Q: the scale that forward applied to q·k."""
    return rX * scale


@triton.jit
def gather_dkdv(
    rdK,
    rdV,
    rdBias,
    rK,
    rV,
    rMask,
    mQ,
    tQ,
    mdO,
    tdO,
    mState,
    planes,
    mMask,
    tMask,
    mask_share,
    mBias,
    tBias,
    bias_share,
    batch,
    head,
    heads_q,
    rows,
    first_q,
    m_start,
    n_start,
    n_q,
    n_k,
    shift,
    dim,
    dim_v,
    scale,
    softcap,
    DTYPE: tl.constexpr,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
    ONE_ROW: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFTCAP: tl.constexpr,
    COLUMN_SUMS: tl.constexpr,
    PACKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    score_gradient: tl.constexpr,
):
    """Adds one tile of queries of one head to (dK, dV, dBias). Scores are held transposed, (TILE_N, TILE_M)."""
    rQ = load_rows(mQ, tQ, batch, head, first_q, m_start, n_q, dim, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
    rS = dot(rK, tl.trans(rQ), tl.zeros([TILE_N, TILE_M], tl.float32))
    rS, rBent = soft_capped(rS, scale, softcap, SOFTCAP)
    rdO = load_rows(mdO, tdO, batch, head, first_q, m_start, n_q, dim_v, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
    rdP = dot(rV, tl.trans(rdO), tl.zeros([TILE_N, TILE_M], tl.float32))
    rBias = rS
    if BIAS:
        rBias = tl.trans(
            load_bias(
                mBias, tBias, bias_share, batch, head, m_start, n_start, n_q, n_k, ONE_ROW, ALIGNED, TILE_M, TILE_N
            )
        )
    rKeep = keep_tile(
        rMask, mMask, tMask, mask_share, batch, head, m_start, n_start, n_q, n_k, shift, MASK, CAUSAL, TILE_M, TILE_N
    )
    offset = row_offset(batch, head, heads_q, rows, first_q, PACKED)
    rLSE, rDelta = load_row_state(mState, offset, planes, m_start + tl.arange(0, TILE_M), n_q)
    rP = probabilities(choose(rS, rBias, tl.trans(rKeep), BIAS), rLSE[None, :])
    rdV = dot(round_to(rP, DTYPE, INTERPRETED), rdO, rdV)
    rdS = score_gradient(rP, rdP, rDelta[None, :])
    if COLUMN_SUMS:
        rdBias += tl.sum(rdS, 1)
    rdS = raw_gradient(rdS, rBent, SOFTCAP)
    rdK = dot(round_to(rdS, DTYPE, INTERPRETED), rQ, rdK)
    return rdK, rdV, rdBias


@triton.jit
def store_sum(
    mX,
    tX,
    rX,
    split,
    batch,
    head,
    first,
    row,
    rows,
    columns,
    DTYPE: tl.constexpr,
    SPLIT: tl.constexpr,
    ATOMIC: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Writes dK or dV, or a program's part of it: see NOTE [splits]. Parts have a first axis of their own, tX[4]."""
    if SPLIT:
        mTile, inside = row_pointers(
            mX + split.to(tl.int64) * tX[4], tX, batch, head, first, row, rows, columns, TILE, BLOCK_D, False
        )
        if ATOMIC:
            tl.atomic_add(mTile, rX, mask=inside, sem="relaxed")
        else:
            tl.store(mTile, rX, mask=inside)
    else:
        store_rows(mX, tX, rX, batch, head, first, row, rows, columns, DTYPE, TILE, BLOCK_D, ALIGNED, INTERPRETED)


BACKWARD_RUNTIME = ["mQ", "tQ", "mK", "tK", "mV", "tV", "mdO", "tdO", *PLANES, "mState", "mTiles", *SIZES, "planes"]
DKDV_RUNTIME = [*BACKWARD_RUNTIME, "mdK", "tdK", "mdV", "tdV", "mdBias", "splits"]


@triton.jit(do_not_specialize=DKDV_RUNTIME, do_not_specialize_on_alignment=[*DKDV_RUNTIME, *COLUMNS])
def dkdv_kernel(
    mQ,
    tQ,
    mK,
    tK,
    mV,
    tV,
    mdO,
    tdO,
    mMask,
    mask_0,
    mask_1,
    mask_2,
    mask_3,
    mask_share,
    mBias,
    bias_0,
    bias_1,
    bias_2,
    bias_3,
    bias_share,
    mState,
    mdK,
    tdK,
    mdV,
    tdV,
    mdBias,
    mTiles,
    mCuQ,
    mCuK,
    batches,
    heads_q,
    heads_kv,
    len_q,
    len_k,
    rows,
    planes,
    splits,
    dim,
    dim_v,
    align,
    scale,
    softcap,
    DTYPE: tl.constexpr,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
    ONE_ROW: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFTCAP: tl.constexpr,
    COLUMN_SUMS: tl.constexpr,
    SPLIT: tl.constexpr,
    ATOMIC: tl.constexpr,
    PACKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    load_mask: tl.constexpr,
    any_key: tl.constexpr,
    score_gradient: tl.constexpr,
    heads_of: tl.constexpr,
    finish_dk: tl.constexpr,
):
    """dK and dV of one tile of keys over all query heads of the group, and, with COLUMN_SUMS, its columns' sums of dS.

    mdBias  (splits, batches, heads_kv, len_k) float32
    mTiles  (programs, 2) int32: the tiles that were visited and skipped

    A group's heads follow one another at each tile of queries: where they share a mask, its tile is in the cache. Keys
    beyond n_k need no comparison: they reach only rows of dK and dV that are not stored.
    """
    tMask = (mask_0, mask_1, mask_2, mask_3)
    tBias = (bias_0, bias_1, bias_2, bias_3)
    n_blocks = tl.cdiv(len_k, TILE_N)
    place, batch, head_kv = locate(n_blocks * splits, batches, heads_kv, INTERPRETED)
    n_block = place // splits
    split = place % splits
    n_start = n_block * TILE_N
    first_q, first_k, n_q, n_k = sequence(mCuQ, mCuK, batch, len_q, len_k, PACKED)
    shift = align * (n_k - n_q)
    head_first, group = heads_of(head_kv, heads_q, heads_kv)

    visited = len_q * 0
    skipped = len_q * 0
    rdBias = tl.zeros([TILE_N], tl.float32)
    if n_start < n_k:
        rK = load_rows(mK, tK, batch, head_kv, first_k, n_start, n_k, dim, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
        rV = load_rows(mV, tV, batch, head_kv, first_k, n_start, n_k, dim_v, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
        rdK = tl.zeros([TILE_N, BLOCK_D], tl.float32)
        rdV = tl.zeros([TILE_N, BLOCK_D], tl.float32)
        m_first = first_query(n_start, shift, TILE_M, CAUSAL) + split * TILE_M
        pitch = splits * TILE_M
        steps = tl.maximum(tl.cdiv(n_q - m_first, pitch), 0) * group
        active = True
        rNext = rdBias
        if MASK != "none":
            rNext = load_mask(
                mMask, tMask, mask_share, batch, head_first, m_first, n_start, n_q, n_k, MASK, ALIGNED, TILE_M, TILE_N
            )
            active = any_key(rNext, True)
        for step in range(0, steps):
            rMask = rNext
            m_start = m_first + step // group * pitch
            head = head_first + step % group
            if MASK != "none":
                rNext = load_mask(
                    mMask,
                    tMask,
                    mask_share,
                    batch,
                    head_first + (step + 1) % group,
                    m_first + (step + 1) // group * pitch,
                    n_start,
                    n_q,
                    n_k,
                    MASK,
                    ALIGNED,
                    TILE_M,
                    TILE_N,
                )
            if active:
                rdK, rdV, rdBias = gather_dkdv(
                    rdK,
                    rdV,
                    rdBias,
                    rK,
                    rV,
                    rMask,
                    mQ,
                    tQ,
                    mdO,
                    tdO,
                    mState,
                    planes,
                    mMask,
                    tMask,
                    mask_share,
                    mBias,
                    tBias,
                    bias_share,
                    batch,
                    head,
                    heads_q,
                    rows,
                    first_q,
                    m_start,
                    n_start,
                    n_q,
                    n_k,
                    shift,
                    dim,
                    dim_v,
                    scale,
                    softcap,
                    DTYPE,
                    MASK,
                    BIAS,
                    ONE_ROW,
                    CAUSAL,
                    SOFTCAP,
                    COLUMN_SUMS,
                    PACKED,
                    ALIGNED,
                    INTERPRETED,
                    TILE_M,
                    TILE_N,
                    BLOCK_D,
                    score_gradient,
                )
                visited += 1
            else:
                skipped += 1
            if MASK != "none":
                active = any_key(rNext, active)
        store_sum(
            mdK,
            tdK,
            finish_dk(rdK, scale),
            split,
            batch,
            head_kv,
            first_k,
            n_start,
            n_k,
            dim,
            DTYPE,
            SPLIT,
            ATOMIC,
            TILE_N,
            BLOCK_D,
            ALIGNED,
            INTERPRETED,
        )
        store_sum(
            mdV,
            tdV,
            rdV,
            split,
            batch,
            head_kv,
            first_k,
            n_start,
            n_k,
            dim_v,
            DTYPE,
            SPLIT,
            ATOMIC,
            TILE_N,
            BLOCK_D,
            ALIGNED,
            INTERPRETED,
        )
    if COLUMN_SUMS:  # of columns beyond n_k too, which are 0: a packed call's bias is as long as its longest sequence
        n = n_start + tl.arange(0, TILE_N)
        mSums = mdBias + ((split * batches + batch) * heads_kv + head_kv).to(tl.int64) * len_k
        tl.store(mSums + n, tl.where(n < n_k, rdBias, 0.0), mask=n < len_k)
    mCount = mTiles + ((batch * heads_kv + head_kv).to(tl.int64) * n_blocks * splits + place) * 2
    tl.store(mCount, visited)
    tl.store(mCount + 1, skipped)
