"""What backward needs of each row, prepared once: LSE and delta, in a form that its loops load unmasked.

NOTE [row state] mState (2, batch * heads_q, rows) float32, rows = len_q rounded up to ROW_TILE. Plane 0 holds LSE,
times log2(e) under FOLD (see NOTE [score units] in scores.py), plane 1 holds delta. Rows without keys and rows beyond
len_q hold (+inf, 0): all probabilities of theirs are exp2(-inf) = 0, see NOTE [rows without keys]. Loading LSE itself,
masked, in the loop over queries cost dK and dV 22 to 40 % on an H100.
"""

import triton
import triton.language as tl

from kernels.sdpa.forward import locate
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import load_tile, wide_product, widen

ROW_TILE: tl.constexpr = tl.constexpr(128)

ROW_STATE_RUNTIME = ["mO", "mdO", *stride_names("O", "dO"), "mLSE", "mdLSE", *stride_names("dLSE", axes=2), "mState"]
ROW_STATE_RUNTIME += ["batches", "heads_q", "len_q", "dim_v", "len_dlse"]
ROW_STATE_COLUMNS = [*last_strides("O", "dO"), "tdLSE_2"]


@triton.jit
def state_rows(len_q):
    """Rows of one (batch, head) in mState."""
    return tl.cdiv(len_q, ROW_TILE) * ROW_TILE


@triton.jit
def store_row_state(mRow, rX, inside):
    """Writes a tile of one plane, rows beyond len_q (not `inside`) too: nothing else writes them."""
    tl.store(mRow, rX)


@triton.jit
def load_row_state(
    mState, batches, heads_q, batch, head, m_start, len_q, TILE_M: tl.constexpr, DESCRIPTOR: tl.constexpr
):
    """(LSE, delta) of rows m_start … m_start + TILE_M - 1; mState is a pointer or a descriptor."""
    batch_head = batch * heads_q + head
    if DESCRIPTOR:
        rLSE = mState.load([0, batch_head, m_start]).reshape([TILE_M])
        rDelta = mState.load([1, batch_head, m_start]).reshape([TILE_M])
    else:
        rows = state_rows(len_q)
        mRow = mState + batch_head.to(tl.int64) * rows + m_start + tl.arange(0, TILE_M)
        rLSE = tl.load(mRow)
        rDelta = tl.load(mRow + (batches * heads_q).to(tl.int64) * rows)
    return rLSE, rDelta


@triton.jit(
    do_not_specialize=ROW_STATE_RUNTIME, do_not_specialize_on_alignment=[*ROW_STATE_RUNTIME, *ROW_STATE_COLUMNS]
)
def row_state_kernel(
    mO,
    tO_0,
    tO_1,
    tO_2,
    tO_3,
    mdO,
    tdO_0,
    tdO_1,
    tdO_2,
    tdO_3,
    mLSE,
    mdLSE,
    tdLSE_0,
    tdLSE_1,
    tdLSE_2,
    mState,
    batches,
    heads_q,
    len_q,
    dim_v,
    len_dlse,
    lse_unit,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    store_row_state: tl.constexpr,
):
    """delta = rowsum(O ∘ dO) - dLSE and LSE * lse_unit, for every row of mState.

    TILE_M divides ROW_TILE; len_dlse is len_q, or 0 where there is no dLSE.
    """
    tO = (tO_0, tO_1, tO_2, tO_3)
    tdO = (tdO_0, tdO_1, tdO_2, tdO_3)
    tdLSE = (tdLSE_0, tdLSE_1, tdLSE_2)
    rows = state_rows(len_q)
    m_block, batch, head = locate(rows // TILE_M, batches, heads_q, INTERPRETED)
    m_start = m_block * TILE_M
    index_row = m_start + tl.arange(0, TILE_M)
    inside = index_row < len_q
    rO = load_tile(mO, tO, batch, head, m_start, len_q, dim_v, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
    rdO = load_tile(mdO, tdO, batch, head, m_start, len_q, dim_v, TILE_M, BLOCK_D, DESCRIPTOR, INTERPRETED)
    rDelta = tl.sum(widen(rO) * widen(rdO), 1)
    offset = wide_product(batch, tdLSE[0]) + wide_product(head, tdLSE[1]) + wide_product(index_row, tdLSE[2])
    rDelta -= tl.load(mdLSE + offset, mask=index_row < len_dlse, other=0.0)
    batch_head = (batch * heads_q + head).to(tl.int64)
    rLSE = tl.load(mLSE + batch_head * len_q + index_row, mask=inside, other=-float("inf"))
    empty = rLSE == -float("inf")
    mRow = mState + batch_head * rows + index_row
    store_row_state(mRow, tl.where(empty, float("inf"), rLSE * lse_unit), inside)
    mDelta = mRow + (batches * heads_q).to(tl.int64) * rows
    store_row_state(mDelta, tl.where(empty, 0.0, rDelta), inside)
