"""The forward kernel: one program makes one tile of O and of LSE, walking along the keys, and skips empty tiles.

NOTE [skip] Empty tiles are not in the list that the program walks along, see NOTE [lists] in tile_lists.py: of them
nothing is loaded and nothing computed. Tiles beyond the last key that causality leaves are in no list.
"""

import triton
import triton.language as tl

from kernels.dynamic_mask.scores import online_softmax, soft_capped
from kernels.dynamic_mask.tiles import last_key, load_rows, masked, sequence, store_rows
from kernels.sdpa.forward import locate
from kernels.sdpa.scores import row_statistics
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import dot, round_to


@triton.jit
def row_offset(batch, head, heads_q, rows, first_q, PACKED: tl.constexpr):
    """First element of a sequence's rows in LSE and the like, (batches or 1, heads_q, rows) contiguous."""
    place = head
    if not PACKED:
        place = batch * heads_q + head
    return place.to(tl.int64) * rows + first_q


@triton.jit
def store_lse(mLSE, offset, m, rLSE, n_q):
    """Writes a tile's LSE; rows beyond n_q belong to the next head, or the next sequence."""
    tl.store(mLSE + offset + m, rLSE, mask=m < n_q)


@triton.jit
def attend(
    rAcc,
    rMax,
    rSum,
    rQ,
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
):
    """Adds one tile of keys to the running (accumulator, maximum, sum)."""
    rK = load_rows(gK, n_start, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
    rS = dot(rQ, tl.trans(rK), tl.zeros([TILE_M, TILE_N], tl.float32))
    rS, _ = soft_capped(rS, scale, softcap, SOFTCAP)
    rMask = rS
    if MASK == "bool":
        rMask = load_mask(mask, place, m_start, n_start, MASK, ALIGNED, TILE_M, TILE_N)
    rS = masked(
        rS, rMask, mask, bias, place, m_start, n_start, MASK, BIAS, ONE_ROW, CAUSAL, False, ALIGNED, TILE_M, TILE_N
    )
    rP, rShrink, rMax, rSum = online_softmax(rS, rMax, rSum)
    rV = load_rows(gV, n_start, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
    rAcc = dot(round_to(rP, DTYPE, INTERPRETED), rV, rAcc * rShrink[:, None])
    return rAcc, rMax, rSum


PLANES = ["mMask", "mask_0", "mask_1", "mask_2", "mask_share", "mBias", "bias_0", "bias_1", "bias_2", "bias_share"]
SIZES = ["mCuQ", "mCuK", "batches", "heads_q", "heads_kv", "len_q", "len_k", "rows", "dim", "dim_v", "align"]
LISTS = ["mList", "mCount", "list_batch", "list_heads", "list_share"]
FORWARD_RUNTIME = ["mQ", "mK", "mV", *PLANES, *LISTS, "mO", *stride_names("Q", "K", "V", "O"), "mLSE", "mTiles", *SIZES]
COLUMNS = ["mask_3", "bias_3"]  # strides: compiled anew where they are 1, so that neighbouring threads load neighbours
FORWARD_COLUMNS = [*COLUMNS, *last_strides("Q", "K", "V", "O")]


@triton.jit(do_not_specialize=FORWARD_RUNTIME, do_not_specialize_on_alignment=[*FORWARD_RUNTIME, *FORWARD_COLUMNS])
def forward_kernel(
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
    mO,
    tO_0,
    tO_1,
    tO_2,
    tO_3,
    mLSE,
    mTiles,
    mCuQ,
    mCuK,
    batches,
    heads_q,
    heads_kv,
    len_q,
    len_k,
    rows,
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
    list_of: tl.constexpr,
    kv_head_of: tl.constexpr,
    store_lse: tl.constexpr,
):
    """O, LSE and, in mTiles (programs, 2), the tiles that were visited and skipped; see `kernels.dynamic_mask.api`.

    align  times len_k - len_q is what causality is shifted by: 0 at the top left, 1 at the bottom right
    rows   of LSE and of O: len_q, or the total of a packed call
    """
    tQ = (tQ_0, tQ_1, tQ_2, tQ_3)
    tK = (tK_0, tK_1, tK_2, tK_3)
    tV = (tV_0, tV_1, tV_2, tV_3)
    tO = (tO_0, tO_1, tO_2, tO_3)
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

    visited = len_q * 0
    skipped = len_q * 0
    if m_start < n_q:
        gQ = (mQ, tQ, batch, head, first_q, n_q, dim)
        rQ = load_rows(gQ, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
        rAcc = tl.zeros([TILE_M, BLOCK_D], tl.float32)
        rMax = tl.full([TILE_M], -float("inf"), tl.float32)
        rSum = tl.zeros([TILE_M], tl.float32)
        tiles = tl.cdiv(tl.maximum(last_key(m_start, n_k, shift, TILE_M, CAUSAL), 0), TILE_N)
        visited = tiles
        if MASK != "none":
            lists = (mList, mCount, list_batch, list_heads, list_share)
            mEntries, visited = list_of(lists, batch, head, m_block, m_blocks, tl.cdiv(len_k, TILE_N))
        skipped = tiles - visited
        for step in range(0, visited):
            n_start = step * TILE_N
            if MASK != "none":
                n_start = tl.load(mEntries + step) * TILE_N
            rAcc, rMax, rSum = attend(
                rAcc,
                rMax,
                rSum,
                rQ,
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
            )

        rLSE, rInverse = row_statistics(rMax, rSum, 1.0)
        offset = row_offset(batch, head, heads_q, rows, first_q, PACKED)
        store_lse(mLSE, offset, m_start + tl.arange(0, TILE_M), rLSE, n_q)
        gO = (mO, tO, batch, head, first_q, n_q, dim_v)
        store_rows(gO, rAcc * rInverse[:, None], m_start, DTYPE, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
    mCount = mTiles + ((batch * heads_q + head) * m_blocks + m_block).to(tl.int64) * 2
    tl.store(mCount, visited)
    tl.store(mCount + 1, skipped)
