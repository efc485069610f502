"""What backward needs of each row, prepared once: LSE and delta = rowsum(O ∘ dO) - dLSE.

NOTE [row state] mState (2, batches or 1, heads_q, rows) float32: plane 0 holds LSE, plane 1 delta. Rows without keys
hold (+inf, 0), and so do loads beyond a sequence: all probabilities of theirs are exp2(-inf) = 0.
"""

import triton
import triton.language as tl

from kernels.dynamic_mask.forward import row_offset
from kernels.dynamic_mask.tiles import load_rows, sequence
from kernels.sdpa.forward import locate
from kernels.sdpa.strides import last_strides, stride_names
from kernels.sdpa.tiles import wide_product, widen

STATE_RUNTIME = ["mO", "mdO", *stride_names("O", "dO"), "mLSE", "mdLSE", *stride_names("dLSE", axes=2), "mState"]
STATE_RUNTIME += ["mCuQ", "mCuK", "batches", "heads_q"]
STATE_RUNTIME += ["len_q", "len_k", "rows", "planes", "dim_v", "len_dlse"]
STATE_COLUMNS = [*last_strides("O", "dO"), "tdLSE_2"]


@triton.jit
def load_row_state(mState, offset, plane, m, n_q):
    """(LSE, delta) of rows m of a sequence; offset as `row_offset` gives it, plane: elements of one plane of mState."""
    rLSE = tl.load(mState + offset + m, mask=m < n_q, other=float("inf"))
    rDelta = tl.load(mState + plane + offset + m, mask=m < n_q, other=0.0)
    return rLSE, rDelta


@triton.jit(do_not_specialize=STATE_RUNTIME, do_not_specialize_on_alignment=[*STATE_RUNTIME, *STATE_COLUMNS])
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
    mCuQ,
    mCuK,
    batches,
    heads_q,
    len_q,
    len_k,
    rows,
    planes,
    dim_v,
    len_dlse,
    PACKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """mState of every row; planes: elements of one of its planes; len_dlse: len_q, or 0 where there is no dLSE."""
    tO = (tO_0, tO_1, tO_2, tO_3)
    tdO = (tdO_0, tdO_1, tdO_2, tdO_3)
    tdLSE = (tdLSE_0, tdLSE_1, tdLSE_2)
    m_block, batch, head = locate(tl.cdiv(len_q, TILE_M), batches, heads_q, INTERPRETED)
    m_start = m_block * TILE_M
    first_q, _, n_q, _ = sequence(mCuQ, mCuK, batch, len_q, len_k, PACKED)
    m = m_start + tl.arange(0, TILE_M)
    inside = m < n_q
    gO = (mO, tO, batch, head, first_q, n_q, dim_v)
    gdO = (mdO, tdO, batch, head, first_q, n_q, dim_v)
    rO = load_rows(gO, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
    rdO = load_rows(gdO, m_start, TILE_M, BLOCK_D, ALIGNED, INTERPRETED)
    rDelta = tl.sum(widen(rO) * widen(rdO), 1)
    place = wide_product(batch, tdLSE[0]) + wide_product(head, tdLSE[1]) + wide_product(first_q + m, tdLSE[2])
    rDelta -= tl.load(mdLSE + place, mask=inside & (m < len_dlse), other=0.0)
    offset = row_offset(batch, head, heads_q, rows, first_q, PACKED)
    rLSE = tl.load(mLSE + offset + m, mask=inside, other=-float("inf"))
    empty = rLSE == -float("inf")
    tl.store(mState + offset + m, tl.where(empty, float("inf"), rLSE), mask=inside)
    tl.store(mState + planes + offset + m, tl.where(empty, 0.0, rDelta), mask=inside)
