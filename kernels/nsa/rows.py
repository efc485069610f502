"""Device helpers of the kernels that hold a tile of rows of one head: which rows, and where they lie in memory.

NOTE [aligned] ALIGNED promises for all tensors whose rows a launch holds that these rows are contiguous, begin at
multiples of 16 bytes and are multiples of 8 elements long. Loads are then 16 bytes wide, with predicates that are the
same for all of these bytes, and a thread holds 8 columns of a few rows. Else it holds one column of every row, and what
is computed for a row is computed by every thread. The hints hold where a pointer is made, and not for the argument of a
function.
"""

import triton
import triton.language as tl

VECTOR: tl.constexpr = tl.constexpr(8)  # elements of 16 bytes, of two bytes each


@triton.jit
def tile_of(tiles, heads):
    """(batch entry, tile, head) of this program: heads are neighbours, as their rows are in memory."""
    index = tl.program_id(0)
    line = index // heads
    return line // tiles, line % tiles, index % heads


@triton.jit
def row_pointers(mX, offsets, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers (…, BLOCK_D) to rows that begin `offsets` (…, 1), int64, elements after mX."""
    mRows = mX + (offsets + tl.arange(0, BLOCK_D)[None, :])
    if ALIGNED:
        mRows = tl.max_contiguous(tl.multiple_of(mRows, [1, 16]), [1, BLOCK_D])
    return mRows


@triton.jit
def columns_inside(dim, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr):
    """bool (1, BLOCK_D): the columns that a row has."""
    d = tl.arange(0, BLOCK_D)[None, :]
    if ALIGNED:
        inside = d // VECTOR < dim // VECTOR
    else:
        inside = d < dim
    return inside
