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
    F32_FTZ,
    F64,
    FILL_BIT,
    FILL_BITS,
    INTERLEAVE_BIT,
    INTERLEAVE_BITS,
    MARK,
    PROPERTIES,
    RANK_BIT,
    RANK_BITS,
    S64,
    SIZES,
    STRIDE_UNIT,
    STRIDES,
    SWIZZLE_128,
    SWIZZLE_BIT,
    SWIZZLE_BITS,
    TF32,
    TF32_FTZ,
    U8,
    U16,
    U64,
    UPPER_STRIDES,
)

# why a map is refused; report/kinds.py has the words
(VALID, NOT_A_MAP, BAD_RANK, BAD_ELEMENT, BAD_ADDRESS, BAD_ROW, BAD_SPAN, BAD_ELEMENT_STRIDE, BAD_FILL, NO_INTERLEAVE,
 NO_ATOMICITY, NO_FTZ) = range(12)  # fmt: skip


@njit(inline="always")
def _property(map_, first, bits):
    return u32(map_ + PROPERTIES) >> first & (1 << bits) - 1


@njit
def element(map_):
    """Code of the elements' type."""
    return _property(map_, ELEMENT_BIT, ELEMENT_BITS)


@njit
def element_bytes(map_):
    """Bytes of an element."""
    code = element(map_)
    if code == U8:
        return 1
    if code in (U16, F16, BF16):
        return 2
    return 8 if code in (U64, S64, F64) else 4


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
def refusal(map_, rank):
    """Why a copy of `rank` dimensions cannot use the map at this host address: VALID, BAD_… or NO_… (not emulated)."""
    if u32(map_ + PROPERTIES) & 15 != MARK:
        return NOT_A_MAP
    if _property(map_, RANK_BIT, RANK_BITS) + 1 != rank:
        return BAD_RANK
    code = element(map_)
    if code > TF32_FTZ:
        return BAD_ELEMENT
    if code in (F32_FTZ, TF32, TF32_FTZ):
        return NO_FTZ
    if _property(map_, INTERLEAVE_BIT, INTERLEAVE_BITS):
        return NO_INTERLEAVE
    if _property(map_, SWIZZLE_BIT, SWIZZLE_BITS) > SWIZZLE_128:
        return NO_ATOMICITY
    if i64(map_ + ADDRESS) & 15:
        return BAD_ADDRESS
    if fills_nan(map_) and code < F16:
        return BAD_FILL
    row = box_of(map_, 0) * element_bytes(map_)
    if row & 15:
        return BAD_ROW
    if span(map_) > 16 and row != span(map_):
        return BAD_SPAN
    return VALID
