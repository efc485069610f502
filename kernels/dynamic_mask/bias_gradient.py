"""The gradient of a bias: one program owns a tile of it, whatever it is broadcast over.

It walks over the batches, heads, queries and keys that share its entries and adds dS in one fixed order: no atomics,
and no buffer larger than the bias. Tiles of the mask without a pair that counts are skipped, and where all of them are
the gradient is written as 0. A bias of one row is summed beside dK instead, see `dkdv_kernel`, unless its heads are
more than the KV heads.
"""

import triton
import triton.language as tl

from kernels.dynamic_mask.forward import COLUMNS, PLANES, SIZES, row_offset
from kernels.dynamic_mask.row_state import load_row_state
from kernels.dynamic_mask.scores import probabilities, soft_capped
from kernels.dynamic_mask.tiles import load_rows, masked, sequence
from kernels.sdpa.bias_gradient import store_shared
from kernels.sdpa.forward import locate
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import dot

DBIAS_RUNTIME = ["mQ", "mK", "mV", "mdO", *stride_names("Q", "K", "V", "dO"), *PLANES, "mState", "mdBias", *SIZES]
DBIAS_RUNTIME += ["planes"]
DBIAS_RUNTIME += ["bias_batches", "bias_heads", "bias_rows", "bias_columns"]
DBIAS_COLUMNS = [*COLUMNS, *last_strides("Q", "K", "V", "dO")]


@triton.jit
def shared_batches(first, batches, bias_batches):
    """(start, stop) of the batches that share a bias's batch."""
    return first, tl.where(bias_batches == 1, batches, first + 1)


@triton.jit
def shared_heads(first, bias_share):
    """(start, stop) of the query heads that share a bias's head."""
    return first * bias_share, (first + 1) * bias_share


@triton.jit(do_not_specialize=DBIAS_RUNTIME, do_not_specialize_on_alignment=[*DBIAS_RUNTIME, *DBIAS_COLUMNS])
def dbias_kernel(
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
    mState,
    mdBias,
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
    bias_batches,
    bias_heads,
    bias_rows,
    bias_columns,
    align,
    scale,
    softcap,
    DTYPE: tl.constexpr,
    BIAS_DTYPE: tl.constexpr,
    MASK: tl.constexpr,
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
    any_key: tl.constexpr,
    kv_head_of: tl.constexpr,
    score_gradient: tl.constexpr,
    shared_batches: tl.constexpr,
    shared_heads: tl.constexpr,
    sum_of_shared: tl.constexpr,
):
    """dBias (bias_batches, bias_heads, bias_rows, bias_columns), contiguous; each size as `kernels.dynamic_mask.api`
    says."""
    tQ = (tQ_0, tQ_1, tQ_2, tQ_3)
    tK = (tK_0, tK_1, tK_2, tK_3)
    tV = (tV_0, tV_1, tV_2, tV_3)
    tdO = (tdO_0, tdO_1, tdO_2, tdO_3)
    mask = (mMask, (mask_0, mask_1, mask_2, mask_3), mask_share)
    bias = (mBias, (bias_0, bias_1, bias_2, bias_3), bias_share)
    column_tiles = tl.cdiv(bias_columns, TILE_N)
    tiles = tl.cdiv(bias_rows, TILE_M) * column_tiles
    tile, bias_batch, bias_head = locate(tiles, bias_batches, bias_heads, INTERPRETED)
    row_start = tile // column_tiles * TILE_M
    column_start = tile % column_tiles * TILE_N

    rdBias = tl.zeros([TILE_M, TILE_N], tl.float32)
    batch_start, batch_stop = shared_batches(bias_batch, batches, bias_batches)
    head_start, head_stop = shared_heads(bias_head, bias_share)
    for batch in range(batch_start, batch_stop):
        first_q, first_k, n_q, n_k = sequence(mCuQ, mCuK, batch, len_q, len_k, PACKED)
        shift = align * (n_k - n_q)
        m_last = tl.where(bias_rows == 1, n_q, tl.minimum(row_start + 1, n_q))
        n_last = tl.where(bias_columns == 1, n_k, tl.minimum(column_start + 1, n_k))
        for head in range(head_start, head_stop):
            head_kv = kv_head_of(head, heads_q, heads_kv)
            place = (batch, head, n_q, n_k, shift)
            gQ = (mQ, tQ, batch, head, first_q, n_q, dim)
            gK = (mK, tK, batch, head_kv, first_k, n_k, dim)
            gV = (mV, tV, batch, head_kv, first_k, n_k, dim_v)
            gdO = (mdO, tdO, batch, head, first_q, n_q, dim_v)
            offset = row_offset(batch, head, heads_q, rows, first_q, PACKED)
            for m_start in range(row_start, m_last, TILE_M):
                n_stop = n_last
                if CAUSAL:
                    n_stop = tl.minimum(n_last, m_start + TILE_M + shift)
                for n_start in range(column_start, n_stop, TILE_N):
                    active = True
                    rMask = rdBias
                    if MASK != "none":
                        rMask = load_mask(mask, place, m_start, n_start, MASK, ALIGNED, TILE_M, TILE_N)
                        active = any_key(rMask, True)
                    if active:
                        rQ = load_rows(gQ, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
                        rK = load_rows(gK, n_start, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
                        rS = dot(rQ, tl.trans(rK), tl.zeros([TILE_M, TILE_N], tl.float32))
                        rS, _ = soft_capped(rS, scale, softcap, SOFTCAP)
                        rS = masked(
                            rS,
                            rMask,
                            mask,
                            bias,
                            place,
                            m_start,
                            n_start,
                            MASK,
                            True,
                            ONE_ROW,
                            CAUSAL,
                            False,
                            ALIGNED,
                            TILE_M,
                            TILE_N,
                        )
                        rLSE, rDelta = load_row_state(mState, offset, planes, m_start + tl.arange(0, TILE_M), n_q)
                        rP = probabilities(rS, rLSE[:, None])
                        rdO = load_rows(gdO, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
                        rV = load_rows(gV, n_start, TILE_N, BLOCK_D, ALIGNED, INTERPRETED)
                        rdP = dot(rdO, tl.trans(rV), tl.zeros([TILE_M, TILE_N], tl.float32))
                        rdBias += score_gradient(rP, rdP, rDelta[:, None])

    of_head = (bias_batch * bias_heads + bias_head).to(tl.int64) * bias_rows
    store_shared(
        mdBias,
        rdBias,
        of_head,
        row_start,
        column_start,
        bias_rows,
        bias_columns,
        BIAS_DTYPE,
        INTERPRETED,
        TILE_M,
        TILE_N,
        sum_of_shared,
    )
