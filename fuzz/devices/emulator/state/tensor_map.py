"""Tensor maps as the compiled interpreter reads them, and why a copy refuses one. Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.state.intrinsics import i64, u8, u32
from fuzz.devices.emulator.tensor_map import (
    ADDRESS,
    BF16,
    BOX,
    ELEMENT_BIT,
    ELEMENT_BITS,
    ELEMENT_STRIDES,
    F16,
    F32,
    F32_FTZ,
    F64,
    FILL_BIT,
    FILL_BITS,
    FREE,
    HELD_U4,
    INTERLEAVE_BIT,
    INTERLEAVE_BITS,
    PROPERTIES,
    RANK_BIT,
    RANK_BITS,
    ROUND_BIT,
    ROUND_BITS,
    S64,
    SIZE,
    SIZES,
    STRIDE_UNIT,
    STRIDES,
    SWIZZLE_BIT,
    SWIZZLE_BITS,
    TF32,
    TF32_FTZ,
    U4,
    U4_PADDED,
    U6_PADDED,
    U8,
    U16,
    U64,
    UPPER_STRIDES,
)

# why a map is refused; report/kinds.py has the words
(VALID, NOT_A_MAP, BAD_RANK, BAD_ELEMENT, BAD_ADDRESS, BAD_ROW, BAD_SPAN, BAD_FILL, BAD_REDUCTION, NO_INTERLEAVE,
 NO_PADDED_STORE) = range(11)  # fmt: skip


CHUNK = 16  # bytes that a swizzle keeps together; rows, coordinates and stores count in them too


@njit(inline="always")
def _property(map_, first, bits):
    return u32(map_ + PROPERTIES) >> first & (1 << bits) - 1


@njit
def element(map_):
    """Code of the elements' type."""
    code = _property(map_, ELEMENT_BIT, ELEMENT_BITS)
    if _property(map_, ROUND_BIT, ROUND_BITS) and code in (F32, F32_FTZ):
        return TF32 if code == F32 else TF32_FTZ
    return code - HELD_U4 + U4 if code >= HELD_U4 else code


@njit
def element_bytes(map_):
    """Bytes of an element; 1 for those of less."""
    code = element(map_)
    if code == U8 or code >= U4:
        return 1
    if code in (U16, F16, BF16):
        return 2
    return 8 if code in (U64, S64, F64) else 4


@njit
def element_bits(map_):
    """Bits of an element in the tensor."""
    code = element(map_)
    return 4 if code in (U4, U4_PADDED) else 6 if code == U6_PADDED else 8 * element_bytes(map_)


@njit
def chunk_bytes(map_):
    """Bytes of the tensor that fill 16 bytes of shared memory: fewer where there is padding."""
    code = element(map_)
    return 8 if code == U4_PADDED else 12 if code == U6_PADDED else CHUNK


@njit
def row_bytes(map_):
    """Bytes of shared memory that a row of a box takes, without those of a swizzle's span beyond it."""
    return box_of(map_, 0) * element_bits(map_) // 8 * CHUNK // chunk_bytes(map_)


@njit
def fills_nan(map_):
    """1 if a load gives NaN outside the tensor."""
    return _property(map_, FILL_BIT, FILL_BITS)


@njit
def size_of(map_, dimension):
    """Elements of the tensor along a dimension."""
    return u32(map_ + SIZES + 4 * dimension) + 1 & 0xFFFFFFFF


@njit
def stride_of(map_, dimension):
    """Bytes from one element to the next along a dimension from 1 on."""
    low = u32(map_ + STRIDES + 4 * (dimension - 1))
    upper = u32(map_ + UPPER_STRIDES) >> 4 * (dimension - 1) & 15
    return (upper << 32 | low) << STRIDE_UNIT


@njit
def step_of(map_, dimension):
    """A box takes every n-th element along this dimension."""
    return (u32(map_ + ELEMENT_STRIDES) >> 3 * dimension & 7) + 1 if dimension else 1


@njit
def box_of(map_, dimension):
    """Elements that a box has along a dimension, where it takes every n-th."""
    return (u8(map_ + BOX + dimension) + step_of(map_, dimension)) // step_of(map_, dimension)


@njit
def span(map_):
    """Bytes that a swizzle permutes 16 bytes within; 16 without a swizzle."""
    return 16 << _property(map_, SWIZZLE_BIT, SWIZZLE_BITS)


@njit
def pitch(map_):
    """Bytes of shared memory from one row of a box to the next: with a swizzle its whole span."""
    return span(map_) if span(map_) > CHUNK else row_bytes(map_)


@njit
def _empty(map_):
    for i in range(0, SIZE, 8):  # noqa: SIM110 - numba wants a loop
        if i64(map_ + i):
            return False
    return True


@njit
def refusal(map_, rank):
    """Why a copy of `rank` dimensions cannot use the map at this host address: VALID, BAD_… or NO_… (not emulated)."""
    if u32(map_ + PROPERTIES) & FREE or _empty(map_):
        return NOT_A_MAP
    if _property(map_, RANK_BIT, RANK_BITS) + 1 != rank:
        return BAD_RANK
    code = element(map_)
    if code > U6_PADDED:
        return BAD_ELEMENT
    if _property(map_, INTERLEAVE_BIT, INTERLEAVE_BITS):
        return NO_INTERLEAVE
    if i64(map_ + ADDRESS) & 15:
        return BAD_ADDRESS
    if fills_nan(map_) and (code < F16 or code >= U4):
        return BAD_FILL
    row = row_bytes(map_)
    if row & 15:
        return BAD_ROW
    if span(map_) > CHUNK and row > span(map_):
        return BAD_SPAN
    return VALID
