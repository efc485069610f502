"""Asynchronous copies (cp.async): noted down when they are issued, carried out as late as PTX allows.
Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize.shadow import note
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, finding, host_address, operand, wake
from fuzz.devices.emulator.state.intrinsics import copy16, i64, s32, u8, u32, w8


@njit
def copy_async(m, w, pc, wb, cb, c, act):
    """cp.async: only noted down here; the data arrives as late as PTX allows, when a wait asks for it."""
    a64 = s32(c + 8) >> op.ADDRESS64 & 1
    to = operand(wb, cb, s32(c + 12))
    to_immediate = s32(c + 16)
    source = operand(wb, cb, s32(c + 20))
    source_immediate = s32(c + 24)
    size = s32(c + 28)
    limit = s32(c + 32)
    m.wrote[w] = 1
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(to, a64, lane, to_immediate)
        h = host_address(m, w, pc, lane, op.SHARED, a, size)
        s = i64(source + 8 * lane) + source_immediate
        n = size
        if limit != op.ABSENT:
            n = u32(operand(wb, cb, limit) + 4 * lane)
            if n > size:  # undefined
                finding(m, st.F_COPY_SIZE, pc, w, lane, s, size, n)
                n = size
        g = 0
        if n > 0:
            if s & (size - 1):
                finding(m, st.F_ALIGN, pc, w, lane, s, size, op.GLOBAL)
            g = (
                host_address(m, w, pc, lane, op.GLOBAL, s, n)
                if n & (n - 1) == 0
                else host_address(m, w, pc, lane, op.GLOBAL, s, 1)
            )
            if g == 0:  # what cannot be read is zero
                n, g = 0, h
        if h == 0:
            continue
        if checking:
            if n > 0:
                note(m, w, pc, lane, op.GLOBAL, s, n, 0, 0)
            note(m, w, pc, lane, op.SHARED, a, size, 1, 0)  # it may arrive at once …
        i = m.pending[w]
        if i >= st.COPIES:
            finding(m, st.F_COPIES, pc, w, lane, a, size, i)
            continue
        m.pending[w] = i + 1
        m.copies[w, i, st.COPY_LANE] = lane
        m.copies[w, i, st.COPY_GROUP] = m.groups[w, lane]
        m.copies[w, i, st.COPY_TO] = h
        m.copies[w, i, st.COPY_FROM] = g
        m.copies[w, i, st.COPY_BYTES] = size
        m.copies[w, i, st.COPY_HAVE] = n
        m.copies[w, i, st.COPY_ADDRESS] = a
        m.copies[w, i, st.COPY_PC] = pc


@njit
def commit(m, w, act):
    for lane in range(32):
        if act >> lane & 1:
            m.groups[w, lane] += 1


@njit
def complete(m, w, act, keep):
    """Makes the copies of all but the last `keep` committed groups of the lanes arrive (-1: everything issued)."""
    n = m.pending[w]
    left = 0
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    sleepers = m.k[st.K_SLEEPERS]
    first = st.address_of(m.copies, w * st.COPIES * 8)
    groups = st.address_of(m.groups, w * 32)
    for i in range(n):
        row = first + 64 * i
        lane, group = i64(row + 8 * st.COPY_LANE), i64(row + 8 * st.COPY_GROUP)
        due = act >> lane & 1 and (keep < 0 or group < i64(groups + 8 * lane) - keep)
        if not due:
            if left != i:
                for j in range(0, 64, 16):
                    copy16(first + 64 * left + j, row + j)
            left += 1
            continue
        to, source = i64(row + 8 * st.COPY_TO), i64(row + 8 * st.COPY_FROM)
        size, have = i64(row + 8 * st.COPY_BYTES), i64(row + 8 * st.COPY_HAVE)
        if have == 16:
            copy16(to, source)
        else:
            for j in range(size):
                w8(to + j, u8(source + j) if j < have else 0)
        if checking:
            # … or as late as this
            note(m, w, i64(row + 8 * st.COPY_PC), lane, op.SHARED, i64(row + 8 * st.COPY_ADDRESS), size, 1, 0)
        if sleepers:
            wake(m, to, size)
    m.pending[w] = left
    if left != n:
        m.wrote[w] = 1
