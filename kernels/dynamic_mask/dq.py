"""The kernel of dQ: the mirror image of dkdv.py, a program per tile of queries walks along the keys."""

import triton
import triton.language as tl

from kernels.dynamic_mask.dkdv import BACKWARD_COLUMNS, BACKWARD_RUNTIME
from kernels.dynamic_mask.forward import row_offset
from kernels.dynamic_mask.row_state import load_row_state
from kernels.dynamic_mask.scores import probabilities, raw_gradient, soft_capped
from kernels.dynamic_mask.tiles import last_key, list_of, load_rows, masked, sequence, store_rows
from kernels.sdpa.forward import locate
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import dot, round_to

DQ_RUNTIME = [*(name for name in BACKWARD_RUNTIME if name != "mTiles"), "mdQ", *stride_names("dQ")]
DQ_COLUMNS = [*BACKWARD_COLUMNS, *last_strides("dQ")]


@triton.jit
def gather_dq(
    rdQ,
    rQ,
    rdO,
    rLSE,
    rDelta,
    gK,
    gV,
    mask,
    bias,
    place,
    m_start,
    n_start,
    scale,
    softcap,
    DTYPE: tl.constexpr,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
    ONE_ROW: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    load_mask: tl.constexpr,
    score_gradient: tl.constexpr,
):
    """Adds one tile of keys to dQ."""
    rK = load_rows(gK, n_start, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
    rV = load_rows(gV, n_start, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
    rS = dot(rQ, tl.trans(rK), tl.zeros([TILE_M, TILE_N], tl.float32))
    rdP = dot(rdO, tl.trans(rV), tl.zeros([TILE_M, TILE_N], tl.float32))
    rS, rBent = soft_capped(rS, scale, softcap, SOFTCAP)
    rMask = rS
    if MASK == "bool":
        rMask = load_mask(mask, place, m_start, n_start, MASK, ALIGNED, TILE_M, TILE_N)
    rS = masked(
        rS, rMask, mask, bias, place, m_start, n_start, MASK, BIAS, ONE_ROW, CAUSAL, False, ALIGNED, TILE_M, TILE_N
    )
    rdS = raw_gradient(score_gradient(probabilities(rS, rLSE[:, None]), rdP, rDelta[:, None]), rBent, SOFTCAP)
    return dot(round_to(rdS, DTYPE, INTERPRETED), rK, rdQ)


@triton.jit(do_not_specialize=DQ_RUNTIME, do_not_specialize_on_alignment=[*DQ_RUNTIME, *DQ_COLUMNS])
def dq_kernel(
    mQ,
    tQ_0,
    tQ_1,
    tQ_2,
    tQ_3,
    mK,
    tK_0,
    tK_1,
    tK_2,
    tK_3,
    mV,
    tV_0,
    tV_1,
    tV_2,
    tV_3,
    mdO,
    tdO_0,
    tdO_1,
    tdO_2,
    tdO_3,
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
    mList,
    mCount,
    list_batch,
    list_heads,
    list_share,
    mState,
    mdQ,
    tdQ_0,
    tdQ_1,
    tdQ_2,
    tdQ_3,
    mCuQ,
    mCuK,
    batches,
    heads_q,
    heads_kv,
    len_q,
    len_k,
    rows,
    planes,
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
    PACKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    load_mask: tl.constexpr,
    kv_head_of: tl.constexpr,
    score_gradient: tl.constexpr,
    finish_dq: tl.constexpr,
):
    """dQ of one tile of queries of one head."""
    tQ = (tQ_0, tQ_1, tQ_2, tQ_3)
    tK = (tK_0, tK_1, tK_2, tK_3)
    tV = (tV_0, tV_1, tV_2, tV_3)
    tdO = (tdO_0, tdO_1, tdO_2, tdO_3)
    tdQ = (tdQ_0, tdQ_1, tdQ_2, tdQ_3)
    mask = (mMask, (mask_0, mask_1, mask_2, mask_3), mask_share)
    bias = (mBias, (bias_0, bias_1, bias_2, bias_3), bias_share)
    m_blocks = tl.cdiv(len_q, TILE_M)
    m_block, batch, head = locate(m_blocks, batches, heads_q, INTERPRETED)
    if CAUSAL and not INTERPRETED:
        m_block = m_blocks - 1 - m_block
    m_start = m_block * TILE_M
    first_q, first_k, n_q, n_k = sequence(mCuQ, mCuK, batch, len_q, len_k, PACKED)
    shift = align * (n_k - n_q)
    place = (batch, head, n_q, n_k, shift)
    head_kv = kv_head_of(head, heads_q, heads_kv)
    gK = (mK, tK, batch, head_kv, first_k, n_k, dim)
    gV = (mV, tV, batch, head_kv, first_k, n_k, dim_v)
    if m_start < n_q:
        gQ = (mQ, tQ, batch, head, first_q, n_q, dim)
        gdO = (mdO, tdO, batch, head, first_q, n_q, dim_v)
        rQ = load_rows(gQ, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
        rdO = load_rows(gdO, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
        offset = row_offset(batch, head, heads_q, rows, first_q, PACKED)
        rLSE, rDelta = load_row_state(mState, offset, planes, m_start + tl.arange(0, TILE_M), n_q)
        rdQ = tl.zeros([TILE_M, BLOCK_D], tl.float32)
        visited = tl.cdiv(tl.maximum(last_key(m_start, n_k, shift, TILE_M, CAUSAL), 0), TILE_N)
        if MASK != "none":
            lists = (mList, mCount, list_batch, list_heads, list_share)
            mEntries, visited = list_of(lists, batch, head, m_block, m_blocks, tl.cdiv(len_k, TILE_N))
        for step in range(0, visited):
            n_start = step * TILE_N
            if MASK != "none":
                n_start = tl.load(mEntries + step) * TILE_N
            rdQ = gather_dq(
                rdQ,
                rQ,
                rdO,
                rLSE,
                rDelta,
                gK,
                gV,
                mask,
                bias,
                place,
                m_start,
                n_start,
                scale,
                softcap,
                DTYPE,
                MASK,
                BIAS,
                ONE_ROW,
                CAUSAL,
                SOFTCAP,
                ALIGNED,
                INTERPRETED,
                TILE_M,
                TILE_N,
                BLOCK_D,
                load_mask,
                score_gradient,
            )
        gdQ = (mdQ, tdQ, batch, head, first_q, n_q, dim)
        store_rows(gdQ, finish_dq(rdQ, scale), m_start, DTYPE, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
