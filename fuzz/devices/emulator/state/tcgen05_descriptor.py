"""Matrices in shared memory as the descriptors of tcgen05 name them: where 16 bytes of them lie. Compiled by numba.

A descriptor (PTX, "Shared memory descriptor") is the start address (bit 0), the leading and the stride dimension byte
offset (bits 16 and 32), all in units of 16 bytes, the constant 1 (bit 46), a base offset (bit 49), a mode of the
leading dimension (bit 52, 0: an offset) and the swizzle (bit 61). A chunk is 16 bytes of one row of K (K-major), or of
M or N (MN-major). What the offsets mean follows PTX's canonical layouts; docs/explanation/tensor_memory.md has the
rules with their sources.
"""

from __future__ import annotations

from numba import njit

OFFSET = 0x3FFF
NONE, SWIZZLE_128_BY_32, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32 = 0, 1, 2, 4, 6


@njit(inline="always")
def swizzle_of(descriptor):
    return descriptor >> 61 & 7


@njit
def is_valid(descriptor):
    """False for a descriptor whose fixed bits or swizzle are not what PTX defines, or of the absolute mode."""
    swizzle = swizzle_of(descriptor)
    return (
        descriptor >> 46 & 7 == 1
        and descriptor >> 52 & 0x1FF == 0
        and (swizzle == SWIZZLE_128_BY_32 or swizzle & 1 == 0)
    )


@njit(inline="always")
def swizzled(descriptor, swizzle, a):
    """Address `a` with the bits exchanged that the swizzle exchanges."""
    if swizzle == NONE:
        return a
    row = (a >> 7) - (descriptor >> 49 & 7)
    if swizzle == SWIZZLE_128_BY_32:
        return a ^ (row & 3) << 5
    return a ^ (row << 4 & (112 if swizzle == SWIZZLE_128 else 48 if swizzle == SWIZZLE_64 else 16))


@njit
def k_major(descriptor, row, chunk):
    """Address of chunk `chunk` (along K) of row `row` (of M or N)."""
    swizzle = swizzle_of(descriptor)
    a = (descriptor & OFFSET) << 4
    a += (row >> 3) * ((descriptor >> 32 & OFFSET) << 4)
    if swizzle == NONE:
        a += (row & 7) * 16 + chunk * ((descriptor >> 16 & OFFSET) << 4)
    else:
        a += (row & 7) * (128 if swizzle <= SWIZZLE_128 else 64 if swizzle == SWIZZLE_64 else 32) + chunk * 16
    return swizzled(descriptor, swizzle, a)


@njit
def mn_major(descriptor, chunk, k):
    """Address of chunk `chunk` (along M or N) of row `k` (of K)."""
    swizzle = swizzle_of(descriptor)
    leading, stride = (descriptor >> 16 & OFFSET) << 4, (descriptor >> 32 & OFFSET) << 4
    a = (descriptor & OFFSET) << 4
    if swizzle == NONE:
        return a + chunk * stride + (k >> 3) * leading + (k & 7) * 16
    if swizzle == SWIZZLE_128_BY_32:
        a += (chunk & 7) * 16 + (chunk >> 3) * leading + (k & 3) * 128 + (k >> 2) * stride
        return swizzled(descriptor, swizzle, a)
    blocks = 8 if swizzle == SWIZZLE_128 else 4 if swizzle == SWIZZLE_64 else 2
    a += chunk % blocks * 16 + chunk // blocks * leading + (k & 7) * 16 * blocks + (k >> 3) * stride
    return swizzled(descriptor, swizzle, a)
