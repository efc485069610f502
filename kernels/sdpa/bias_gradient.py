"""The gradient of a float mask: one program owns a tile of the *mask's* gradient, whatever it is broadcast over.

It walks over the batches, heads, queries and keys that share its entries and adds dS = P ∘ (dP - delta) in one fixed
order: no atomics, the same bits in every run, and no buffer larger than the mask itself. A mask of one row (or one
entry) is summed by few programs: right, not fast.
"""

import triton
import triton.language as tl

from kernels.sdpa.forward import locate
from kernels.sdpa.row_state import load_row_state
from kernels.sdpa.scores import MASK_RUNTIME, MASK_STRIDES, apply_mask, probabilities
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import dot, load_tile, narrow

DBIAS_RUNTIME = ["mQ", "mK", "mV", "mdO", *stride_names("Q", "K", "V", "dO"), "mMask", *MASK_RUNTIME, "mState"]
DBIAS_RUNTIME += ["batches", "heads_q", "heads_kv", "len_q", "len_k", "dim", "dim_v"]
DBIAS_RUNTIME += ["mdMask", "mask_batches", "mask_heads", "mask_rows", "mask_columns"]
DBIAS_COLUMNS = [MASK_STRIDES[3], *last_strides("Q", "K", "V", "dO")]


@triton.jit
def sharing_until(first, size, AXIS: tl.constexpr):
    """One past the last batch or head (AXIS) that may share the mask's entry `first`."""
    return size


@triton.jit
def sum_of_shared(rdMask, axis: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """The sum along an axis over which the mask is broadcast, everywhere along it."""
    return tl.broadcast_to(tl.sum(rdMask, axis, keep_dims=True), (TILE_M, TILE_N))


@triton.jit
def store_shared(
    mdX,
    rdX,
    first,
    row_start,
    column_start,
    rows,
    columns,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    sum_of_shared: tl.constexpr,
):
    """Writes a tile of the gradient of a mask or bias (…, rows, columns), contiguous, whose rows of this head begin at
    row `first`: summed along the axes over which it is broadcast."""
    if rows == 1:
        rdX = sum_of_shared(rdX, 0, TILE_M, TILE_N)
    if columns == 1:
        rdX = sum_of_shared(rdX, 1, TILE_M, TILE_N)
    row = row_start + tl.arange(0, TILE_M)[:, None]
    column = column_start + tl.arange(0, TILE_N)[None, :]
    mTile = mdX + (first + row) * columns + column
    tl.store(mTile, narrow(rdX, DTYPE, INTERPRETED), mask=(row < rows) & (column < columns))


@triton.jit
def finish_dbias(rdMask, scale):
    """The mask's gradient is dS itself: it was added after the scale."""
    return rdMask


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
    mask_batch_stride,
    mask_head_stride,
    mask_row_stride,
    mask_column_stride,
    mState,
    mdMask,
    batches,
    heads_q,
    heads_kv,
    len_q,
    len_k,
    dim,
    dim_v,
    mask_batches,
    mask_heads,
    mask_rows,
    mask_columns,
    scale,
    DTYPE: tl.constexpr,
    MASK_DTYPE: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    kv_head_of: tl.constexpr,
    mask_tail_keys: tl.constexpr,
    add_bias: tl.constexpr,
    score_gradient: tl.constexpr,
    sharing_until: tl.constexpr,
    sum_of_shared: tl.constexpr,
    finish_dbias: tl.constexpr,
):
    """dMask (mask_batches, mask_heads, mask_rows, mask_columns), contiguous; each size is 1 or the full one."""
    tQ = (tQ_0, tQ_1, tQ_2, tQ_3)
    tK = (tK_0, tK_1, tK_2, tK_3)
    tV = (tV_0, tV_1, tV_2, tV_3)
    tdO = (tdO_0, tdO_1, tdO_2, tdO_3)
    tMask = (mask_batch_stride, mask_head_stride, mask_row_stride, mask_column_stride)
    column_tiles = tl.cdiv(mask_columns, TILE_N)
    tiles = tl.cdiv(mask_rows, TILE_M) * column_tiles
    tile, mask_batch, mask_head = locate(tiles, mask_batches, mask_heads, INTERPRETED)
    row_start = tile // column_tiles * TILE_M
    column_start = tile % column_tiles * TILE_N
    m_last = tl.where(mask_rows == 1, len_q, row_start + 1)
    n_last = tl.where(mask_columns == 1, len_k, column_start + 1)

    rdMask = tl.zeros([TILE_M, TILE_N], tl.float32)
    for batch in range(mask_batch, sharing_until(mask_batch, batches, "batch"), mask_batches):
        for head in range(mask_head, sharing_until(mask_head, heads_q, "head"), mask_heads):
            head_kv = kv_head_of(head, heads_q, heads_kv)
            for m_start in range(row_start, m_last, TILE_M):
                m = m_start + tl.arange(0, TILE_M)[:, None]
                rQ = load_tile(mQ, tQ, batch, head, m_start, len_q, dim, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
                rdO = load_tile(mdO, tdO, batch, head, m_start, len_q, dim_v, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
                rLSE, rDelta = load_row_state(mState, batches, heads_q, batch, head, m_start, len_q, TILE_M, DESCRIPTOR)
                for n_start in range(column_start, n_last, TILE_N):
                    n = n_start + tl.arange(0, TILE_N)[None, :]
                    rK = load_tile(
                        mK, tK, batch, head_kv, n_start, len_k, dim, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED
                    )
                    rV = load_tile(
                        mV, tV, batch, head_kv, n_start, len_k, dim_v, TILE_N, BLOCK_D, DESCRIPTOR, INTERPRETED
                    )
                    rS = dot(rQ, tl.trans(rK), tl.zeros([TILE_M, TILE_N], tl.float32))
                    rS = apply_mask(rS, scale, mMask, tMask, batch, head, m, n, len_q, len_k, "float", False, add_bias)
                    rS = mask_tail_keys(rS, n, len_k)
                    rP = probabilities(rS, rLSE[:, None], scale, False)
                    rdP = dot(rdO, tl.trans(rV), tl.zeros([TILE_M, TILE_N], tl.float32))
                    rdMask += score_gradient(rP, rdP, rDelta[:, None])

    rdMask = finish_dbias(rdMask, scale)
    of_head = (mask_batch * mask_heads + mask_head).to(tl.int64) * mask_rows
    store_shared(
        mdMask,
        rdMask,
        of_head,
        row_start,
        column_start,
        mask_rows,
        mask_columns,
        MASK_DTYPE,
        INTERPRETED,
        TILE_M,
        TILE_N,
        sum_of_shared,
    )
