"""Operands of tcgen05.mma as plain matrices of 32-bit numbers: A and B unpacked, an instruction descriptor taken apart.
Compiled by numba.

K is 32 bytes wide for every type. A matrix in shared memory is read in chunks of 16 bytes
(`state/tcgen05_descriptor.py`), one in tensor memory in words of 32 bits.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import tensor_reads
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address_in, host_address
from fuzz.devices.emulator.state.intrinsics import f16_f32, f32_bits, s8, u8, u16, u32, w32
from fuzz.devices.emulator.state.tcgen05_descriptor import k_major, mn_major

F16, BF16, TF32, E4M3, E5M2, U8, S8, UNKNOWN = range(8)  # types of A and B
SIGN = 1 << 31
A_MATRIX = 0  # in the scratch memory: 128 rows of at most 32 numbers
B_MATRIX = 16384  # at most 32 rows of 256
SUMS = 49152  # 16 rows of D
FLOAT8 = 65536  # every e4m3, then every e5m2, as f32
CHUNK = 16


def float8() -> np.ndarray:
    """The f32 pattern of each 8-bit float: 256 of e4m3, then 256 of e5m2."""
    every = torch.arange(256, dtype=torch.uint8)
    both = [every.view(kind).float().view(torch.int32) for kind in (torch.float8_e4m3fn, torch.float8_e5m2)]
    return torch.cat(both).numpy()


@njit
def type_of(kind, code):
    """The type that an instruction descriptor's field `code` means for the kind of product."""
    if kind == op.TC_F16:
        return F16 if code == 0 else BF16 if code == 1 else UNKNOWN
    if kind == op.TC_TF32:
        return TF32 if code == 2 else UNKNOWN
    if kind == op.TC_F8F6F4:
        return E4M3 if code == 0 else E5M2 if code == 1 else UNKNOWN
    return U8 if code == 0 else S8 if code == 1 else UNKNOWN


@njit(inline="always")
def size_of(kind):
    """Bytes of a number of the type."""
    return 4 if kind == TF32 else 2 if kind <= BF16 else 1


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
def unpack_shared(m, w, slot, pc, lane, descriptor, transposed, kind, flip, rows, to, row_stride, k_stride):
    """Writes a matrix of `rows` rows of M or N from the shared memory of the CTA in row `slot` to `to`: number (row, k)
    `row_stride` and `k_stride` bytes apart. False where it reaches out of shared memory."""
    size = size_of(kind)
    per = CHUNK // size
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
                tensor_reads.note_read_of(m, w, slot, pc, lane, a, CHUNK)
            if transposed:
                at, step = to + i * per * row_stride + j * k_stride, row_stride
            else:
                at, step = to + i * row_stride + j * per * k_stride, k_stride
            for e in range(per):
                w32(at + e * step, number(m, kind, h + e * size, flip))
    return whole


@njit
def unpack_lane(m, source, kind, flip, to):
    """Writes a row of A from 8 words of a lane of tensor memory to `to`."""
    size = size_of(kind)
    for e in range(32 // size):
        w32(to + 4 * e, number(m, kind, source + e * size, flip))
