"""The forward kernel: one program makes one tile of O and of LSE, walking along the keys.

On a GPU neighbouring programs share a head (see `locate`), so its keys and values stay in the L2 cache; a head's causal
programs start with the last, longest rows.
"""

import triton
import triton.language as tl

from kernels.sdpa.scores import MASK_RUNTIME, MASK_STRIDES, apply_mask, score_unit
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import dot, load_tile, round_to, store_tile


@triton.jit
def last_key(m_start, len_k, TILE_M: tl.constexpr, CAUSAL: tl.constexpr):
    """One past the last key that any row of the tile sees."""
    last = len_k
    if CAUSAL:
        last = tl.minimum(len_k, m_start + TILE_M)
    return last


@triton.jit
def last_interior_key(m_start, len_k, TILE_N: tl.constexpr, CAUSAL: tl.constexpr):
    """One past the last key of the tiles that need neither a tail mask nor a causal mask; a multiple of TILE_N."""
    last = len_k
    if CAUSAL:
        last = tl.minimum(len_k, m_start + 1)
    return last // TILE_N * TILE_N


@triton.jit
def attend(
    rAcc,
    rMax,
    rSum,
    rQ,
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
    online_softmax: tl.constexpr,
    load_values: tl.constexpr,
):
    """Adds keys n_first … n_last - 1 to the running (accumulator, maximum, sum); EDGE tiles are masked."""
    m = m_start + tl.arange(0, TILE_M)[:, None]
    for n_start in range(n_first, n_last, TILE_N):
        n = n_start + tl.arange(0, TILE_N)[None, :]
        rK = load_tile(mK, tK, batch, head_kv, n_start, len_k, dim, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED)
        rS = dot(rQ, tl.trans(rK), tl.zeros([TILE_M, TILE_N], tl.float32))
        rS = apply_mask(rS, scale, mMask, tMask, batch, head, m, n, len_q, len_k, MASK, FOLD, add_bias)
        if EDGE:
            rS = mask_tail_keys(rS, n, len_k)
            if CAUSAL:
                rS = mask_causal(rS, m, n, len_q, len_k)
        rP, rShrink, rMax, rSum = online_softmax(rS, rMax, rSum, scale, n_start // TILE_N, FOLD, MASK != "none")
        rV = load_values(mV, tV, batch, head_kv, n_start, len_k, dim_v, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED)
        rAcc = dot(round_to(rP, DTYPE, INTERPRETED), rV, rAcc * rShrink[:, None])
    return rAcc, rMax, rSum


@triton.jit
def statistics_offset(batch, head, heads_q, len_q):
    """Start of a head's rows in LSE: in int64, as 2**31 of them may lie before."""
    return (batch * heads_q + head).to(tl.int64) * len_q


@triton.jit
def locate(tiles, batches, heads, INTERPRETED: tl.constexpr):
    """(tile, batch, head) of this program of a one-dimensional grid of tiles * batches * heads, of 2**31 - 1 at most.

    On a GPU a head's tiles are neighbours. The interpreter, which runs programs in order, makes one tile of every head
    before the next, so that a write into a neighbouring head is not repaired by that head's own, later one.
    """
    index = tl.program_id(0)
    if INTERPRETED:
        tile, batch_head = index // (batches * heads), index % (batches * heads)
    else:
        tile, batch_head = index % tiles, index // tiles
    return tile, batch_head // heads, batch_head % heads


FORWARD_RUNTIME = ["mQ", "mK", "mV", "mMask", *MASK_RUNTIME, "mO", *stride_names("Q", "K", "V", "O"), "mLSE"]
FORWARD_RUNTIME += ["batches", "heads_q", "heads_kv", "len_q", "len_k", "dim", "dim_v"]
FORWARD_COLUMNS = [MASK_STRIDES[3], *last_strides("Q", "K", "V", "O")]


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
    mask_batch_stride,
    mask_head_stride,
    mask_row_stride,
    mask_column_stride,
    mO,
    tO_0,
    tO_1,
    tO_2,
    tO_3,
    mLSE,
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
    store_row_statistics: tl.constexpr,
    kv_head_of: tl.constexpr,
    mask_tail_keys: tl.constexpr,
    mask_causal: tl.constexpr,
    add_bias: tl.constexpr,
    last_interior: tl.constexpr,
    online_softmax: tl.constexpr,
    load_values: tl.constexpr,
    row_statistics: tl.constexpr,
    statistics_offset: tl.constexpr,
):
    """O = softmax(Q K^T · scale + mask) V and LSE, see `kernels.sdpa.api` for shapes and dtypes."""
    tQ = (tQ_0, tQ_1, tQ_2, tQ_3)
    tK = (tK_0, tK_1, tK_2, tK_3)
    tV = (tV_0, tV_1, tV_2, tV_3)
    tO = (tO_0, tO_1, tO_2, tO_3)
    tMask = (mask_batch_stride, mask_head_stride, mask_row_stride, mask_column_stride)
    m_blocks = tl.cdiv(len_q, TILE_M)
    m_block, batch, head = locate(m_blocks, batches, heads_q, INTERPRETED)
    if CAUSAL and not INTERPRETED:
        m_block = m_blocks - 1 - m_block
    m_start = m_block * TILE_M
    head_kv = kv_head_of(head, heads_q, heads_kv)

    rQ = load_tile(mQ, tQ, batch, head, m_start, len_q, dim, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
    rAcc = tl.zeros([TILE_M, BLOCK_D], tl.float32)
    rMax = tl.full([TILE_M], -float("inf"), tl.float32)
    rSum = tl.zeros([TILE_M], tl.float32)

    n_interior = last_interior(m_start, len_k, TILE_N, CAUSAL)
    n_last = last_key(m_start, len_k, TILE_M, CAUSAL)
    for EDGE in tl.static_range(2):
        rAcc, rMax, rSum = attend(
            rAcc,
            rMax,
            rSum,
            rQ,
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
            online_softmax,
            load_values,
        )

    rLSE, rInverse = row_statistics(rMax, rSum, score_unit(scale, FOLD))
    offset = statistics_offset(batch, head, heads_q, len_q)
    store_row_statistics(mLSE, offset, m_start + tl.arange(0, TILE_M), rLSE, len_q)
    rO = rAcc * rInverse[:, None]
    store_tile(mO, tO, rO, batch, head, m_start, len_q, dim_v, DTYPE, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
