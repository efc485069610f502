"""Block scales of tcgen05.mma: D = (A scale_A) (B scale_B) + D, with scale factors in tensor memory. Compiled by numba.

A row of A, or column of B, has 1, 2 or 4 factors, each for a block of its K. They lie in a word of tensor memory, from
the byte on that the instruction descriptor names: those of row i in lane i mod 32, column i / 32 from the address on,
and once more in each other 32 lanes. The factors multiply A and B, which is exact but for numbers beyond f32.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.tcgen05.operands import FACTORS, FLOAT8, UNKNOWN, type_of
from fuzz.devices.emulator.sanitize import tensor_shadow
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding
from fuzz.devices.emulator.state.intrinsics import bits_f32, f32_bits, u8, u32, w32
from fuzz.devices.emulator.state.tensor_memory import INSTRUCTION, LANE, ROW, SCALES, SHAPE, host_in, usable_in

LANES = 32  # that have all factors
CHECKED = st.CHECK_RACES | st.CHECK_UNINITIALISED
RESERVED = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6  # bits of the instruction descriptor
UE8M0 = 1 << 23


@njit
def well_formed(m, w, pc, lane, kind, idesc, pair, factors):
    """False, and a finding, for an instruction descriptor that PTX does not define for a kind with block scales."""
    rows, n = (idesc >> 24 & 31) << 4, (idesc >> 17 & 63) << 3
    packed = kind != op.TC_MXF8F6F4
    right = idesc & RESERVED == 0 and type_of(kind, idesc >> 7 & 7) != UNKNOWN
    right = right and type_of(kind, idesc >> 10 & 7) != UNKNOWN
    if packed:
        right = right and idesc >> 15 & 3 == 0  # never transposed
    else:
        right = right and idesc >> 31 & 1 == 0
    if kind != op.TC_MXF4NVF4 or factors == 2:
        right = right and idesc & UE8M0 != 0
    for first in (idesc >> 4 & 3, idesc >> 29 & 3):
        right = right and first % factors == 0
    if not right:
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, idesc, 0, INSTRUCTION)
        return False
    step = 16 if idesc >> 16 & 1 else 8
    if (rows != 128 and rows != 128 * pair) or n == 0 or n > 256 or n % (step * pair):
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, rows, n, SHAPE)
        return False
    return True


@njit
def apply(m, w, cta, ctas, pc, lane, where, first, idesc, rows, factors, to, row_stride, k_stride, k):
    """Multiplies a matrix at `to` of `rows` rows of M or N by its scale factors, which are at the address `where` of
    the tensor memory of the CTAs in rows `cta` to `cta` + `ctas` - 1. first: the byte of the first factor. False where
    they are not there."""
    column, columns = where & 0xFFFF, (rows + LANES - 1) // LANES
    if where >> 16 & 0x3FFF:
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, where & 0x3FFFFFFF, 0, LANE)
        return False
    for its in range(cta, cta + ctas):
        if not usable_in(m, w, its, pc, lane, column, columns):
            return False
        if m.k[st.K_CHECKS] & CHECKED:
            tensor_shadow.note_in(m, w, its, pc, 255, column, columns, tensor_shadow.MMA_SCALES)
    table = m.k[st.K_TENSOR_SCRATCH] + (FACTORS if idesc & UE8M0 else FLOAT8)
    width = k // factors
    for i in range(rows):
        at = host_in(m, cta, i % LANES, column + i // LANES) + first
        for f in range(factors):
            code = u8(at + f)
            for its in range(cta, cta + ctas):
                for part in range(4):
                    there = host_in(m, its, i % LANES + LANES * part, column + i // LANES) + first + f
                    if u8(there) != code:
                        place = (i % LANES + LANES * part) << 16 | column + i // LANES
                        finding(m, st.F_TC_COPIES, pc, w, lane, place, 4, SCALES)
            scale = bits_f32(u32(table + 4 * (code if idesc & UE8M0 else code & 127)))
            for j in range(f * width, (f + 1) * width):
                x = to + i * row_stride + j * k_stride
                w32(x, f32_bits(bits_f32(u32(x)) * scale))
    return True


@njit
def same_lanes(m, w, cta, pc, lane, first, column, bytes_):
    """A finding where lane `first` + 64 of the CTA in row `cta` does not have what lane `first` has."""
    at = host_in(m, cta, first, column)
    for i in range(bytes_):
        if u8(at + i) != u8(at + 64 * ROW + i):
            finding(m, st.F_TC_COPIES, pc, w, lane, (first + 64) << 16 | column + i // 4, 4, 0)
            return
