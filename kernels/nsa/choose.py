"""The choice of blocks as a kernel: all that `kernels.nsa.choice` does to a row of scores, in one program.

NOTE [threshold] The number-th largest score is found bit by bit, as the largest number that enough keys reach: a key is
a score's bits, in an order in which larger scores are larger integers, so that nothing is sorted. What is above it is
chosen, and of equal ones the first, as far as there are places. A running sum over the columns gives each chosen block
its place: blocks ascend.
"""

import triton
import triton.language as tl

from kernels.nsa.means import rows_of
from kernels.sdpa.forward import locate
from kernels.sdpa.tiles import wide_product

LEAST: tl.constexpr = tl.constexpr(-(1 << 31))  # below all keys
_RUNTIME = ["mScore", "mCu", "mBlocks", "batches", "heads", "length", "first", "chunk", "tiles", "width"]
_RUNTIME += ["group", "number", "places", "size", "per_tile"]


@triton.jit
def may_choose(block, tile, size, per_tile, CAUSAL: tl.constexpr):
    """`kernels.nsa.choice.allowed_blocks`."""
    if CAUSAL == 0:
        found = block >= 0
    elif CAUSAL == 1:
        found = block * size < (tile + 1) * per_tile
    else:
        found = (block + 1) * size <= tile * per_tile + 1
    return found


@triton.jit
def is_first(rank, places):
    """Which of equal scores are chosen, ranked from 1 by their blocks, where there are `places` for them."""
    return rank <= places


@triton.jit(do_not_specialize=[*_RUNTIME, "scale"], do_not_specialize_on_alignment=_RUNTIME)
def choose_kernel(
    mScore,
    mCu,
    mBlocks,
    batches,
    heads,
    length,
    first,
    chunk,
    tiles,
    width,
    group,
    number,
    places,
    size,
    per_tile,
    scale,
    allowed: tl.constexpr,
    chosen_of_equal: tl.constexpr,
    CAUSAL: tl.constexpr,
    PACKED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The blocks that `chunk` tiles from `first` on choose, each of every head; WIDTH >= width and >= places.

    mScore   float32 (batches, heads // group, chunk · group, width): products of means, to be multiplied by scale
    mBlocks  int32 (batches, heads, tiles, places): `number` blocks at most, ascending, then -1
    """
    at, batch, head = locate(chunk, batches, heads, INTERPRETED)
    _, rows = rows_of(mCu, batch, length, PACKED)
    tile = first + at
    block = tl.arange(0, WIDTH)
    blocks = tl.where(tile * per_tile < rows, tl.cdiv(rows, size), 0)
    there = (block < tl.minimum(blocks, width)) & allowed(block, tile, size, per_tile, CAUSAL)
    line = wide_product(batch * (heads // group) + head // group, chunk) + at
    place = wide_product(line * group + head % group, width)
    rScore = tl.load(mScore + place + block, mask=there, other=0.0) * scale
    rBits = tl.where(rScore == 0.0, 0.0, rScore).to(tl.int32, bitcast=True)  # -0 is 0
    rKey = tl.maximum(rBits ^ ((rBits >> 31) & 0x7FFFFFFF), LEAST + 1)
    rKey = tl.where(there, rKey, LEAST)
    least = tl.full([], LEAST, tl.int32)
    for step in range(32):
        more = least ^ (tl.full([], 1, tl.int32) << (31 - step))  # the first bit is the sign's, and clear is more
        least = tl.where(tl.sum((rKey >= more).to(tl.int32), 0) >= number, more, least)
    rAbove = (rKey > least).to(tl.int32)
    rEqual = ((rKey == least) & there).to(tl.int32)
    rTaken = rAbove + (rEqual & chosen_of_equal(tl.cumsum(rEqual, 0), number - tl.sum(rAbove, 0)).to(tl.int32))
    mRow = mBlocks + wide_product(wide_product(batch * heads + head, 1) * tiles + tile, places)
    tl.store(mRow + tl.cumsum(rTaken, 0) - 1, block, mask=rTaken > 0)
    tl.store(mRow + block, -1, mask=(block >= tl.sum(rTaken, 0)) & (block < places))
