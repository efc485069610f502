"""The kernel of dK and dV: a program per tile of keys walks along the queries of all heads of its group.

With P the probabilities, dP = dO V^T and delta as in row_state.py:

    dS = P ∘ (dP - delta)    dV = P^T dO    dK = dS^T Q · scale    dQ = dS K · scale (dq.py)

(Dao, arXiv:2307.08691, section 3.1). Tiles without a pair that counts are skipped, see NOTE [skip] in forward.py.

NOTE [splits] The queries of one tile of keys can be spread over several programs (`splits`), each of which has every
splits-th tile of its list. Each writes float32 sums of its own, which the host adds in their order: the same bits in
every run. ATOMIC programs add to one sum instead, in whatever order they come; then bits may differ.
"""

import triton
import triton.language as tl

from kernels.dynamic_mask.forward import COLUMNS, LISTS, PLANES, SIZES, row_offset
from kernels.dynamic_mask.row_state import load_row_state
from kernels.dynamic_mask.scores import probabilities, raw_gradient, soft_capped
from kernels.dynamic_mask.tiles import first_query, list_of, load_rows, masked, row_pointers, sequence, store_rows
from kernels.sdpa.forward import locate
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import dot, round_to


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
    gQ,
    gdO,
    mState,
    planes,
    offset,
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
    COLUMN_SUMS: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    load_mask: tl.constexpr,
    score_gradient: tl.constexpr,
):
    """Adds one tile of queries of one head to (dK, dV, dBias). Scores are held transposed, (TILE_N, TILE_M)."""
    rQ = load_rows(gQ, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
    rS = dot(rK, tl.trans(rQ), tl.zeros([TILE_N, TILE_M], tl.float32))
    rS, rBent = soft_capped(rS, scale, softcap, SOFTCAP)
    rdO = load_rows(gdO, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
    rdP = dot(rV, tl.trans(rdO), tl.zeros([TILE_N, TILE_M], tl.float32))
    rMask = rS
    if MASK == "bool":
        rMask = load_mask(mask, place, m_start, n_start, MASK, ALIGNED, TILE_M, TILE_N)
    rS = masked(
        rS, rMask, mask, bias, place, m_start, n_start, MASK, BIAS, ONE_ROW, CAUSAL, True, ALIGNED, TILE_M, TILE_N
    )
    rLSE, rDelta = load_row_state(mState, offset, planes, m_start + tl.arange(0, TILE_M), place[2])
    rP = probabilities(rS, rLSE[None, :])
    rdV = dot(round_to(rP, DTYPE, INTERPRETED), rdO, rdV)
    rdS = score_gradient(rP, rdP, rDelta[None, :])
    if COLUMN_SUMS:
        rdBias += tl.sum(rdS, 1)
    rdS = raw_gradient(rdS, rBent, SOFTCAP)
    rdK = dot(round_to(rdS, DTYPE, INTERPRETED), rQ, rdK)
    return rdK, rdV, rdBias


@triton.jit
def store_sum(
    gX,
    pitch,
    rX,
    split,
    row,
    DTYPE: tl.constexpr,
    SPLIT: tl.constexpr,
    ATOMIC: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Writes dK or dV, or a program's part of it, `pitch` elements after the part before: see NOTE [splits]."""
    if SPLIT:
        mX, tX, batch, head, first, rows, columns = gX
        gPart = (mX + split.to(tl.int64) * pitch, tX, batch, head, first, rows, columns)
        mTile, inside = row_pointers(gPart, row, TILE, BLOCK_D, False)
        if ATOMIC:
            tl.atomic_add(mTile, rX, mask=inside, sem="relaxed")
        else:
            tl.store(mTile, rX, mask=inside)
    else:
        store_rows(gX, rX, row, DTYPE, TILE, BLOCK_D, ALIGNED, INTERPRETED)


BACKWARD_RUNTIME = [
    *("mQ", "mK", "mV", "mdO", *stride_names("Q", "K", "V", "dO")),
    *(*PLANES, *LISTS, "mState", "mTiles", *SIZES, "planes"),
]
BACKWARD_COLUMNS = [*COLUMNS, *last_strides("Q", "K", "V", "dO")]
DKDV_RUNTIME = [*BACKWARD_RUNTIME, "mdK", "mdV", *stride_names("dK", "dV"), "tdK_4", "tdV_4", "mdBias", "splits"]
DKDV_COLUMNS = [*BACKWARD_COLUMNS, *last_strides("dK", "dV")]


@triton.jit(do_not_specialize=DKDV_RUNTIME, do_not_specialize_on_alignment=[*DKDV_RUNTIME, *DKDV_COLUMNS])
def dkdv_kernel(
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
    mdK,
    tdK_0,
    tdK_1,
    tdK_2,
    tdK_3,
    tdK_4,
    mdV,
    tdV_0,
    tdV_1,
    tdV_2,
    tdV_3,
    tdV_4,
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
    score_gradient: tl.constexpr,
    heads_of: tl.constexpr,
    finish_dk: tl.constexpr,
):
    """dK and dV of one tile of keys over all query heads of the group, and, with COLUMN_SUMS, its columns' sums of dS.

    mdBias  (splits, batches, heads_kv, len_k) float32
    mTiles  (programs, 2) int32: the tiles that were visited and skipped

    Keys beyond n_k need no comparison: they reach only rows of dK and dV that are not stored. A split of a tile of keys
    counts the tiles that it visits; the first one counts all that are skipped.
    """
    tQ = (tQ_0, tQ_1, tQ_2, tQ_3)
    tK = (tK_0, tK_1, tK_2, tK_3)
    tV = (tV_0, tV_1, tV_2, tV_3)
    tdO = (tdO_0, tdO_1, tdO_2, tdO_3)
    tdK = (tdK_0, tdK_1, tdK_2, tdK_3, tdK_4)
    tdV = (tdV_0, tdV_1, tdV_2, tdV_3, tdV_4)
    mask = (mMask, (mask_0, mask_1, mask_2, mask_3), mask_share)
    bias = (mBias, (bias_0, bias_1, bias_2, bias_3), bias_share)
    n_blocks = tl.cdiv(len_k, TILE_N)
    place_in_head, batch, head_kv = locate(n_blocks * splits, batches, heads_kv, INTERPRETED)
    n_block = place_in_head // splits
    split = place_in_head % splits
    n_start = n_block * TILE_N
    first_q, first_k, n_q, n_k = sequence(mCuQ, mCuK, batch, len_q, len_k, PACKED)
    shift = align * (n_k - n_q)
    head_first, group = heads_of(head_kv, heads_q, heads_kv)

    visited = len_q * 0
    skipped = len_q * 0
    rdBias = tl.zeros([TILE_N], tl.float32)
    if n_start < n_k:
        gK = (mK, tK, batch, head_kv, first_k, n_k, dim)
        gV = (mV, tV, batch, head_kv, first_k, n_k, dim_v)
        rK = load_rows(gK, n_start, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
        rV = load_rows(gV, n_start, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
        rdK = tl.zeros([TILE_N, BLOCK_D], tl.float32)
        rdV = tl.zeros([TILE_N, BLOCK_D], tl.float32)
        first = first_query(n_start, shift, TILE_M, CAUSAL) // TILE_M
        m_blocks = tl.maximum(tl.cdiv(n_q, TILE_M) - first, 0)
        for member in range(0, group):
            head = head_first + member
            entries = m_blocks
            if MASK != "none":
                lists = (mList, mCount, list_batch, list_heads, list_share)
                mEntries, entries = list_of(lists, batch, head, n_block, n_blocks, tl.cdiv(len_q, TILE_M))
            steps = tl.cdiv(tl.maximum(entries - split, 0), splits)
            visited += steps
            if split == 0:
                skipped += m_blocks - entries
            for step in range(0, steps):
                entry = split + step * splits
                m_start = (first + entry) * TILE_M
                if MASK != "none":
                    m_start = tl.load(mEntries + entry) * TILE_M
                rdK, rdV, rdBias = gather_dkdv(
                    rdK,
                    rdV,
                    rdBias,
                    rK,
                    rV,
                    (mQ, tQ, batch, head, first_q, n_q, dim),
                    (mdO, tdO, batch, head, first_q, n_q, dim_v),
                    mState,
                    planes,
                    row_offset(batch, head, heads_q, rows, first_q, PACKED),
                    mask,
                    bias,
                    (batch, head, n_q, n_k, shift),
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
                    COLUMN_SUMS,
                    ALIGNED,
                    INTERPRETED,
                    TILE_M,
                    TILE_N,
                    BLOCK_D,
                    load_mask,
                    score_gradient,
                )
        gdK = (mdK, tdK, batch, head_kv, first_k, n_k, dim)
        gdV = (mdV, tdV, batch, head_kv, first_k, n_k, dim_v)
        rdK = finish_dk(rdK, scale)
        store_sum(gdK, tdK[4], rdK, split, n_start, DTYPE, SPLIT, ATOMIC, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
        store_sum(gdV, tdV[4], rdV, split, n_start, DTYPE, SPLIT, ATOMIC, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
    if COLUMN_SUMS:  # of columns beyond n_k too, which are 0: a packed call's bias is as long as its longest sequence
        n = n_start + tl.arange(0, TILE_N)
        mSums = mdBias + ((split * batches + batch) * heads_kv + head_kv).to(tl.int64) * len_k
        tl.store(mSums + n, tl.where(n < n_k, rdBias, 0.0), mask=n < len_k)
    mCount = mTiles + ((batch * heads_kv + head_kv).to(tl.int64) * n_blocks * splits + place_in_head) * 2
    tl.store(mCount, visited)
    tl.store(mCount + 1, skipped)
