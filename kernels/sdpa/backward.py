"""The backward kernels: dK and dV (a program per tile of keys), and dQ (a program per tile of queries).

With P the probabilities, dP = dO V^T and delta = rowsum(O ∘ dO) - dLSE (made by `row_state`):

    dS = P ∘ (dP - delta)    dV = P^T dO    dK = dS^T Q · scale    dQ = dS K · scale

(Dao, arXiv:2307.08691, section 3.1; LSE's own gradient enters through delta.)

Every output tile has one program that adds its terms in one fixed order, so results are bitwise the same in every
run and nothing is added atomically; the price is that P is computed twice.
"""

import triton
import triton.language as tl

from kernels.sdpa.forward import last_interior_key, last_key, locate
from kernels.sdpa.row_state import load_row_state
from kernels.sdpa.scores import MASK_RUNTIME, MASK_STRIDES, apply_mask, probabilities
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import dot, load_tile, round_to, store_tile


@triton.jit
def first_query(n_start, TILE_M: tl.constexpr, CAUSAL: tl.constexpr):
    """Start of the first tile of queries that sees any key of the tile."""
    first = 0
    if CAUSAL:
        first = n_start // TILE_M * TILE_M
    return first


@triton.jit
def before_head(rdK, rdV, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """The sums of a group's earlier heads, which its next head adds to."""
    return rdK, rdV


@triton.jit
def finish_dk(rdK, scale):
    """dK from dS^T Q: the scale that forward applied to q·k."""
    return rdK * scale


@triton.jit
def gather_dkdv(
    rdK,
    rdV,
    rK,
    rV,
    mQ,
    tQ,
    mdO,
    tdO,
    mMask,
    tMask,
    mState,
    batches,
    batch,
    heads_q,
    head,
    n_start,
    m_first,
    len_q,
    len_k,
    dim,
    dim_v,
    scale,
    DTYPE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    FOLD: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    mask_causal: tl.constexpr,
    add_bias: tl.constexpr,
    score_gradient: tl.constexpr,
):
    """Adds queries m_first … len_q - 1 of one head to (dK, dV). Scores are held transposed, (TILE_N, TILE_M).

    Keys beyond len_k need no mask: they reach only their own rows of dK and dV, which are not stored. The causal mask
    is applied to every tile: a second loop without it costs registers, and more time than it saves.
    """
    n = n_start + tl.arange(0, TILE_N)[:, None]
    for m_start in range(m_first, len_q, TILE_M):
        m = m_start + tl.arange(0, TILE_M)[None, :]
        rQ = load_tile(mQ, tQ, batch, head, m_start, len_q, dim, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
        rLSE, rDelta = load_row_state(mState, batches, heads_q, batch, head, m_start, len_q, TILE_M, DESCRIPTOR)
        rS = dot(rK, tl.trans(rQ), tl.zeros([TILE_N, TILE_M], tl.float32))
        rdO = load_tile(mdO, tdO, batch, head, m_start, len_q, dim_v, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
        rdP = dot(rV, tl.trans(rdO), tl.zeros([TILE_N, TILE_M], tl.float32))
        rS = apply_mask(rS, scale, mMask, tMask, batch, head, m, n, len_q, len_k, MASK, FOLD, add_bias)
        if CAUSAL:
            rS = mask_causal(rS, m, n, len_q, len_k)
        rP = probabilities(rS, rLSE[None, :], scale, FOLD)
        rdV = dot(round_to(rP, DTYPE, INTERPRETED), rdO, rdV)
        rdS = score_gradient(rP, rdP, rDelta[None, :])
        rdK = dot(round_to(rdS, DTYPE, INTERPRETED), rQ, rdK)
    return rdK, rdV


BACKWARD_RUNTIME = ["mQ", "mK", "mV", "mdO", *stride_names("Q", "K", "V", "dO"), "mMask", *MASK_RUNTIME, "mState"]
BACKWARD_RUNTIME += ["batches", "heads_q", "heads_kv", "len_q", "len_k", "dim", "dim_v"]
BACKWARD_COLUMNS = [MASK_STRIDES[3], *last_strides("Q", "K", "V", "dO")]
DKDV_RUNTIME = [*BACKWARD_RUNTIME, "mdK", "mdV", *stride_names("dK", "dV")]
DKDV_COLUMNS = [*BACKWARD_COLUMNS, *last_strides("dK", "dV")]
DQ_RUNTIME = [*BACKWARD_RUNTIME, "mdQ", *stride_names("dQ")]
DQ_COLUMNS = [*BACKWARD_COLUMNS, *last_strides("dQ")]


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
    mask_batch_stride,
    mask_head_stride,
    mask_row_stride,
    mask_column_stride,
    mState,
    mdK,
    tdK_0,
    tdK_1,
    tdK_2,
    tdK_3,
    mdV,
    tdV_0,
    tdV_1,
    tdV_2,
    tdV_3,
    batches,
    heads_q,
    heads_kv,
    len_q,
    len_k,
    dim,
    dim_v,
    scale,
    DTYPE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    FOLD: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    mask_causal: tl.constexpr,
    add_bias: tl.constexpr,
    score_gradient: tl.constexpr,
    first_query: tl.constexpr,
    before_head: tl.constexpr,
    finish_dk: tl.constexpr,
):
    """dK and dV of one tile of keys, over all query heads of the group in their order."""
    tQ = (tQ_0, tQ_1, tQ_2, tQ_3)
    tK = (tK_0, tK_1, tK_2, tK_3)
    tV = (tV_0, tV_1, tV_2, tV_3)
    tdO = (tdO_0, tdO_1, tdO_2, tdO_3)
    tdK = (tdK_0, tdK_1, tdK_2, tdK_3)
    tdV = (tdV_0, tdV_1, tdV_2, tdV_3)
    tMask = (mask_batch_stride, mask_head_stride, mask_row_stride, mask_column_stride)
    n_block, batch, head_kv = locate(tl.cdiv(len_k, TILE_N), batches, heads_kv, INTERPRETED)
    n_start = n_block * TILE_N
    rK = load_tile(mK, tK, batch, head_kv, n_start, len_k, dim, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED)
    rV = load_tile(mV, tV, batch, head_kv, n_start, len_k, dim_v, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED)
    rdK = tl.zeros([TILE_N, BLOCK_D], tl.float32)
    rdV = tl.zeros([TILE_N, BLOCK_D], tl.float32)

    m_first = first_query(n_start, TILE_M, CAUSAL)
    group = heads_q // heads_kv
    for head in range(head_kv * group, (head_kv + 1) * group):
        rdK, rdV = before_head(rdK, rdV, DTYPE, INTERPRETED)
        rdK, rdV = gather_dkdv(
            rdK,
            rdV,
            rK,
            rV,
            mQ,
            tQ,
            mdO,
            tdO,
            mMask,
            tMask,
            mState,
            batches,
            batch,
            heads_q,
            head,
            n_start,
            m_first,
            len_q,
            len_k,
            dim,
            dim_v,
            scale,
            DTYPE,
            MASK,
            CAUSAL,
            FOLD,
            DESCRIPTOR,
            INTERPRETED,
            TILE_M,
            TILE_N,
            BLOCK_D,
            mask_causal,
            add_bias,
            score_gradient,
        )

    store_tile(
        mdK,
        tdK,
        finish_dk(rdK, scale),
        batch,
        head_kv,
        n_start,
        len_k,
        dim,
        DTYPE,
        TILE_N,
        BLOCK_D,
        DESCRIPTOR,
        INTERPRETED,
    )
    store_tile(mdV, tdV, rdV, batch, head_kv, n_start, len_k, dim_v, DTYPE, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED)


@triton.jit
def gather_dq(
    rdQ,
    rQ,
    rdO,
    rLSE,
    rDelta,
    mK,
    tK,
    mV,
    tV,
    mMask,
    tMask,
    batch,
    head,
    head_kv,
    m_start,
    n_first,
    n_last,
    len_q,
    len_k,
    dim,
    dim_v,
    scale,
    EDGE: tl.constexpr,
    DTYPE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    FOLD: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    mask_tail_keys: tl.constexpr,
    mask_causal: tl.constexpr,
    add_bias: tl.constexpr,
    score_gradient: tl.constexpr,
):
    """Adds keys n_first … n_last - 1 to dQ; EDGE tiles are masked."""
    m = m_start + tl.arange(0, TILE_M)[:, None]
    for n_start in range(n_first, n_last, TILE_N):
        n = n_start + tl.arange(0, TILE_N)[None, :]
        rK = load_tile(mK, tK, batch, head_kv, n_start, len_k, dim, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED)
        rV = load_tile(mV, tV, batch, head_kv, n_start, len_k, dim_v, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED)
        rS = dot(rQ, tl.trans(rK), tl.zeros([TILE_M, TILE_N], tl.float32))
        rdP = dot(rdO, tl.trans(rV), tl.zeros([TILE_M, TILE_N], tl.float32))
        rS = apply_mask(rS, scale, mMask, tMask, batch, head, m, n, len_q, len_k, MASK, FOLD, add_bias)
        if EDGE:
            rS = mask_tail_keys(rS, n, len_k)
            if CAUSAL:
                rS = mask_causal(rS, m, n, len_q, len_k)
        rP = probabilities(rS, rLSE[:, None], scale, FOLD)
        rdS = score_gradient(rP, rdP, rDelta[:, None])
        rdQ = dot(round_to(rdS, DTYPE, INTERPRETED), rK, rdQ)
    return rdQ


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
    mask_batch_stride,
    mask_head_stride,
    mask_row_stride,
    mask_column_stride,
    mState,
    mdQ,
    tdQ_0,
    tdQ_1,
    tdQ_2,
    tdQ_3,
    batches,
    heads_q,
    heads_kv,
    len_q,
    len_k,
    dim,
    dim_v,
    scale,
    DTYPE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    FOLD: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    kv_head_of: tl.constexpr,
    mask_tail_keys: tl.constexpr,
    mask_causal: tl.constexpr,
    add_bias: tl.constexpr,
    score_gradient: tl.constexpr,
    finish_dq: tl.constexpr,
):
    """dQ of one tile of queries; the mirror image of `forward_kernel`."""
    tQ = (tQ_0, tQ_1, tQ_2, tQ_3)
    tK = (tK_0, tK_1, tK_2, tK_3)
    tV = (tV_0, tV_1, tV_2, tV_3)
    tdO = (tdO_0, tdO_1, tdO_2, tdO_3)
    tdQ = (tdQ_0, tdQ_1, tdQ_2, tdQ_3)
    tMask = (mask_batch_stride, mask_head_stride, mask_row_stride, mask_column_stride)
    m_blocks = tl.cdiv(len_q, TILE_M)
    m_block, batch, head = locate(m_blocks, batches, heads_q, INTERPRETED)
    if CAUSAL and not INTERPRETED:
        m_block = m_blocks - 1 - m_block
    m_start = m_block * TILE_M
    head_kv = kv_head_of(head, heads_q, heads_kv)

    rQ = load_tile(mQ, tQ, batch, head, m_start, len_q, dim, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
    rdO = load_tile(mdO, tdO, batch, head, m_start, len_q, dim_v, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
    rLSE, rDelta = load_row_state(mState, batches, heads_q, batch, head, m_start, len_q, TILE_M, DESCRIPTOR)
    rdQ = tl.zeros([TILE_M, BLOCK_D], tl.float32)

    n_interior = last_interior_key(m_start, len_k, TILE_N, CAUSAL)
    n_last = last_key(m_start, len_k, TILE_M, CAUSAL)
    for EDGE in tl.static_range(2):
        rdQ = gather_dq(
            rdQ,
            rQ,
            rdO,
            rLSE,
            rDelta,
            mK,
            tK,
            mV,
            tV,
            mMask,
            tMask,
            batch,
            head,
            head_kv,
            m_start,
            n_interior if EDGE else 0,
            n_last if EDGE else n_interior,
            len_q,
            len_k,
            dim,
            dim_v,
            scale,
            EDGE,
            DTYPE,
            MASK,
            CAUSAL,
            FOLD,
            DESCRIPTOR,
            INTERPRETED,
            TILE_M,
            TILE_N,
            BLOCK_D,
            mask_tail_keys,
            mask_causal,
            add_bias,
            score_gradient,
        )

    store_tile(
        mdQ,
        tdQ,
        finish_dq(rdQ, scale),
        batch,
        head,
        m_start,
        len_q,
        dim,
        DTYPE,
        TILE_M,
        BLOCK_D,
        DESCRIPTOR,
        INTERPRETED,
    )
