"""tcgen05.mma of a CTA or of a pair: D = A B + D with D in tensor memory. Compiled by numba.

A product is carried out when it is issued, by each lane that issues it. Row i of D lies in lane i of tensor memory for
M = 128, in lane 32 (i / 16) + i % 16 for M = 64, column j in the j-th column from D's address. What PTX lets happen
later is a finding, not another result: see `sanitize/tensor_shadow.py` and `sanitize/tensor_reads.py`.

Of a pair of CTAs (.cta_group::2), each has half of the rows of A and of D, and half of the columns of B, at the same
addresses in its own memory; the even one has the first halves. For M = 256, row i of a CTA's half lies in lane i. For
M = 128, it does for the first half of the columns; the second half lies beside them, 64 lanes further. A in tensor
memory is then in both: each row in lane i and in lane 64 + i.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.refusal import refuse
from fuzz.devices.emulator.execute.tcgen05 import scales as tcgen05_scales
from fuzz.devices.emulator.execute.tcgen05.operands import (
    A_MATRIX,
    B_MATRIX,
    SUMS,
    UNKNOWN,
    numbers_of,
    size_of,
    type_of,
    unpack_lane,
    unpack_shared,
)
from fuzz.devices.emulator.sanitize import tensor_shadow
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address_in, finding, operand
from fuzz.devices.emulator.state.intrinsics import (
    bits_f32,
    f16_f32,
    f32_bits,
    f32_f16,
    i64,
    s32,
    tensor_product,
    u16,
    u32,
    w32,
)
from fuzz.devices.emulator.state.tcgen05_descriptor import (
    SWIZZLE_128_BY_32,
    is_valid,
    swizzle_of,
)
from fuzz.devices.emulator.state.tensor_memory import (
    INSTRUCTION,
    LANE,
    ROW,
    SHAPE,
    SHARED_A,
    SHARED_B,
    host_in,
    pair_of,
    usable_in,
)

F16_SUMS, F32_SUMS, S32_SUMS = range(3)
CHECKED = st.CHECK_RACES | st.CHECK_UNINITIALISED
LANES_AT_ONCE = 16


@njit
def product(m, w, pc, wb, cb, c, act):
    """tcgen05.mma by each active lane."""
    m.wrote[w] = 1
    for lane in range(32):
        if act >> lane & 1:
            one_product(m, w, pc, wb, cb, c, lane)


@njit
def well_formed(m, w, pc, lane, kind, idesc, pair):
    """False, and a finding, for an instruction descriptor that PTX does not define. One that it does, but that is not
    emulated, ends the launch."""
    rows, n = (idesc >> 24 & 31) << 4, (idesc >> 17 & 63) << 3
    sums = idesc >> 4 & 3
    a, b = type_of(kind, idesc >> 7 & 7), type_of(kind, idesc >> 10 & 7)
    right = a != UNKNOWN and b != UNKNOWN and idesc & (1 << 2 | 1 << 6 | 1 << 23 | 1 << 29) == 0
    if kind == op.TC_I8:
        right = right and sums == S32_SUMS and idesc >> 13 & 3 == 0
    else:
        right = right and idesc >> 3 & 1 == 0 and (sums == F32_SUMS or (sums == F16_SUMS and kind != op.TC_TF32))
        if kind == op.TC_F16 and sums == F16_SUMS:
            right = right and idesc >> 7 & 63 == 0
        elif kind == op.TC_F16:
            right = right and a == b
    if not right:
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, idesc, 0, INSTRUCTION)
        return False
    step = 16 if kind == op.TC_I8 and n > 32 else 8
    if (idesc >> 16 & 1) and kind >= op.TC_F8F6F4:
        step = max(step, 16)
    step *= pair
    if (rows != 64 * pair and rows != 128 * pair) or n == 0 or n > 256 or n % step:
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, rows, n, SHAPE)
        return False
    return True


@njit
def matrix_fits(m, w, pc, lane, descriptor, transposed, kind, which):
    """False, and a finding, for a descriptor of A or B that PTX does not define for the type and direction."""
    by_32 = swizzle_of(descriptor) == SWIZZLE_128_BY_32
    right = is_valid(descriptor)
    if transposed:
        right = right and by_32 == (size_of(kind) == 4)
    else:
        right = right and not by_32
    if not right:
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, descriptor, 0, which)
    return right


@njit
def one_product(m, w, pc, wb, cb, c, lane):
    flags = s32(c + 8)
    kind = flags & op.TC_KIND
    idesc = u32(operand(wb, cb, s32(c + 32)) + 4 * lane)
    pair = 2 if flags & op.TC_PAIR else 1
    slot = w // m.k[st.K_WARPS]
    factors = flags >> op.TC_FACTORS & 7
    if factors:
        if not tcgen05_scales.well_formed(m, w, pc, lane, kind, idesc, pair, factors):
            return
        if idesc >> 31 & 1 or (pair == 2 and idesc >> 24 & 31 == 8):  # K = 96; M = 128 of two CTAs
            refuse(m, pc, 0, idesc)
            return
    elif not well_formed(m, w, pc, lane, kind, idesc, pair):
        return
    if pair == 2 and not paired(m, w, pc, lane, slot):
        return
    rows, n = (idesc >> 24 & 31) << 4, (idesc >> 17 & 63) << 3
    b_type, b_flip = type_of(kind, idesc >> 10 & 7), (idesc >> 14 & 1) << 31
    k = numbers_of(b_type)
    b_descriptor = i64(operand(wb, cb, s32(c + 28)) + 8 * lane)
    if not matrix_fits(m, w, pc, lane, b_descriptor, idesc >> 16 & 1, b_type, SHARED_B):
        return
    d = (u32(operand(wb, cb, s32(c + 12)) + 4 * lane) + s32(c + 16)) & 0xFFFFFFFF
    rows = rows // pair  # of a CTA
    if not (d >> 16 == 0 or (d >> 16 == 16 and rows == 64 and pair == 1)):
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, d, 0, LANE)
        return
    halves = 2 if pair == 2 and rows == 64 else 1  # of the columns, in lanes of their own
    first = slot - (m.cta[slot, st.CTA_RANK] & 1) if pair == 2 else slot
    for cta in range(first, first + pair):
        if not usable_in(m, w, cta, pc, lane, d & 0xFFFF, n // halves):
            return
    m.tensor_warp[w, st.TW_ISSUED] += 1
    to = m.k[st.K_TENSOR_SCRATCH] + B_MATRIX
    whole = True
    for cta in range(first, first + pair):
        part = to + 4 * (n // pair) * (cta - first)
        if not unpack_shared(m, w, cta, pc, lane, b_descriptor, idesc >> 16 & 1, b_type, b_flip, n // pair, part, 4,
                             4 * n):  # fmt: skip
            whole = False
    if factors:
        where = (u32(operand(wb, cb, s32(c + 56)) + 4 * lane) + s32(c + 60)) & 0xFFFFFFFF
        if not tcgen05_scales.apply(m, w, first, pair, pc, lane, where, idesc >> 4 & 3, idesc, n, factors, to, 4, 4 * n,
                                    k):  # fmt: skip
            return
    for cta in range(first, first + pair):
        if not _rows_of(m, w, cta, cta - first, pc, wb, cb, c, lane, idesc, rows, n, k, d, halves, whole):
            return


@njit
def paired(m, w, pc, lane, slot):
    """True if the CTA has another one beside it to make a pair with."""
    if m.cta[slot, st.CTA_RANK] ^ 1 >= m.k[st.K_CLUSTER]:
        finding(m, st.F_CLUSTER_RANK, pc, w, lane, 0, 0, m.cta[slot, st.CTA_RANK] ^ 1)
        return False
    other = pair_of(m, slot)
    if m.cta[other, st.CTA_WARPS] == 0:
        finding(m, st.F_CLUSTER_EXITED, pc, w, lane, address_in(m, w, other, 0), 0, 1)
        return False
    return True


@njit
def _rows_of(m, w, cta, which, pc, wb, cb, c, lane, idesc, rows, n, k, d, halves, whole):
    """The rows of D that the CTA in row `cta` has, `which` of its pair. False where the product cannot go on."""
    flags = s32(c + 8)
    kind = flags & op.TC_KIND
    a_type, a_flip = type_of(kind, idesc >> 7 & 7), (idesc >> 13 & 1) << 31
    factors = flags >> op.TC_FACTORS & 7
    sums = F32_SUMS if factors else idesc >> 4 & 3
    d_lane, d_column = d >> 16, d & 0xFFFF
    full = rows == 128 or halves == 2
    enable = u32(wb + s32(c + 36)) >> lane & 1
    groups = (255 if full else 0x55 << (d_lane >> 4)) & written_groups(wb, cb, c, lane, which)
    checking = m.k[st.K_CHECKS] & CHECKED
    scratch = m.k[st.K_TENSOR_SCRATCH]
    if flags & op.TC_A_IN_TENSOR_MEMORY:
        a = (u32(operand(wb, cb, s32(c + 20)) + 4 * lane) + s32(c + 24)) & 0xFFFFFFFF
        if a >> 16 != d_lane or idesc >> 15 & 1:
            finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, a, 0, LANE if a >> 16 != d_lane else INSTRUCTION)
            return False
        if not usable_in(m, w, cta, pc, lane, a & 0xFFFF, 8):
            return False
        if checking:
            read = 255 if full else 0x55 << (d_lane >> 4)
            tensor_shadow.note_in(m, w, cta, pc, read, a & 0xFFFF, 8, tensor_shadow.MMA_A)
        for i in range(rows):
            source = host_in(m, cta, lane_of(full, d_lane, i), a & 0xFFFF)
            unpack_lane(m, source, a_type, a_flip, scratch + A_MATRIX + 4 * k * i)
            if halves == 2:
                tcgen05_scales.same_lanes(m, w, cta, pc, lane, i, a & 0xFFFF, 32)
    else:
        a_descriptor = i64(operand(wb, cb, s32(c + 20)) + 8 * lane)
        if not matrix_fits(m, w, pc, lane, a_descriptor, idesc >> 15 & 1, a_type, SHARED_A):
            return False
        if not unpack_shared(m, w, cta, pc, lane, a_descriptor, idesc >> 15 & 1, a_type, a_flip, rows,
                             scratch + A_MATRIX, 4 * k, 4):  # fmt: skip
            whole = False
    if factors:
        where = (u32(operand(wb, cb, s32(c + 48)) + 4 * lane) + s32(c + 52)) & 0xFFFFFFFF
        if not tcgen05_scales.apply(m, w, cta, 1, pc, lane, where, idesc >> 29 & 3, idesc, rows, factors,
                                    scratch + A_MATRIX, 4 * k, 4, k):  # fmt: skip
            return False
    if checking:
        access = tensor_shadow.MMA_ADD if enable else tensor_shadow.MMA_WRITE
        tensor_shadow.note_in(m, w, cta, pc, groups, d_column, n // halves, access)
    if not whole:
        return True
    for i in range(0, rows, LANES_AT_ONCE):
        first = lane_of(full, d_lane, i)
        off = disabled(wb, cb, c, lane, first, which)
        at = host_in(m, cta, first, d_column)
        left = scratch + A_MATRIX + 4 * k * i
        in_place = halves == 1 and sums == F32_SUMS and off == 0 and s32(c + 40) == 0
        to, stride = (at, ROW) if in_place else (scratch + SUMS, 4 * n)
        wide = n // halves
        begin_sums(at, to, stride, wide, enable, sums, s32(c + 40))
        if halves == 2:
            begin_sums(at + 64 * ROW, to + 4 * wide, stride, wide, enable, sums, s32(c + 40))
        if sums == S32_SUMS:
            whole_numbers(to, stride, left, scratch + B_MATRIX, n, k, idesc >> 3 & 1)
        else:
            tensor_product(to, stride, left, scratch + B_MATRIX, n, k)
            tensor_product(to + 8 * stride, stride, left + 32 * k, scratch + B_MATRIX, n, k)
        if not in_place:
            write_back(at, to, stride, wide, sums, off)
        if halves == 2:
            off = disabled(wb, cb, c, lane, first + 64, which)
            write_back(at + 64 * ROW, to + 4 * wide, stride, wide, sums, off)
    return True


@njit(inline="always")
def lane_of(full, base, i):
    """The lane of tensor memory with row `i` of a CTA's part of D, or of A. full: one row after the other."""
    return i if full else base + 32 * (i >> 4) + (i & 15)


@njit
def disabled(wb, cb, c, lane, first, which):
    """The bits of disable-output-lane for 16 lanes from `first` of a tensor memory. which: of the pair, whose CTA."""
    place = s32(c + 44)
    if place == op.ABSENT:
        return 0
    if s32(c + 8) & op.TC_PAIR:
        place = s32(cb + place + 4 * (4 * which + (first >> 5)))
    else:
        place = s32(c + 44 + 4 * (first >> 5))
    return u32(operand(wb, cb, place) + 4 * lane) >> (first & 31) & 0xFFFF


@njit
def written_groups(wb, cb, c, lane, which):
    """The groups of 16 lanes of which a product may write some lane."""
    groups = 0
    for group in range(8):
        if disabled(wb, cb, c, lane, 16 * group, which) != 0xFFFF:
            groups |= 1 << group
    return groups


@njit
def begin_sums(at, to, stride, n, enable, sums, scale):
    """The summand of the products: D times 2 ** -scale, or zeros."""
    if enable and at == to:
        return
    factor = np.float32(1.0 / (1 << scale))
    for i in range(LANES_AT_ONCE):
        for j in range(n):
            v = 0
            if enable:
                v = u32(at + i * ROW + 4 * j)
                if sums == F16_SUMS:
                    v = f32_bits(f16_f32(u16(at + i * ROW + 4 * j)))
                if scale:
                    v = f32_bits(bits_f32(v) * factor)
            w32(to + i * stride + 4 * j, v)


@njit
def write_back(at, sums_at, stride, n, sums, off):
    """Writes the lanes of D that are not disabled; f16 into the lower half of a word."""
    for i in range(LANES_AT_ONCE):
        if off >> i & 1:
            continue
        for j in range(n):
            v = u32(sums_at + i * stride + 4 * j)
            if sums == F16_SUMS:
                v = 0x7FFF if v & 0x7FFFFFFF > 0x7F800000 else f32_f16(bits_f32(v))
            w32(at + i * ROW + 4 * j, v)


@njit
def whole_numbers(to, stride, a, b, n, k, saturate):
    """The product of integers: sums of 32 bits that wrap, or stop at the largest and smallest."""
    for i in range(LANES_AT_ONCE):
        for j in range(n):
            total = s32(to + i * stride + 4 * j)
            for x in range(k):
                total += s32(a + 4 * (i * k + x)) * s32(b + 4 * (x * n + j))
            if saturate:
                total = min(max(total, -(1 << 31)), (1 << 31) - 1)
            w32(to + i * stride + 4 * j, total)
