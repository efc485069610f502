"""Loads, stores and matrix loads of one warp, compiled by numba.

`c` is the address of the micro-operation, `wb` and `cb` those of the warp's registers and the constants.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute import plain
from fuzz.devices.emulator.sanitize import global_lines, lane_order, shared_lines
from fuzz.devices.emulator.sanitize.scopes import strength, strong_read, strong_write
from fuzz.devices.emulator.sanitize.shadow import EQUAL, note
from fuzz.devices.emulator.sanitize.vector_clocks import tick
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import (
    address,
    host_address,
    operand,
    own_shared,
    remember_read,
    segment_of,
    wake,
)
from fuzz.devices.emulator.state.intrinsics import (
    copy16,
    i64,
    ldmatrix,
    s8,
    s16,
    s32,
    transpose16,
    u8,
    u16,
    u32,
    w8,
    w16,
    w32,
    w64,
)


@njit
def note_groups(m, w, base, a64, immediate, act, space, bytes_, write):
    """Notes what it can of a warp's weak access line by line; returns the lanes whose accesses are noted."""
    if space == op.SHARED or space == op.SHARED_CLUSTER:
        if write:
            return shared_lines.write_groups(m, w, base, a64, immediate, act, bytes_)
        return shared_lines.read_groups(m, w, base, a64, immediate, act, bytes_)
    if a64 and (space == op.GLOBAL or space == op.GENERIC or space == op.CONST):
        return global_lines.groups(m, w, base, immediate, act, bytes_, write)
    return 0


@njit
def load(m, w, pc, wb, cb, c, act):
    flags = s32(c + 8)
    count = flags & 255
    size = flags >> op.SIZE & 255
    space = flags >> op.SPACE & 15
    wide = flags >> op.WIDE & 1
    signed = flags >> op.SIGNED & 1
    half = flags >> op.HALF & 1
    a64 = flags >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    watching = m.spin[w, st.SPIN_PC] >= 0 and (space != op.PARAM)
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    strong, narrow = flags >> op.STRONG & 1, flags >> op.CTA_SCOPE & 1
    held = strength(m, flags)
    bytes_ = count * size
    shared = space == op.SHARED or space == op.SHARED_CLUSTER
    elsewhere = space == op.GLOBAL or space == op.GENERIC or space == op.CONST
    prefix, limit, memory = own_shared(m, w)
    low, high, delta = 0, 0, 0
    noted = 0
    if checking and space != op.PARAM:
        lane_order.used(m, w, act, shared)
    if checking and held == 0 and strong == 0:
        noted = act if space == op.PARAM else note_groups(m, w, base, a64, immediate, act, space, bytes_, 0)
        if noted == act and not watching and plain.load(m, w, wb, cb, c, act):
            return
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(base, a64, lane, immediate)
        x = a ^ prefix
        if shared and op.RESERVED_SHARED <= x <= limit - bytes_ and x & (bytes_ - 1) == 0:
            h = memory + x
        elif a >= low and a + bytes_ <= high and a & (bytes_ - 1) == 0:
            h = a + delta
        else:
            h = host_address(m, w, pc, lane, space, a, bytes_)
            if elsewhere and h:
                low, high, delta = segment_of(m, a)
        if h == 0:
            for j in range(count):  # what cannot be read is zero
                d = s32(c + 20 + 4 * j)
                if d != op.ABSENT:
                    if wide:
                        w64(wb + d + 8 * lane, 0)
                    else:
                        w32(wb + d + 4 * lane, 0)
            continue
        if watching:
            remember_read(m, w, h, a)
        if checking and not noted >> lane & 1:
            note(m, w, pc, lane, space, a, bytes_, 0, held)
        if checking and strong:
            strong_read(m, w, h, flags >> op.ACQUIRE & 1, narrow)
        for j in range(count):
            d = s32(c + 20 + 4 * j)
            if d == op.ABSENT:
                continue
            at = h + j * size
            if size == 4:
                v = s32(at) if signed else u32(at)
            elif size == 8:
                v = i64(at)
            elif size == 2:
                v = s16(at) if signed else u16(at)
            else:
                v = s8(at) if signed else u8(at)
            if wide:
                w64(wb + d + 8 * lane, v)
            elif half:
                w32(wb + d + 4 * lane, v & 0xFFFF)
            else:
                w32(wb + d + 4 * lane, v)


@njit
def store(m, w, pc, wb, cb, c, act):
    flags = s32(c + 8)
    count = flags & 255
    size = flags >> op.SIZE & 255
    space = flags >> op.SPACE & 15
    wide = flags >> op.WIDE & 1
    a64 = flags >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    m.wrote[w] = 1
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    forgiving = not m.k[st.K_CHECKS] & st.CHECK_EQUAL
    strong, narrow = flags >> op.STRONG & 1, flags >> op.CTA_SCOPE & 1
    held = strength(m, flags)
    bytes_ = count * size
    shared = space == op.SHARED or space == op.SHARED_CLUSTER
    elsewhere = space == op.GLOBAL or space == op.GENERIC or space == op.CONST
    prefix, limit, memory = own_shared(m, w)
    low, high, delta = 0, 0, 0
    noted = 0
    if checking:
        lane_order.used(m, w, act, shared)
    if checking and held == 0 and strong == 0:
        noted = note_groups(m, w, base, a64, immediate, act, space, bytes_, 1)
        if noted == act and plain.store(m, w, wb, cb, c, act):
            return
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(base, a64, lane, immediate)
        x = a ^ prefix
        if shared and op.RESERVED_SHARED <= x <= limit - bytes_ and x & (bytes_ - 1) == 0:
            h = memory + x
        elif a >= low and a + bytes_ <= high and a & (bytes_ - 1) == 0:
            h = a + delta
        else:
            h = host_address(m, w, pc, lane, space, a, bytes_)
            if elsewhere and h:
                low, high, delta = segment_of(m, a)
        if h == 0:
            continue
        if checking and not noted >> lane & 1:
            write = 1
            if forgiving and _stored(wb, cb, c, lane, count, size, wide, h):
                write = EQUAL
            note(m, w, pc, lane, space, a, bytes_, write, held)
        if checking and strong:
            strong_write(m, w, h, flags >> op.RELEASE & 1, False, narrow)
        for j in range(count):
            x = operand(wb, cb, s32(c + 20 + 4 * j))
            at = h + j * size
            v = i64(x + 8 * lane) if wide else u32(x + 4 * lane)
            if size == 4:
                w32(at, v)
            elif size == 8:
                w64(at, v)
            elif size == 2:
                w16(at, v)
            else:
                w8(at, v)
        if m.k[st.K_SLEEPERS]:
            wake(m, h, bytes_)
    if checking and flags >> op.RELEASE & 1:
        tick(m, w)


@njit
def _stored(wb, cb, c, lane, count, size, wide, h):
    """True if the memory at `h` holds already what a lane of a store writes there."""
    for j in range(count):
        x = operand(wb, cb, s32(c + 20 + 4 * j))
        v = i64(x + 8 * lane) if wide else u32(x + 4 * lane)
        at = h + j * size
        if size == 8:
            there = i64(at)
        elif size == 4:
            there, v = u32(at), v & 0xFFFFFFFF
        elif size == 2:
            there, v = u16(at), v & 0xFFFF
        else:
            there, v = u8(at), v & 0xFF
        if there != v:
            return False
    return True


@njit
def load_matrix(m, w, pc, wb, cb, c):
    """ldmatrix: lane 8 i + r gives the address of row r of matrix i; a row fills 16 bytes of the register."""
    a64 = s32(c + 8) >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    count, transposed = s32(c + 36), s32(c + 40)
    scratch = m.k[st.K_SCRATCH]
    watching = m.spin[w, st.SPIN_PC] >= 0
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    prefix, limit, memory = own_shared(m, w)
    noted = 0
    if checking:
        act = (1 << 8 * count) - 1
        noted = shared_lines.read_groups(m, w, base, a64, immediate, act, 16)
        if noted == act and not watching and not a64 and ldmatrix(c, wb, cb, memory, limit):
            return
    for i in range(count):  # into scratch first: the address register may be a destination
        for r in range(8):
            lane = 8 * i + r
            a = address(base, a64, lane, immediate)
            x = a ^ prefix
            if op.RESERVED_SHARED <= x <= limit - 16 and x & 15 == 0:
                h = memory + x
            else:
                h = host_address(m, w, pc, lane, op.SHARED, a, 16)
            if h:
                copy16(scratch + 128 * i + 16 * r, h)
                if checking and not noted >> lane & 1:
                    note(m, w, pc, lane, op.SHARED, a, 16, 0, 0)
                if watching:
                    remember_read(m, w, h, a)
                    remember_read(m, w, h + 8, a + 8)
            else:
                w64(scratch + 128 * i + 16 * r, 0)
                w64(scratch + 128 * i + 16 * r + 8, 0)
    for i in range(count):
        d = wb + s32(c + 20 + 4 * i)
        if transposed:
            transpose16(d, scratch + 128 * i)
        else:
            for r in range(8):
                copy16(d + 16 * r, scratch + 128 * i + 16 * r)


@njit
def store_matrix(m, w, pc, wb, cb, c):
    a64 = s32(c + 8) >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    count, transposed = s32(c + 36), s32(c + 40)
    scratch = m.k[st.K_SCRATCH]
    m.wrote[w] = 1
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    forgiving = not m.k[st.K_CHECKS] & st.CHECK_EQUAL
    noted = 0
    if checking:
        lane_order.used(m, w, m.alive[w], True)
        act = (1 << 8 * count) - 1
        noted = shared_lines.write_groups(m, w, base, a64, immediate, act, 16)
    for i in range(count):
        x = operand(wb, cb, s32(c + 20 + 4 * i))
        if transposed:
            transpose16(scratch, x)
        else:
            for r in range(8):
                copy16(scratch + 16 * r, x + 16 * r)
        for r in range(8):
            lane = 8 * i + r
            a = address(base, a64, lane, immediate)
            h = host_address(m, w, pc, lane, op.SHARED, a, 16)
            if h:
                row = scratch + 16 * r
                write = EQUAL if forgiving and i64(h) == i64(row) and i64(h + 8) == i64(row + 8) else 1
                copy16(h, row)
                if checking and not noted >> lane & 1:
                    note(m, w, pc, lane, op.SHARED, a, 16, write, 0)
                if m.k[st.K_SLEEPERS]:
                    wake(m, h, 16)
