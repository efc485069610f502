"""Tensor maps that a kernel makes itself: tensormap.replace and tensormap.cp_fenceproxy. Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.sanitize.shadow import note
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, host_address, operand
from fuzz.devices.emulator.state.intrinsics import copy16, ctz, i64, s32, u32, w32, w64


@njit
def replace(m, w, pc, wb, cb, c, act):
    """tensormap.replace: writes one field of a map, in each active lane. The field: 2 offset of its word, 7 its first
    bit, 8 its bits, 9 what its value is less by."""
    offset, flags = s32(c + 8), s32(c + 20)
    first, bits, less = s32(c + 28), s32(c + 32), s32(c + 36)
    a64, space = flags >> op.ADDRESS64 & 1, flags >> op.SPACE & 15
    base, x = operand(wb, cb, s32(c + 12)), operand(wb, cb, s32(c + 24))
    m.wrote[w] = 1
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a, size = address(base, a64, lane, s32(c + 16)) + offset, 8 if offset == tm.ADDRESS else 4
        h = host_address(m, w, pc, lane, space, a, size)
        if h == 0:
            continue
        if m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED):
            note(m, w, pc, lane, space, a, size, 1, 0)
        if offset == tm.ADDRESS:
            w64(h, i64(x + 8 * lane))
        elif bits == 64:
            _put_stride(h, offset, i64(x + 8 * lane) >> tm.STRIDE_UNIT)
        else:
            mask = (1 << bits) - 1 << first
            w32(h, u32(h) & ~mask | (u32(x + 4 * lane) - less << first & mask))


@njit
def _put_stride(h, offset, units):
    """Writes a stride at host address `h`, which is `offset` bytes into its map."""
    w32(h, units & 0xFFFFFFFF)
    upper, shift = h - offset + tm.UPPER_STRIDES, offset - tm.STRIDES
    w32(upper, u32(upper) & ~(15 << shift) | (units >> 32 & 15) << shift)


@njit
def publish(m, w, pc, wb, cb, c, act):
    """tensormap.cp_fenceproxy: the warp copies a map from shared to global memory, where copies may then use it."""
    flags = s32(c + 8)
    lane = ctz(act)
    to = address(operand(wb, cb, s32(c + 12)), flags & 1, lane, s32(c + 16))
    source = address(operand(wb, cb, s32(c + 20)), flags & 2, lane, s32(c + 24))
    if source >> op.SHIFT == 1:
        source -= op.SHARED_WINDOW
    h = host_address(m, w, pc, lane, op.GLOBAL, to, tm.SIZE)
    g = host_address(m, w, pc, lane, op.SHARED, source, tm.SIZE)
    if h == 0 or g == 0:
        return
    if m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED):
        note(m, w, pc, lane, op.SHARED, source, tm.SIZE, 0, 0)
        note(m, w, pc, lane, op.GLOBAL, to, tm.SIZE, 1, 0)
    m.wrote[w] = 1
    for i in range(0, tm.SIZE, 16):
        copy16(h + i, g + i)
