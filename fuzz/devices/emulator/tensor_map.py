"""Tensor maps: the 128 bytes that describe a tensor to the tensor memory accelerator, as Hopper lays them out.

NVIDIA does not publish the layout. This is what the driver of an H200 writes (`conformance/map_agreement.py` compares
every bit), and its `tensormap.replace`. Codes of types, swizzles, interleave and fill are those of `tensormap.replace`
in the PTX ISA.

Words of 32 bits: 0, 1 address; 2 properties; 3 … 6 strides in units of 16 bytes, 7 their upper bits, four each;
8 … 12 sizes less one; 13 element strides less one, three bits each, and in its last byte the first size of the box less
one; 14 the other sizes of the box less one, a byte each; 16 bytes of the box; 18 bytes after which its swizzle repeats.
Copies do not need words 16 and 18: `tensormap.replace` leaves them as they are. The host code of CuTe DSL 4.8.1 writes
neither, but bit 1 of word 2, which the driver does not set; copies ignore it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

SIZE = 128  # bytes
ADDRESS, PROPERTIES, STRIDES, UPPER_STRIDES, SIZES, ELEMENT_STRIDES, BOX = 0, 8, 12, 28, 32, 52, 55  # offsets in bytes
BOX_BYTES, REPEAT = 64, 72
# properties: first bit of each, bits of each; those of FREE are zero in every map
RANK_BIT, ELEMENT_BIT, INTERLEAVE_BIT, SWIZZLE_BIT, FILL_BIT, ROUND_BIT, PROMOTION_BIT = 4, 7, 11, 13, 15, 16, 17
RANK_BITS, ELEMENT_BITS, INTERLEAVE_BITS, SWIZZLE_BITS, FILL_BITS, ROUND_BITS = 3, 4, 2, 2, 1, 1
FREE = 0b1101
MOST_DIMENSIONS = 5
MOST_SIZE = 1 << 32
MOST_SHARED = 227 << 10  # bytes
MOST_BOX = 256  # elements of a box along one dimension
MOST_ELEMENT_STRIDE = 8
STRIDE_LIMIT = 1 << 40
STRIDE_UNIT = 4  # bits of a stride that a map has not

# codes of element types, and bytes of each (0: see NUMBER_BITS). U4_PADDED and U6_PADDED have 8 and 4 bytes of padding
# after each 16 numbers in shared memory
(U8, U16, U32, S32, U64, S64, F16, F32, F32_FTZ, F64, BF16, TF32, TF32_FTZ, U4, U4_PADDED, U6_PADDED) = range(16)
ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4, 0, 0, 0)
NUMBER_BITS = (*(8 * n for n in ELEMENT_BYTES[:U4]), 4, 4, 6)  # in the tensor
HELD_U4 = 11  # the code of U4 in a map
NO_SWIZZLE, SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 = range(4)
FILL_ZERO, FILL_NAN = range(2)
REPEATS = (16, 256, 512, 1024)  # bytes after which each swizzle repeats


def held_element(code: int) -> tuple[int, int]:
    """(the code of a type in a map, 1 if loads round to tf32): tf32 is f32 with rounding. Those below 8 bits are as
    CuTe DSL writes them; no driver was asked."""
    if code >= U4:
        return code - U4 + HELD_U4, 0
    return {TF32: (F32, 1), TF32_FTZ: (F32_FTZ, 1)}.get(code, (code, 0))


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the tensor memory accelerator sees it; the first dimension is the one of stride 1.

    address          of its first element, as the kernel knows it; a multiple of 16
    element          code of its elements' type
    sizes            of each dimension, in elements; 1 to 5 dimensions
    strides          of each dimension but the first, in bytes; multiples of 16
    box              elements of a box along each dimension, 1 to 256
    element_strides  a box takes every n-th element along each dimension, 1 to 8; the first is ignored
    swizzle, interleave, fill  their codes; fill is what a load gives outside the tensor
    promotion        bytes that a load brings to the L2 cache at least: 0 none, 1 64, 2 128, 3 256; changes no result
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
    promotion: int = 0

    def box_shape(self) -> tuple[int, ...]:
        """Elements that a copy moves along each dimension; the first dimension's element stride does not count."""
        steps = (1, *(self.element_strides or (1,) * len(self.sizes))[1:])
        return tuple(-(-n // step) for n, step in zip(self.box, steps, strict=True))

    def encode(self) -> bytes:
        """The 128 bytes. Raises ValueError for what cuTensorMapEncodeTiled refuses."""
        self._check()
        rank = len(self.sizes)
        empty = [1] * (MOST_DIMENSIONS - rank)
        code, rounds = held_element(self.element)
        properties = (
            rank - 1 << RANK_BIT | code << ELEMENT_BIT | self.interleave << INTERLEAVE_BIT | rounds << ROUND_BIT
            | self.swizzle << SWIZZLE_BIT | self.fill << FILL_BIT | self.promotion << PROMOTION_BIT
        )  # fmt: skip
        strides = [*(x >> STRIDE_UNIT for x in self.strides), *[0] * (MOST_DIMENSIONS - rank)]
        upper = sum(x >> 32 << 4 * i for i, x in enumerate(strides))
        steps = self.element_strides or (1,) * rank
        words = [properties, *(x & 0xFFFFFFFF for x in strides), upper, *(n - 1 for n in (*self.sizes, *empty)),
                 sum(n - 1 << 3 * i for i, n in enumerate(steps))]  # fmt: skip
        data = struct.pack(f"<Q{len(words)}I", self.address, *words)
        data = (data[:BOX] + bytes(n - 1 for n in (*self.box, *empty))).ljust(BOX_BYTES, b"\0")
        size = self._bytes(tuple(n // step for n, step in zip(self.box, steps, strict=True)))  # rounded down
        return (data + struct.pack("<3I", size, 0, REPEATS[self.swizzle])).ljust(SIZE, b"\0")

    def _bytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * NUMBER_BITS[self.element] // 8

    def _check(self) -> None:
        rank = len(self.sizes)
        if not 1 <= rank <= MOST_DIMENSIONS or len(self.box) != rank or len(self.strides) != rank - 1:
            raise ValueError(
                f"tensor map: {rank} sizes, {len(self.strides)} strides and {len(self.box)} sizes of a box; there are "
                "1 to 5 dimensions, and the first has no stride"
            )
        if not all(1 <= n <= MOST_SIZE for n in self.sizes):
            raise ValueError(f"tensor map: sizes {self.sizes}; each dimension must have 1 to 2**32 elements")
        for stride in self.strides:
            if stride % 16 or not 0 <= stride < STRIDE_LIMIT:
                raise ValueError(f"tensor map: a stride of {stride} bytes; it must be a multiple of 16 below 2**40")
        if not all(1 <= n <= MOST_BOX for n in self.box):
            raise ValueError(f"tensor map: a box of {self.box}; each dimension must have 1 to {MOST_BOX} elements")
        if not all(1 <= n <= MOST_ELEMENT_STRIDE for n in self.element_strides):
            raise ValueError(f"tensor map: element strides {self.element_strides}; each must be 1 to 8")
        if self._bytes(self.box_shape()) > MOST_SHARED:
            raise ValueError(f"tensor map: a box of {self.box} has more bytes than a CTA can have of shared memory")
