"""Atomic operations of one warp, lane by lane, compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize.scopes import SUM, strength, strong_read, strong_write
from fuzz.devices.emulator.sanitize.shadow import note
from fuzz.devices.emulator.sanitize.vector_clocks import tick
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, host_address, operand, remember_read, wake
from fuzz.devices.emulator.state.intrinsics import (
    bits_f32,
    bits_f64,
    f16_f32,
    f32_bits,
    f32_f16,
    f64_bits,
    i64,
    s32,
    u16,
    u32,
    w16,
    w32,
    w64,
)


@njit
def _bf16(x):
    """A float rounded to a bfloat16 pattern."""
    v = f32_bits(x)
    if (v & 0x7FFFFFFF) > 0x7F800000:
        return 0x7FFF
    return (v + 0x7FFF + (v >> 16 & 1)) >> 16 & 0xFFFF


@njit
def _f16(x):
    return 0x7FFF if x != x else f32_f16(x)


@njit
def _canonical32(x):
    return 0x7FFFFFFF if x != x else f32_bits(x)


@njit
def combine(operation, kind, old, x, y):
    """The new value of a memory cell: `old` combined with x (and compared with x, replaced by y, for cas)."""
    if operation == op.CAS:
        return y if old == x else old
    if operation == op.EXCH:
        return x
    if kind == op.T_F32:
        return _canonical32(bits_f32(old) + bits_f32(x))
    if kind == op.T_F64:
        return f64_bits(bits_f64(old) + bits_f64(x))
    if kind == op.T_F16:
        return _f16(f16_f32(old) + f16_f32(x))
    if kind == op.T_BF16:
        return _bf16(bits_f32(old << 16) + bits_f32(x << 16))
    if kind == op.T_F16X2:
        return _f16(f16_f32(old) + f16_f32(x)) | _f16(f16_f32(old >> 16) + f16_f32(x >> 16)) << 16
    if kind == op.T_BF16X2:
        low = _bf16(bits_f32(old << 16) + bits_f32(x << 16))
        return low | _bf16(bits_f32(old & 0xFFFF0000) + bits_f32(x & 0xFFFF0000)) << 16
    if operation == op.ADD:
        return old + x
    if operation == op.AND:
        return old & x
    if operation == op.OR:
        return old | x
    if operation == op.XOR:
        return old ^ x
    if operation == op.INC:
        return 0 if old >= x else old + 1
    if operation == op.DEC:
        return x if old == 0 or old > x else old - 1
    if kind == op.T_S32:
        old, x = (old ^ 0x80000000) - 0x80000000, (x ^ 0x80000000) - 0x80000000
    less = old < x
    if kind == op.T_U64 and (old < 0) != (x < 0):
        less = not less
    if operation == op.MIN:
        return old if less else x
    return x if less else old


@njit
def atomic(m, w, pc, wb, cb, c, act):
    flags = s32(c + 8)
    size = flags >> op.SIZE & 255
    space = flags >> op.SPACE & 15
    wide = flags >> op.WIDE & 1
    a64 = flags >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    d = s32(c + 20)
    x = operand(wb, cb, s32(c + 24))
    third = s32(c + 28)
    what = s32(c + 32)
    operation, kind = what >> 8, what & 255
    watching = m.spin[w, st.SPIN_PC] >= 0
    held = strength(m, flags) | (SUM if operation == op.ADD and kind >= op.T_F32 else 0)
    narrow = flags >> op.CTA_SCOPE & 1
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(base, a64, lane, immediate)
        h = host_address(m, w, pc, lane, space, a, size)
        if h == 0:
            if d != op.ABSENT:
                if wide:
                    w64(wb + d + 8 * lane, 0)
                else:
                    w32(wb + d + 4 * lane, 0)
            continue
        if watching:
            remember_read(m, w, h, a)
        if checking:
            note(m, w, pc, lane, space, a, size, 2, held)
            strong_read(m, w, h, flags >> op.ACQUIRE & 1, narrow)
            strong_write(m, w, h, flags >> op.RELEASE & 1, True, narrow)
        old = i64(h) if size == 8 else (u32(h) if size == 4 else u16(h))
        v = i64(x + 8 * lane) if wide else u32(x + 4 * lane)
        y = 0
        if third != op.ABSENT:
            z = operand(wb, cb, third)
            y = i64(z + 8 * lane) if wide else u32(z + 4 * lane)
        new = combine(operation, kind, old, v, y)
        if size == 4:
            new &= 0xFFFFFFFF
        elif size == 2:
            new &= 0xFFFF
        if new != old:
            m.wrote[w] = 1
            if size == 8:
                w64(h, new)
            elif size == 4:
                w32(h, new)
            else:
                w16(h, new)
            if m.k[st.K_SLEEPERS]:
                wake(m, h, size)
        if d != op.ABSENT:
            if wide:
                w64(wb + d + 8 * lane, old)
            else:
                w32(wb + d + 4 * lane, old)
    if checking and flags >> op.RELEASE & 1:
        tick(m, w)
