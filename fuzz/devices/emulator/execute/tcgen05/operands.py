"""Operands of tcgen05.mma as plain matrices of 32-bit numbers: A and B unpacked, an instruction descriptor taken apart.
Compiled by numba.

K takes 32 bytes for every type. A matrix in shared memory is read in chunks of 16 bytes
(`state/tcgen05_descriptor.py`), one in tensor memory in words of 32 bits.

A chunk of kind::f8f6f4 and kind::mxf8f6f4 has 16 numbers of every type: those of 6 or 4 bits lie one after the other at
its start, and the rest is padding; in tensor memory each has a byte, 6 bits in its lower six, 4 bits in bits 2 to 5. A
chunk of kind::mxf4 and kind::mxf4nvf4 has 32 numbers, two a byte, in tensor memory too.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import tensor_reads
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address_in, host_address
from fuzz.devices.emulator.state.intrinsics import f16_f32, f32_bits, s8, u8, u16, u32, w8, w32
from fuzz.devices.emulator.state.tcgen05_descriptor import k_major, mn_major

# types of A and B; PACKED is e2m1 without padding
F16, BF16, TF32, E4M3, E5M2, U8, S8, UNKNOWN, E2M3, E3M2, E2M1, PACKED = range(12)
SIGN = 1 << 31
A_MATRIX = 0  # in the scratch memory: 128 rows of at most 64 numbers
B_MATRIX = 32768  # at most 64 rows of 256
SUMS = 98304  # 16 rows of D
FLOAT8 = 114688  # as f32: every e4m3, then every e5m2,
SMALL = FLOAT8 + 2048  # every e2m3, e3m2 and e2m1,
FACTORS = SMALL + 576  # and every ue8m0
CHUNK = 16


def narrow_floats() -> np.ndarray:
    """The f32 patterns of narrow floats, int32: 256 each of e4m3 and e5m2, 64 each of e2m3 and e3m2, 16 of e2m1, 256 of
    ue8m0."""
    every = torch.arange(256, dtype=torch.uint8)
    kinds = (torch.float8_e4m3fn, torch.float8_e5m2)
    powers = np.where(np.arange(256) == 255, np.nan, np.exp2(np.arange(256) - 127.0)).astype(np.float32)
    return np.concatenate([
        *(every.view(kind).float().view(torch.int32).numpy() for kind in kinds),
        *(_small(*form).view(np.int32) for form in ((2, 3), (3, 2), (2, 1))), powers.view(np.int32),
    ])  # fmt: skip


def _small(exponent: int, mantissa: int) -> np.ndarray:
    """Every number of a format with these bits, a sign, and no infinity or NaN, as float32."""
    code = np.arange(1 << 1 + exponent + mantissa)
    power, fraction = code >> mantissa & (1 << exponent) - 1, (code & (1 << mantissa) - 1) / (1 << mantissa)
    least = 2 - (1 << exponent - 1)  # the exponent of the smallest normal number
    size = np.where(power == 0, fraction * 2.0**least, (1 + fraction) * np.exp2(power + least - 1.0))
    return np.where(code >> exponent + mantissa, -size, size).astype(np.float32)


@njit
def type_of(kind, code):
    """The type that an instruction descriptor's field `code` means for the kind of product."""
    if kind == op.TC_F16:
        return F16 if code == 0 else BF16 if code == 1 else UNKNOWN
    if kind == op.TC_TF32:
        return TF32 if code == 2 else UNKNOWN
    if kind == op.TC_F8F6F4 or kind == op.TC_MXF8F6F4:
        if code == 0 or code == 1:
            return E4M3 + code
        return E2M3 + code - 3 if 3 <= code <= 5 else UNKNOWN
    if kind == op.TC_MXF4 or kind == op.TC_MXF4NVF4:
        return PACKED if code == 1 else UNKNOWN
    return U8 if code == 0 else S8 if code == 1 else UNKNOWN


@njit(inline="always")
def size_of(kind):
    """Bytes of a number of the type, its padding included; 1 for PACKED, which has half of one."""
    return 4 if kind == TF32 else 2 if kind <= BF16 else 1


@njit
def numbers_of(kind):
    """Numbers in the 32 bytes of K."""
    return 64 if kind == PACKED else 32 // size_of(kind)


@njit(inline="always")
def number(m, kind, at, flip):
    """The number at `at` as an f32 pattern, its sign flipped by `flip`, or as an integer."""
    if kind == BF16:
        return u16(at) << 16 ^ flip
    if kind == F16:
        return f32_bits(f16_f32(u16(at))) ^ flip
    if kind == TF32:  # the last 13 bits are not part of a tf32
        return u32(at) & 0xFFFFE000 ^ flip
    if kind == E4M3:
        return u32(m.k[st.K_TENSOR_SCRATCH] + FLOAT8 + 4 * u8(at)) ^ flip
    if kind == E5M2:
        return u32(m.k[st.K_TENSOR_SCRATCH] + FLOAT8 + 1024 + 4 * u8(at)) ^ flip
    if kind == U8:
        return u8(at)
    return s8(at)


@njit
def used_of(bits):
    """Bytes of a chunk that hold numbers of so many bits, 16 of them where there is padding; the rest is not read."""
    return 2 * bits if bits else CHUNK


@njit
def padded_bits(kind):
    """Bits of a number of a type that is padded in shared memory, else 0."""
    return 4 if kind == E2M1 else 6 if kind in (E2M3, E3M2) else 0


@njit
def small(m, kind, code, flip):
    """A number of 6 or 4 bits as an f32 pattern; higher bits of `code` are ignored."""
    table = m.k[st.K_TENSOR_SCRATCH] + SMALL
    if kind == E2M3:
        return u32(table + 4 * (code & 63)) ^ flip
    if kind == E3M2:
        return u32(table + 256 + 4 * (code & 63)) ^ flip
    return u32(table + 512 + 4 * (code & 15)) ^ flip


@njit
def bits_at(at, e, bits):
    """Number `e` of those of 4 or 6 bits that lie one after the other from `at` on, as its bits and others above."""
    first = e * bits
    code = u8(at + (first >> 3)) >> (first & 7)
    if (first & 7) + bits > 8:
        code |= u8(at + (first >> 3) + 1) << (8 - (first & 7))
    return code


@njit
def expand(to, source, bits):
    """16 numbers of 4 or 6 bits become bytes, as tensor memory has them."""
    for e in range(16):
        code = bits_at(source, e, bits) & ((1 << bits) - 1)
        w8(to + e, code << 2 if bits == 4 else code)


@njit
def in_chunk(m, kind, at, e, flip):
    """Number `e` of the chunk of shared memory at `at`, as `number` gives it."""
    if kind < E2M3:
        return number(m, kind, at + e * size_of(kind), flip)
    return small(m, kind, bits_at(at, e, 6 if kind < E2M1 else 4), flip)


@njit
def unpack_shared(m, w, slot, pc, lane, descriptor, transposed, kind, flip, rows, to, row_stride, k_stride):
    """Writes a matrix of `rows` rows of M or N from the shared memory of the CTA in row `slot` to `to`: number (row, k)
    `row_stride` and `k_stride` bytes apart. False where it reaches out of shared memory."""
    per, used = numbers_of(kind) // 2, used_of(padded_bits(kind))
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    outer = rows // per if transposed else rows
    inner = 2 * per if transposed else 2
    whole = True
    for i in range(outer):
        for j in range(inner):
            a = mn_major(descriptor, i, j) if transposed else k_major(descriptor, i, j)
            h = host_address(m, w, pc, lane, op.SHARED_CLUSTER, address_in(m, w, slot, a), CHUNK)
            if h == 0:
                whole = False
                continue
            if checking:
                tensor_reads.note_read_of(m, w, slot, pc, lane, a, used)
            if transposed:
                at, step = to + i * per * row_stride + j * k_stride, row_stride
            else:
                at, step = to + i * row_stride + j * per * k_stride, k_stride
            for e in range(per):
                w32(at + e * step, in_chunk(m, kind, h, e, flip))
    return whole


@njit
def unpack_lane(m, source, kind, flip, to):
    """Writes a row of A from 8 words of a lane of tensor memory to `to`."""
    size = size_of(kind)
    for e in range(numbers_of(kind)):
        if kind < E2M3:
            w32(to + 4 * e, number(m, kind, source + e * size, flip))
        elif kind == PACKED:
            w32(to + 4 * e, small(m, kind, u8(source + (e >> 1)) >> 4 * (e & 1), flip))
        else:
            w32(to + 4 * e, small(m, kind, u8(source + e) >> (2 if kind == E2M1 else 0), flip))
