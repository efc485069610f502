"""Means of stretches of rows, in float32: of each block of K and V, and of each tile of Q. And the way back."""

import triton
import triton.language as tl

from kernels.nsa.rows import columns_inside, row_pointers, tile_of
from kernels.sdpa.forward import locate
from kernels.sdpa.strides import stride_names
from kernels.sdpa.tiles import narrow, wide_product, widen

_RUNTIME = ["mX", *stride_names("X"), "mOut", "mCu", "batches", "length", "dim", "heads", "blocks", "size", "shift"]


@triton.jit
def rows_of(mCu, batch, length, PACKED: tl.constexpr):
    """(first row, rows) of a sequence in its batch entry."""
    if PACKED:
        first = tl.load(mCu + batch)
        rows = tl.load(mCu + batch + 1) - first
    else:
        first = length * 0
        rows = length
    return first, rows


@triton.jit
def rows_there(start, size, rows):
    """Rows of a stretch that exist: by these its sum is divided."""
    return tl.minimum(start + size, rows) - tl.maximum(start, 0)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)
def mean_kernel(
    mX,
    tX_0,
    tX_1,
    tX_2,
    mOut,
    mCu,
    batches,
    length,
    dim,
    heads,
    blocks,
    size,
    shift,
    divisor: tl.constexpr,
    PACKED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """mOut (batches, blocks, heads, dim) float32: stretch j is rows j·size + shift … + size - 1, of those that exist;
    0 where none does."""
    tX = (tX_0, tX_1, tX_2)
    block, batch, head = locate(blocks, batches, heads, INTERPRETED)
    first, rows = rows_of(mCu, batch, length, PACKED)
    start = block * size + shift
    d = tl.arange(0, BLOCK_D)
    rSum = tl.zeros([BLOCK_D], tl.float32)
    for step in range(0, size, TILE):
        at = step + tl.arange(0, TILE)
        row = start + at
        there = ((at < size) & (row >= 0) & (row < rows))[:, None] & columns_inside(dim, BLOCK_D, ALIGNED)
        place = wide_product(batch, tX[0]) + wide_product(head, tX[2]) + wide_product(first + row, tX[1])
        mRows = row_pointers(mX, place[:, None], BLOCK_D, ALIGNED)
        rSum += tl.sum(widen(tl.load(mRows, mask=there, other=0.0)), 0)
    rMean = rSum / tl.maximum(divisor(start, size, rows), 1).to(tl.float32)
    place = wide_product((batch * blocks + block) * heads + head, dim)
    tl.store(mOut + place + d, rMean, mask=d < dim)


_BACK = ["mA", "mB", "mMean", "mOut", "mCu", "batches", "length", "dim", "heads", "blocks", "size", "longest"]


@triton.jit
def share_of_mean(rMean, count):
    """What a row has of its block's mean: one of `count` equal parts."""
    return rMean / count.to(tl.float32)


@triton.jit(do_not_specialize=[*_BACK, "factor"], do_not_specialize_on_alignment=_BACK)
def key_gradient_kernel(
    mA,
    mB,
    mMean,
    mOut,
    mCu,
    batches,
    length,
    dim,
    heads,
    blocks,
    size,
    longest,
    factor,
    share: tl.constexpr,
    add: tl.constexpr,
    DTYPE: tl.constexpr,
    PACKED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """mOut, rows of dim elements in each head, contiguous: factor · (A + B) and what each row has of the gradient of
    its block's mean, mMean (batches, blocks, heads, dim) float32; added in float32, rounded once."""
    batch, tile, head = tile_of(tl.cdiv(longest, TILE), heads)
    first, rows = rows_of(mCu, batch, length, PACKED)
    row = tile * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & columns_inside(dim, BLOCK_D, ALIGNED)
    if PACKED:
        line = first + row
    else:
        line = wide_product(batch, length) + row
    place = wide_product(wide_product(line, heads) + head, dim)[:, None]
    block = row // size
    count = tl.minimum((block + 1) * size, rows) - block * size
    source = wide_product((wide_product(batch, blocks) + block) * heads + head, dim)[:, None]
    rMean = tl.load(row_pointers(mMean, source, BLOCK_D, ALIGNED), mask=inside, other=0.0)
    rA = widen(tl.load(row_pointers(mA, place, BLOCK_D, ALIGNED), mask=inside, other=0.0))
    rB = widen(tl.load(row_pointers(mB, place, BLOCK_D, ALIGNED), mask=inside, other=0.0))
    rSum = share(rMean, tl.maximum(count, 1)[:, None])
    rSum = add(rSum, rA * factor, DTYPE, INTERPRETED)
    rSum = add(rSum, rB * factor, DTYPE, INTERPRETED)
    mTile = row_pointers(mOut, place, BLOCK_D, ALIGNED)
    tl.store(mTile, narrow(rSum, DTYPE, INTERPRETED), mask=inside)
