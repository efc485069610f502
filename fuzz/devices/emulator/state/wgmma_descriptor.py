"""Matrices in shared memory as wgmma's descriptors name them: which 16 bytes hold which numbers. Compiled by numba.

A descriptor (PTX, "Matrix Descriptor Format") is the start address, the leading and the stride byte offset, all in
units of 16 bytes (bits 0, 16 and 32), a base offset (bit 49) and the swizzle (bit 62: none, 128, 64, 32 bytes). The
matrix is made of 8 x 8 blocks of 16-bit numbers, each of eight rows of 16 bytes: along K where K is the contiguous
dimension, along M or N (`transposed`) where that is. What the offsets mean follows PTX's canonical layouts.
"""

from __future__ import annotations

from numba import njit

OFFSET = 0x3FFF


@njit(inline="always")
def pitch(descriptor):
    """Bytes from one row of a block to the next: the width of the swizzle's pattern."""
    swizzle = descriptor >> 62 & 3
    return 16 if swizzle == 0 else 256 >> swizzle


@njit
def row_of(descriptor, transposed, group, half, row):
    """Address in shared memory of 16 bytes: row `row` (0 … 7) of the block that holds rows 8 group … of M or N and
    columns 8 half … of K. Its rows are those of M or N, or where `transposed` of K."""
    start = (descriptor & OFFSET) << 4
    leading = (descriptor >> 16 & OFFSET) << 4
    stride = (descriptor >> 32 & OFFSET) << 4
    width = pitch(descriptor)
    a = start + row * width
    if not transposed:
        a += group * stride + half * (leading if width == 16 else 16)
    elif width == 16:
        a += group * stride + half * leading
    else:
        beside = 4 - (descriptor >> 62 & 3)  # binary logarithm of the blocks side by side in a row of the pattern
        a += (group & (1 << beside) - 1) * 16 + (group >> beside) * leading + half * stride
    return a ^ ((a >> 7) - (descriptor >> 49 & 7) << 4 & width - 16)


@njit
def bounds(descriptor, transposed, first, last):
    """(low, high): every byte of the blocks of groups first … last - 1 lies from low to before high."""
    low, high = 1 << 30, -1
    for group in range(first, last):
        for half in range(2):
            for row in range(8):
                a = row_of(descriptor, transposed, group, half, row)
                low, high = min(low, a), max(high, a + 16)
    return low, high


@njit
def holds(descriptor, transposed, first, last, low, high):
    """True when a byte from `low` to before `high` is part of those blocks."""
    for group in range(first, last):
        for half in range(2):
            for row in range(8):
                a = row_of(descriptor, transposed, group, half, row)
                if a < high and low < a + 16:
                    return True
    return False
