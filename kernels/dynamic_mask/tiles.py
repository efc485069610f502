"""Device helpers that find a sequence and load its tiles: rows of Q, K, V, and planes of masks and biases.

NOTE [aligned] ALIGNED promises for every tensor of a launch that the last axis has stride 1 (a bias of one column is
never aligned), that runs of it start at multiples of 16 bytes, and that head dims and the columns of masks and biases
are multiples of 16 bytes long. Loads are then 16 bytes wide, with predicates that are the same for all of these bytes.
The hints that say so to the compiler hold where a pointer is made, and not for the argument of a function.

NOTE [tuples] What belongs together is handed on as one tuple:
    gX     rows of a sequence's head: (pointer, strides, batch, head, first row, rows, columns)
    plane  of a mask or bias: (pointer, strides, number of query heads that share it)
    place  of a tile in its plane: (batch, query head, number of queries, number of keys, shift of causality)
    lists  of tiles: (entries, numbers of entries, 1 if batches differ, heads, number of query heads that share one)

NOTE [packed] In a packed call tensors are (1, heads, total, dim): their batch stride is 0, and a sequence begins at row
cu_seqlens[batch]. Masks and biases are padded ones in both layouts.
"""

import triton
import triton.language as tl

from kernels.dynamic_mask.scores import choose
from kernels.sdpa.tiles import narrow, wide_product, widen

VECTOR: tl.constexpr = tl.constexpr(8)  # elements of 16 bytes, of two bytes each
BYTES: tl.constexpr = tl.constexpr(16)
BITS: tl.constexpr = tl.constexpr(32)


@triton.jit
def sequence(mCuQ, mCuK, batch, len_q, len_k, PACKED: tl.constexpr):
    """(first row of queries, first row of keys, number of queries, number of keys) of a sequence, see NOTE [packed]."""
    if PACKED:
        first_q = tl.load(mCuQ + batch)
        first_k = tl.load(mCuK + batch)
        n_q = tl.load(mCuQ + batch + 1) - first_q
        n_k = tl.load(mCuK + batch + 1) - first_k
    else:
        first_q = len_q * 0
        first_k = len_k * 0
        n_q = len_q
        n_k = len_k
    return first_q, first_k, n_q, n_k


@triton.jit
def last_key(m_start, n_k, shift, TILE_M: tl.constexpr, CAUSAL: tl.constexpr):
    """One past the last key that causality leaves to any row of the tile; 0 or less: none."""
    last = n_k
    if CAUSAL:
        last = tl.minimum(n_k, m_start + TILE_M + shift)
    return last


@triton.jit
def first_query(n_start, shift, TILE_M: tl.constexpr, CAUSAL: tl.constexpr):
    """Start of the first tile of queries that causality lets see any key of the tile; a multiple of TILE_M."""
    first = n_start * 0
    if CAUSAL:
        first = tl.maximum(n_start - shift, 0) // TILE_M * TILE_M
    return first


@triton.jit
def list_of(lists, batch, head, line, lines, steps):
    """(pointer to the first, number) of the entries of a tile's list; lists: see NOTE [tuples].

    line, lines  of the tile among those of a head; steps: the most entries that a list can have
    """
    mList, mCount, list_batch, list_heads, list_share = lists
    place = (batch * list_batch * list_heads + head // list_share) * lines + line
    return mList + place.to(tl.int64) * steps, tl.load(mCount + place)


@triton.jit
def row_pointers(gX, row, TILE: tl.constexpr, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers to rows row … row + TILE - 1 of gX, see NOTE [tuples], and which of them lie inside its sizes."""
    mX, tX, batch, head, first, rows, columns = gX
    index_row = row + tl.arange(0, TILE)[:, None]
    column = tl.arange(0, BLOCK_D)[None, :]
    offsets = wide_product(batch, tX[0]) + wide_product(head, tX[1]) + wide_product(first + index_row, tX[2])
    if ALIGNED:
        mTile = mX + (offsets + column)
        mTile = tl.max_contiguous(tl.multiple_of(mTile, [1, 16]), [1, BLOCK_D])
        inside = (index_row < rows) & (column // VECTOR < columns // VECTOR)
    else:
        mTile = mX + (offsets + wide_product(column, tX[3]))
        inside = (index_row < rows) & (column < columns)
    return mTile, inside


@triton.jit
def load_rows(gX, row, TILE: tl.constexpr, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr, INTERPRETED: tl.constexpr):
    """Rows row … row + TILE - 1 of gX, (TILE, BLOCK_D); zeros outside of its sizes."""
    mTile, inside = row_pointers(gX, row, TILE, BLOCK_D, ALIGNED)
    rX = tl.load(mTile, mask=inside, other=0.0)
    if INTERPRETED:
        rX = widen(rX)
    return rX


@triton.jit
def store_rows(
    gX,
    rX,
    row,
    DTYPE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Mirror image of `load_rows`: a float32 tile is rounded to DTYPE."""
    mTile, inside = row_pointers(gX, row, TILE, BLOCK_D, ALIGNED)
    tl.store(mTile, narrow(rX, DTYPE, INTERPRETED), mask=inside)


@triton.jit
def plane_pointers(plane, place, m, n, TILE_N: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers to elements (m, n) of a plane, see NOTE [tuples]."""
    mX, tX, share = plane
    offsets = wide_product(place[0], tX[0]) + wide_product(place[1] // share, tX[1]) + wide_product(m, tX[2])
    if ALIGNED:
        mTile = mX + (offsets + n)
        mTile = tl.max_contiguous(tl.multiple_of(mTile, [1, 16]), [1, TILE_N])
    else:
        mTile = mX + (offsets + wide_product(n, tX[3]))
    return mTile


@triton.jit
def inside_keys(n, n_k, ALIGNED: tl.constexpr):
    """Keys that may be loaded: those before n_k, to the next multiple of 16 bytes where the plane is ALIGNED."""
    if ALIGNED:
        inside = n // BYTES < (n_k + (BYTES - 1)) // BYTES
    else:
        inside = n < n_k
    return inside


@triton.jit
def load_mask(
    mask,
    place,
    m_start,
    n_start,
    MASK: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """The mask's tile as it lies in memory, 0 outside: bytes (TILE_M, TILE_N), or words (TILE_M, TILE_N / 32)."""
    _, _, n_q, n_k, _ = place
    m = m_start + tl.arange(0, TILE_M)[:, None]
    if MASK == "bits":
        word = n_start // BITS + tl.arange(0, TILE_N // BITS)[None, :]
        mTile = plane_pointers(mask, place, m, word, TILE_N, False)
        inside = (m < n_q) & (word < (n_k + (BITS - 1)) // BITS)
    else:
        n = n_start + tl.arange(0, TILE_N)[None, :]
        mTile = plane_pointers(mask, place, m, n, TILE_N, ALIGNED)
        inside = (m < n_q) & inside_keys(n, n_k, ALIGNED)
    return tl.load(mTile, mask=inside, other=0)


@triton.jit
def any_key(rMask, before):
    """Whether a mask's tile has a key, as one number for all threads (an OR over the CTA); `before` is that of the tile
    before in the program, True at first, and is not used."""
    return tl.max(tl.max((rMask != 0).to(tl.int32), 1), 0) != 0


@triton.jit
def keep_tile(
    rMask,
    mask,
    place,
    m_start,
    n_start,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """bool (TILE_M, TILE_N): the pairs that count. rMask is the mask's tile, as `load_mask` gives it.

    Comparisons are left out where all keys of the tile lie inside the sequence and before its first query.
    """
    _, _, n_q, n_k, shift = place
    m = m_start + tl.arange(0, TILE_M)[:, None]
    n = n_start + tl.arange(0, TILE_N)[None, :]
    if MASK == "bits":
        mTile = plane_pointers(mask, place, m, n // BITS, TILE_N, False)
        rWords = tl.load(mTile, mask=(m < n_q) & (n < n_k), other=0)
        rKeep = ((rWords >> (n % BITS)) & 1) != 0
    elif MASK == "bool":
        rKeep = rMask != 0
    else:
        rKeep = tl.full([TILE_M, TILE_N], 1, tl.int1)
    n_edge = n_k
    if CAUSAL:
        n_edge = tl.minimum(n_k, m_start + 1 + shift)
    if n_start + TILE_N > n_edge:
        rKeep = rKeep & (n < n_k)
        if CAUSAL:
            rKeep = rKeep & (n <= m + shift)
    return rKeep


@triton.jit
def load_bias(
    bias,
    place,
    m_start,
    n_start,
    ONE_ROW: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """The bias's tile, float32 (TILE_M, TILE_N), or (1, TILE_N) where it has one row; 0 outside."""
    _, _, n_q, n_k, _ = place
    n = n_start + tl.arange(0, TILE_N)[None, :]
    if ONE_ROW:
        m = tl.zeros([1, 1], tl.int32)
    else:
        m = m_start + tl.arange(0, TILE_M)[:, None]
    mTile = plane_pointers(bias, place, m, n, TILE_N, ALIGNED)
    return widen(tl.load(mTile, mask=(m < n_q) & inside_keys(n, n_k, ALIGNED), other=0.0))


@triton.jit
def masked(
    rS,
    rMask,
    mask,
    bias,
    place,
    m_start,
    n_start,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
    ONE_ROW: tl.constexpr,
    CAUSAL: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Scores (TILE_M, TILE_N), or (TILE_N, TILE_M) TRANSPOSED, with their bias where a pair counts, else -inf."""
    rBias = rS
    if BIAS:
        rBias = load_bias(bias, place, m_start, n_start, ONE_ROW, ALIGNED, TILE_M, TILE_N)
    rKeep = keep_tile(rMask, mask, place, m_start, n_start, MASK, CAUSAL, TILE_M, TILE_N)
    if TRANSPOSED:
        rKeep = tl.trans(rKeep)
        if BIAS:
            rBias = tl.trans(rBias)
    return choose(rS, rBias, rKeep, BIAS)


__all__ = [
    "any_key",
    "first_query",
    "last_key",
    "list_of",
    "load_mask",
    "load_rows",
    "masked",
    "sequence",
    "store_rows",
]
