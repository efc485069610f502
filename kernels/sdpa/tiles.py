"""Device helpers that move and multiply tiles: the only place that knows how a tensor is laid out.

A kernel names a tensor twice: `mX`, a pointer or a tensor descriptor, and `tX`, its strides in elements as the tuple
(batch, head, row, column). DESCRIPTOR says which of the two `mX` is.

NOTE [interpreter] Triton's interpreter multiplies bfloat16 tiles wrongly and truncates where a GPU rounds to nearest
even. So under INTERPRETED every tile is held as float32, and `round_to` rounds its values to what the GPU would hold.
"""

import triton
import triton.language as tl


@triton.jit
def widen(rX):
    """float32 copy of a tile; exact. bfloat16 goes through its bits, see NOTE [interpreter]."""
    if rX.dtype == tl.bfloat16:
        rWide = (rX.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        rWide = rX.to(tl.float32)
    return rWide


@triton.jit
def round_bits_to_bfloat16(rX):
    """The upper 16 bits (as uint32) of float32 values rounded to nearest even; NaN stays NaN."""
    bits = rX.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(rX == rX, rounded, 0x7FC0)


@triton.jit
def round_to(rX, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """A float32 tile as an operand of `dot`, rounded to DTYPE; see NOTE [interpreter]."""
    if not INTERPRETED:
        rRounded = rX.to(DTYPE)
    elif tl.bfloat16 == DTYPE:
        rRounded = (round_bits_to_bfloat16(rX) << 16).to(tl.float32, bitcast=True)
    else:
        rRounded = rX.to(DTYPE).to(tl.float32)
    return rRounded


@triton.jit
def narrow(rX, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """A float32 tile as DTYPE, ready to be stored; see NOTE [interpreter]."""
    if INTERPRETED and tl.bfloat16 == DTYPE:
        rNarrow = round_bits_to_bfloat16(rX).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        rNarrow = rX.to(DTYPE)
    return rNarrow


@triton.jit
def dot(rA, rB, rAcc):
    """rAcc + rA @ rB in float32; float32 operands are multiplied as float32, never as TF32."""
    return tl.dot(rA, rB, rAcc, input_precision="ieee")


@triton.jit
def load_tile(
    mX,
    tX,
    batch,
    head,
    row,
    rows,
    columns,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Rows row … row + TILE - 1 of (batch, head), (TILE, BLOCK_D); zeros outside (rows, columns)."""
    if DESCRIPTOR:
        rX = mX.load([batch, head, row, 0]).reshape([TILE, BLOCK_D])
    else:
        offsets, inside = tile_offsets(tX, batch, head, row, rows, columns, TILE, BLOCK_D)
        rX = tl.load(mX + offsets, mask=inside, other=0.0)
    if INTERPRETED:
        rX = widen(rX)
    return rX


@triton.jit
def store_tile(
    mX,
    tX,
    rX,
    batch,
    head,
    row,
    rows,
    columns,
    DTYPE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Mirror image of `load_tile`: a float32 tile is rounded to DTYPE; nothing outside (rows, columns) is written."""
    rX = narrow(rX, DTYPE, INTERPRETED)
    if DESCRIPTOR:
        mX.store([batch, head, row, 0], rX.reshape([1, 1, TILE, BLOCK_D]))
    else:
        offsets, inside = tile_offsets(tX, batch, head, row, rows, columns, TILE, BLOCK_D)
        tl.store(mX + offsets, rX, mask=inside)


@triton.jit
def tile_offsets(tX, batch, head, row, rows, columns, TILE: tl.constexpr, BLOCK_D: tl.constexpr):
    """Offsets in elements (int64, any strides) of a tile, and which of them lie inside the tensor."""
    index_row = row + tl.arange(0, TILE)[:, None]
    index_column = tl.arange(0, BLOCK_D)[None, :]
    offsets = wide_product(batch, tX[0]) + wide_product(head, tX[1])
    offsets += wide_product(index_row, tX[2]) + wide_product(index_column, tX[3])
    return offsets, (index_row < rows) & (index_column < columns)


@triton.jit
def wide_product(index, stride):
    """index * stride in int64: an offset can pass 2**31 where neither factor does."""
    return tl.cast(index, tl.int64) * stride
