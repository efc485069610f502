"""The gradient of a float mask: one program owns a tile of the *mask's* gradient, whatever it is broadcast over.

It walks over the batches, heads, queries and keys that share its entries and adds dS = P ∘ (dP - delta) in one fixed
order: no atomics, the same bits in every run, and no buffer larger than the mask itself. A mask of one row (or one
entry) is summed by few programs: right, not fast.
"""

import triton
import triton.language as tl

from kernels.sdpa.scores import apply_mask, load_row_statistics, probabilities, score_unit
from kernels.sdpa.tiles import dot, load_tile, narrow

DBIAS_RUNTIME = ["mQ", "tQ", "mK", "tK", "mV", "tV", "mdO", "tdO", "mMask", "tMask", "mLSE", "mDelta", "mdMask"]
DBIAS_RUNTIME += ["batches", "heads_q", "heads_kv", "len_q", "len_k", "dim", "dim_v"]
DBIAS_RUNTIME += ["mask_batches", "mask_heads", "mask_rows", "mask_columns"]


@triton.jit
def shared_range(start, length, size, TILE: tl.constexpr, BROADCAST: tl.constexpr):
    """Along one axis, what shares the mask's tile at `start`: everything where it is broadcast, else the tile."""
    if BROADCAST:
        first, last = 0, length
    else:
        first, last = start, tl.minimum(start + TILE, size)
    return first, last


@triton.jit(do_not_specialize=DBIAS_RUNTIME, do_not_specialize_on_alignment=DBIAS_RUNTIME)
def dbias_kernel(
    mQ,
    tQ,
    mK,
    tK,
    mV,
    tV,
    mdO,
    tdO,
    mMask,
    tMask,
    mLSE,
    mDelta,
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
    BROADCAST_ROWS: tl.constexpr,
    BROADCAST_COLUMNS: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    kv_head_of: tl.constexpr,
    mask_tail_keys: tl.constexpr,
):
    """dMask (mask_batches, mask_heads, mask_rows, mask_columns), contiguous; each size is 1 or the full one."""
    mask_batch, mask_head = locate_mask(mask_heads)
    if mask_batch >= mask_batches:
        return
    row_start = tl.program_id(0) // tl.cdiv(mask_columns, TILE_N) * TILE_M
    column_start = tl.program_id(0) % tl.cdiv(mask_columns, TILE_N) * TILE_N
    batch_first, batch_last = shared_range(mask_batch, batches, mask_batch + 1, 1, False)
    if mask_batches == 1:
        batch_first, batch_last = 0, batches
    head_first, head_last = mask_head, mask_head + 1
    if mask_heads == 1:
        head_first, head_last = 0, heads_q
    m_first, m_last = shared_range(row_start, len_q, mask_rows, TILE_M, BROADCAST_ROWS)
    n_first, n_last = shared_range(column_start, len_k, mask_columns, TILE_N, BROADCAST_COLUMNS)

    rdMask = tl.zeros([TILE_M, TILE_N], tl.float32)
