"""Tensor maps: the 128 bytes that describe a tensor to the tensor memory accelerator, as the emulator lays them out.

NVIDIA does not publish its layout. A kernel that fills a map field by field (`tensormap.replace`) and a host that
encodes one (`TensorMap.encode`) both write this one. Codes of element types, swizzles, interleave and fill are those of
`tensormap.replace` in the PTX ISA ("tensormap.replace", table of field values).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from numba import njit

from fuzz.devices.emulator.state.intrinsics import i64, u32

SIZE = 128  # bytes
# offsets in bytes; RANK holds the rank less one with MARK above it; lists have an entry for each dimension
ADDRESS, RANK, ELEMENT, INTERLEAVE, SWIZZLE, FILL, ATOMICITY = 0, 8, 12, 16, 20, 24, 28
SIZES, ELEMENT_STRIDES, BOX, STRIDES = 32, 52, 72, 96
MARK = 0x7E4500
MOST_DIMENSIONS = 5
MOST_BOX = 256  # elements of a box along one dimension
MOST_ELEMENT_STRIDE = 8
STRIDE_LIMIT = 1 << 40

# codes of element types, and bytes of each
(U8, U16, U32, S32, U64, S64, F16, F32, F32_FTZ, F64, BF16, TF32, TF32_FTZ) = range(13)
ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
NO_SWIZZLE, SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 = range(4)
FILL_ZERO, FILL_NAN = range(2)

# why a map is refused; report/kinds.py has the words
(VALID, NOT_A_MAP, BAD_RANK, BAD_ELEMENT, BAD_ADDRESS, BAD_STRIDE, BAD_BOX, BAD_ROW, BAD_SPAN, BAD_ELEMENT_STRIDE,
 BAD_FILL, NO_INTERLEAVE, NO_ATOMICITY, NO_FTZ) = range(14)  # fmt: skip


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the tensor memory accelerator sees it; the first dimension is the one of stride 1.

    address          of its first element, as the kernel knows it; a multiple of 16
    element          code of its elements' type
    sizes            of each dimension, in elements; 1 to 5 dimensions
    strides          of each dimension but the first, in bytes; multiples of 16
    box              elements of a box along each dimension, 1 to 256
    element_strides  a box takes every n-th element along each dimension; the first is ignored
    swizzle, interleave, fill  their codes; fill is what a load gives outside the tensor
    """

    address: int
    element: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = field(default=())
    swizzle: int = NO_SWIZZLE
    interleave: int = 0
    fill: int = FILL_ZERO

    def encode(self) -> bytes:
        """The 128 bytes. Whether they describe a tensor that can be copied is looked at by the kernel's copies."""
        rank = len(self.sizes)
        if not 1 <= rank <= MOST_DIMENSIONS or len(self.box) != rank or len(self.strides) != rank - 1:
            raise ValueError(f"tensor map: {rank} sizes, {len(self.strides)} strides and {len(self.box)} sizes of a "
                             "box; there are 1 to 5 dimensions, and the first has no stride")  # fmt: skip
        empty = [0] * (MOST_DIMENSIONS - rank)
        rows = (self.sizes, self.element_strides or (1,) * rank, self.box)
        data = struct.pack("<Q6I", self.address, MARK | rank - 1, self.element, self.interleave, self.swizzle,
                           self.fill, 0)  # fmt: skip
        data += b"".join(struct.pack("<5I", *row, *empty) for row in rows)
        data = data.ljust(STRIDES, b"\0") + struct.pack("<4Q", *self.strides, *empty)
        return data.ljust(SIZE, b"\0")


@njit
def element_bytes(map_):
    """Bytes of an element."""
    code = u32(map_ + ELEMENT)
    if code == U8:
        return 1
    if code in (U16, F16, BF16):
        return 2
    return 8 if code in (U64, S64, F64) else 4


@njit
def is_float(map_):
    code = u32(map_ + ELEMENT)
    return code >= F16


@njit
def box_of(map_, dimension):
    """Elements that a box has along a dimension, where it takes every n-th."""
    size = u32(map_ + BOX + 4 * dimension)
    if dimension == 0:
        return size
    step = u32(map_ + ELEMENT_STRIDES + 4 * dimension)
    return (size + step - 1) // step


@njit
def span(map_):
    """Bytes that a swizzle permutes 16 bytes within; 16 without a swizzle."""
    swizzle = u32(map_ + SWIZZLE)
    return 16 << swizzle


@njit
def refusal(map_, rank):
    """Why a copy of `rank` dimensions cannot use the map at this host address: VALID, BAD_… or NO_… (not emulated)."""
    head = u32(map_ + RANK)
    if head & ~7 != MARK:
        return NOT_A_MAP
    if (head & 7) + 1 != rank:
        return BAD_RANK
    if u32(map_ + ELEMENT) > TF32_FTZ:
        return BAD_ELEMENT
    if u32(map_ + ELEMENT) in (F32_FTZ, TF32, TF32_FTZ):
        return NO_FTZ
    if u32(map_ + INTERLEAVE):
        return NO_INTERLEAVE
    if u32(map_ + ATOMICITY) or u32(map_ + SWIZZLE) > SWIZZLE_128:
        return NO_ATOMICITY
    if i64(map_ + ADDRESS) & 15:
        return BAD_ADDRESS
    if u32(map_ + FILL) and not is_float(map_):
        return BAD_FILL
    for i in range(rank):
        if not 0 < u32(map_ + BOX + 4 * i) <= MOST_BOX:
            return BAD_BOX
        if i:
            stride = i64(map_ + STRIDES + 8 * (i - 1))
            if stride & 15 or stride < 0 or stride >= STRIDE_LIMIT:
                return BAD_STRIDE
            if not 0 < u32(map_ + ELEMENT_STRIDES + 4 * i) <= MOST_ELEMENT_STRIDE:
                return BAD_ELEMENT_STRIDE
    row = box_of(map_, 0) * element_bytes(map_)
    if row & 15:
        return BAD_ROW
    if u32(map_ + SWIZZLE) and row != span(map_):
        return BAD_SPAN
    return VALID
