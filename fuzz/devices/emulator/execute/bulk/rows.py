"""The rows of a bulk copy: which bytes of shared and of global memory belong together. Compiled by numba.

A copy with a tensor map moves a box: rows along the tensor's first dimension, one after the other in shared memory,
with 16 bytes at a time permuted by the swizzle, of which each row takes the whole span. What lies outside the tensor is
not read; a load gives the fill there. A store or reduction writes 16 bytes at a time: where a row of the tensor ends
within them, it writes beyond, as an H200 does. A copy without a map is one row.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.atomics import combine
from fuzz.devices.emulator.sanitize import bulk_clocks, shadow, shared_shadow, vector_clocks
from fuzz.devices.emulator.sanitize.scopes import STRONG, SUM
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state import tensor_map as tm
from fuzz.devices.emulator.state.addressing import host_address, wake
from fuzz.devices.emulator.state.intrinsics import bits_f32, copy16, f16_f32, i64, u8, u16, u32, w8, w16, w32, w64
from fuzz.devices.emulator.state.tensor_map import CHUNK
from fuzz.devices.emulator.tensor_map import BF16, F16, F32, F32_FTZ, F64, S32, S64, TF32, TF32_FTZ

NAN16 = 0x7FFF  # of reductions
FILL = 0x7FF77FF77FF77FF7  # of loads outside the tensor, whatever its type
TF32_NAN = 0x7FFFE000


@njit
def row_count(map_, rank):
    """Rows of a box."""
    n = 1
    for i in range(1, rank):
        n *= tm.box_of(map_, i)
    return n


@njit
def _rows(m, slot, i):
    rank = m.bulk[slot, i, st.B_RANK]
    return row_count(m.bulk[slot, i, st.B_MAP], rank) if rank else 1


@njit
def _row_bytes(m, slot, i):
    if m.bulk[slot, i, st.B_RANK] == 0:
        return m.bulk[slot, i, st.B_BYTES]
    return tm.row_bytes(m.bulk[slot, i, st.B_MAP])


@njit
def _pitch(m, slot, i):
    """Bytes of shared memory from one row to the next."""
    if m.bulk[slot, i, st.B_RANK] == 0:
        return m.bulk[slot, i, st.B_BYTES]
    return tm.pitch(m.bulk[slot, i, st.B_MAP])


@njit
def _inside(m, slot, i, row):
    """(global address of the row's first byte, first and last + 1 of its bytes that are copied)."""
    rank = m.bulk[slot, i, st.B_RANK]
    if rank == 0:
        return m.bulk[slot, i, st.B_GLOBAL], 0, m.bulk[slot, i, st.B_BYTES]
    map_ = m.bulk[slot, i, st.B_MAP]
    bits = tm.element_bits(map_)
    row_bytes = tm.box_of(map_, 0) * bits // 8
    x = m.bulk[slot, i, st.B_X]
    at = i64(map_ + tm.ADDRESS) + x * bits // 8
    low = max(0, -x)
    high = min(tm.box_of(map_, 0), tm.size_of(map_, 0) - x)
    left = row
    for d in range(1, rank):
        size = tm.box_of(map_, d)
        x = m.bulk[slot, i, st.B_X + d] + left % size * tm.step_of(map_, d)
        left //= size
        if x < 0 or x >= tm.size_of(map_, d):
            high = 0
        at += x * tm.stride_of(map_, d)
    if high <= low:
        return at, 0, 0
    low, high = low * bits // 8, high * bits // 8
    if m.bulk[slot, i, st.B_KIND] != op.BULK_LOAD:
        high += _beyond(m, at + high, -(at + high) % CHUNK, row_bytes - high)
    return at, low, high


@njit
def _beyond(m, at, size, most):
    """How many of the `size` bytes from `at` on a store or reduction writes beyond a row's end: none where they lie in
    no tensor."""
    s = at >> op.SHIFT
    size = min(size, most)
    return size if size > 0 and at + size <= m.segments[s, st.S_HIGH] else 0


@njit
def _place(m, slot, i, offset):
    """The address in shared memory of byte `offset` of the copy."""
    a = m.bulk[slot, i, st.B_SHARED] + offset
    if m.bulk[slot, i, st.B_RANK] == 0:
        return a
    return a ^ (a >> 7 << 4 & tm.span(m.bulk[slot, i, st.B_MAP]) - CHUNK)


@njit
def _mapped(m, slot, i, at, size):
    """True if [at, at + size) is global memory of one tensor; a finding where it is not."""
    w, pc, lane = m.bulk[slot, i, st.B_WARP], m.bulk[slot, i, st.B_PC], m.bulk[slot, i, st.B_LANE]
    return (
        host_address(m, w, pc, lane, op.GLOBAL, at, 1) != 0
        and host_address(m, w, pc, lane, op.GLOBAL, at + size - 1, 1) != 0
    )


@njit
def note_rows(m, slot, i):
    """Notes every access of a copy, by its agents."""
    b = m.bulk
    w, pc, lane, kind = b[slot, i, st.B_WARP], b[slot, i, st.B_PC], b[slot, i, st.B_LANE], b[slot, i, st.B_KIND]
    who, clock = bulk_clocks.in_cluster(m, slot, b[slot, i, st.B_AGENT]), b[slot, i, st.B_CLOCK]
    data = (b[slot, i, st.B_HOST] - m.k[st.K_SHARED]) // m.k[st.K_SHARED_STRIDE]
    bytes_, pitch = _row_bytes(m, slot, i), _pitch(m, slot, i)
    me, now = vector_clocks.entity(m, w), vector_clocks.own(m, w)
    if kind != op.BULK_LOAD:
        me, now = bulk_clocks.entity(m, slot, b[slot, i, st.B_WRITER]), b[slot, i, st.B_WRITER_CLOCK]
    strong = 0
    if kind == op.BULK_REDUCE:
        sums = b[slot, i, st.B_OPERATION] >> 8 == op.ADD and _sums_floats(m, slot, i)
        strong = STRONG | SUM if sums else STRONG
    write = (0, 1, 2)[kind]
    for row in range(_rows(m, slot, i)):
        at, low, high = _inside(m, slot, i, row)
        if high > low and _mapped(m, slot, i, at + low, high - low):
            shadow.note_global_by(m, w, pc, lane, at + low, high - low, write, strong, me, now, m.k[st.K_GLOBAL_PROXY])
        for offset in range(0, bytes_, CHUNK):
            place = _place(m, slot, i, row * pitch + offset)
            if kind == op.BULK_LOAD:
                shared_shadow.note_async_write(m, w, data, pc, lane, place, CHUNK, who, clock)
            elif offset < high and offset + CHUNK > low:
                shared_shadow.note_async_read_by(m, w, pc, lane, place, CHUNK, who, clock, st.F_BULK_PROXY)


@njit
def _sums_floats(m, slot, i):
    return _type(m, slot, i) >= op.T_F32


@njit
def _type(m, slot, i):
    """The type of a reduction: the instruction's, or the tensor map's."""
    if m.bulk[slot, i, st.B_RANK] == 0:
        return m.bulk[slot, i, st.B_OPERATION] & 255
    code = tm.element(m.bulk[slot, i, st.B_MAP])
    if code in (F32, F32_FTZ, TF32, TF32_FTZ):  # sums are not rounded to tf32
        return op.T_F32
    if code == F64:
        return op.T_F64
    if code == F16:
        return op.T_F16
    if code == BF16:
        return op.T_BF16
    if code == S32:
        return op.T_S32
    if code == S64:
        return op.T_S64
    return op.T_U64 if tm.element_bytes(m.bulk[slot, i, st.B_MAP]) == 8 else op.T_U32


@njit
def _flushes(m, slot, i):
    """True for a reduction that takes subnormal numbers as zeros: by a tensor map of such a type."""
    if m.bulk[slot, i, st.B_RANK] == 0:
        return False
    return tm.element(m.bulk[slot, i, st.B_MAP]) in (F32_FTZ, TF32_FTZ)


@njit
def _flushed(x):
    """A pattern of f32, zero in place of a subnormal number."""
    return x if x & 0x7F800000 else x & 0x80000000


@njit
def copy_rows(m, slot, i):
    """Moves the data of a copy."""
    b = m.bulk
    w, pc, lane, kind = b[slot, i, st.B_WARP], b[slot, i, st.B_PC], b[slot, i, st.B_LANE], b[slot, i, st.B_KIND]
    shared, bytes_, pitch = b[slot, i, st.B_HOST], _row_bytes(m, slot, i), _pitch(m, slot, i)
    part = tm.chunk_bytes(b[slot, i, st.B_MAP]) if b[slot, i, st.B_RANK] else CHUNK
    for row in range(_rows(m, slot, i)):
        at, low, high = _inside(m, slot, i, row)
        h = 0
        if high > low and _mapped(m, slot, i, at + low, high - low):
            h = host_address(m, w, pc, lane, op.GLOBAL, at + low, 1) - low
        for offset in range(0, bytes_, CHUNK):
            place = shared + _place(m, slot, i, row * pitch + offset)
            if kind == op.BULK_LOAD and part < CHUNK:
                _load_padded(place, h, offset // CHUNK * part, part, low, high)
            elif kind == op.BULK_LOAD:
                _load_chunk(m, slot, i, place, h, offset, low, high)
            elif h:
                _store_chunk(m, slot, i, place, h, offset, low, high)
        if h and kind != op.BULK_LOAD and m.k[st.K_SLEEPERS]:
            wake(m, h + low, high - low)
    if kind == op.BULK_LOAD and m.k[st.K_SLEEPERS]:
        wake(m, shared + b[slot, i, st.B_SHARED] & ~1023, _rows(m, slot, i) * pitch + 1024)


@njit
def _load_padded(place, h, offset, size, low, high):
    """16 numbers of 4 or 6 bits, which are `size` bytes from `offset` of the row on; the padding stays as it is."""
    for j in range(size):
        w8(place + j, u8(h + offset + j) if h and low <= offset + j < high else 0)


@njit
def _load_chunk(m, slot, i, place, h, offset, low, high):
    if not h or offset < low or offset + CHUNK > high:
        fill = FILL if m.bulk[slot, i, st.B_RANK] and tm.fills_nan(m.bulk[slot, i, st.B_MAP]) else 0
        w64(place, fill)
        w64(place + 8, fill)
        for j in range(max(low - offset, 0), min(high - offset, CHUNK) if h else 0):
            w8(place + j, u8(h + offset + j))
    else:
        copy16(place, h + offset)
    if h and m.bulk[slot, i, st.B_RANK]:
        code = tm.element(m.bulk[slot, i, st.B_MAP])
        if code in (TF32, TF32_FTZ):
            for j in range(max(low - offset, 0), min(high - offset, CHUNK), 4):
                w32(place + j, _rounded(u32(place + j)))


@njit
def _rounded(x):
    """A pattern of f32 as a load of an element type that rounds to tf32 brings it. Subnormal numbers come as they are:
    types named ftz flush them in reductions alone."""
    if x & 0x7FFFFFFF > 0x7F800000:
        return TF32_NAN
    return x + 0xFFF + (x >> 13 & 1) & 0xFFFFE000  # ties to even


@njit
def _store_chunk(m, slot, i, place, h, offset, low, high):
    first, last = max(low - offset, 0), min(high - offset, CHUNK)
    if m.bulk[slot, i, st.B_KIND] == op.BULK_STORE:
        if first == 0 and last == CHUNK:
            copy16(h + offset, place)
        else:
            for j in range(first, last):
                w8(h + offset + j, u8(place + j))
        return
    kind, operation, flushes = _type(m, slot, i), m.bulk[slot, i, st.B_OPERATION] >> 8, _flushes(m, slot, i)
    width = 8 if kind in (op.T_U64, op.T_S64, op.T_F64) else 2 if kind in (op.T_F16, op.T_BF16) else 4
    for j in range(first, last, width):
        to, source = h + offset + j, place + j
        if width == 8:
            w64(to, combine(operation, kind, i64(to), i64(source), 0))
        elif flushes:
            w32(to, _flushed(combine(operation, kind, _flushed(u32(to)), _flushed(u32(source)), 0)))
        elif width == 4:
            w32(to, combine(operation, kind, u32(to), u32(source), 0))
        else:
            w16(to, _combine_halves(operation, kind, u16(to), u16(source)))


@njit
def _combine_halves(operation, kind, old, x):
    """The new value of a cell of f16 or bf16. The least or greatest of a number and a NaN is the number, -0 is below
    +0."""
    if operation == op.ADD:
        return combine(operation, kind, old, x, 0)
    a = f16_f32(old) if kind == op.T_F16 else bits_f32(old << 16)
    b = f16_f32(x) if kind == op.T_F16 else bits_f32(x << 16)
    if a != a:
        return NAN16 if b != b else x
    if b != b:
        return old
    less = a < b or (a == b and old > x)  # of two zeros, the one with the sign bit is less
    return old if less == (operation == op.MIN) else x
