"""Asynchronous copies (cp.async): noted down when they are issued, carried out as late as PTX allows.
Compiled by numba.

A copy of a lane is a row of `copies`. Lanes that copy together are noted down as one, see `warp_copies.py`.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.bulk import warp_copies
from fuzz.devices.emulator.sanitize import global_lines, lane_order, shared_lines
from fuzz.devices.emulator.sanitize.shadow import note
from fuzz.devices.emulator.sanitize.shared_shadow import begin_copy, end_copy
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import (
    address,
    finding,
    host_address,
    operand,
    own_shared,
    segment_of,
    wake,
)
from fuzz.devices.emulator.state.intrinsics import copy16, i64, s32, u32


@njit
def copy_async(m, w, pc, wb, cb, c, act):
    """cp.async: only noted down here; the data arrives as late as PTX allows, when a wait asks for it."""
    if m.k[st.K_CHECKS]:
        lane_order.copies(m, w, act)
    if warp_copies.issue(m, w, pc, wb, cb, c, act):
        return
    a64 = s32(c + 8) >> op.ADDRESS64 & 1
    to = operand(wb, cb, s32(c + 12))
    to_immediate = s32(c + 16)
    source = operand(wb, cb, s32(c + 20))
    source_immediate = s32(c + 24)
    size = s32(c + 28)
    limit = s32(c + 32)
    m.wrote[w] = 1
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    prefix, shared, memory = own_shared(m, w)
    low, high, delta = 0, 0, 0
    whole, stored = 0, 0  # lanes whose reads of global memory, and whose writes of shared memory, are noted
    writes = 0  # lanes that copy to shared memory, where that is checked
    if checking:
        stored = shared_lines.write_groups(m, w, to, a64, to_immediate, act, size)
        if limit == op.ABSENT:
            whole = global_lines.groups(m, w, source, source_immediate, act, size, 0)
        else:
            copied = 0
            for lane in range(32):
                if u32(operand(wb, cb, limit) + 4 * lane) == size:
                    copied |= act & 1 << lane
            whole = global_lines.groups(m, w, source, source_immediate, copied, size, 0)
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(to, a64, lane, to_immediate)
        x = a ^ prefix
        if op.RESERVED_SHARED <= x <= shared - size and x & (size - 1) == 0:
            h = memory + x
        else:
            h = host_address(m, w, pc, lane, op.SHARED, a, size)
        s = i64(source + 8 * lane) + source_immediate
        n = size
        if limit != op.ABSENT:
            n = u32(operand(wb, cb, limit) + 4 * lane)
            if n > size:  # undefined
                finding(m, st.F_COPY_SIZE, pc, w, lane, s, size, n)
                n = size
        g = 0
        if n == size and s >= low and s + n <= high and s & (size - 1) == 0:
            g = s + delta
        elif n > 0:
            if s & (size - 1):
                finding(m, st.F_ALIGN, pc, w, lane, s, size, op.GLOBAL)
            g = (
                host_address(m, w, pc, lane, op.GLOBAL, s, n)
                if n & (n - 1) == 0
                else host_address(m, w, pc, lane, op.GLOBAL, s, 1)
            )
            if g == 0:  # what cannot be read is zero
                n, g = 0, h
            else:
                low, high, delta = segment_of(m, s)
        if h == 0:
            continue
        if checking:
            if n > 0 and not whole >> lane & 1:
                note(m, w, pc, lane, op.GLOBAL, s, n, 0, 0)
            if not stored >> lane & 1:
                note(m, w, pc, lane, op.SHARED, a, size, 1, 0)
            writes |= 1 << lane
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
    for lane in range(32):  # after all writes are noted: two lanes that copy to one place do so together
        if writes >> lane & 1:
            begin_copy(m, w, address(to, a64, lane, to_immediate), size)


@njit
def commit(m, w, act):
    for lane in range(32):
        if act >> lane & 1:
            m.groups[w, lane] += 1


@njit
def complete(m, w, act, keep):
    """Makes the copies of all but the last `keep` committed groups of the lanes arrive (-1: everything issued)."""
    n = m.pending[w]
    if n == 0:
        return
    left, i = 0, 0
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    if checking:
        lane_order.copied(m, w, act)
    first = st.address_of(m.copies, w * st.COPIES * 8)
    groups = st.address_of(m.groups, w * 32)
    while i < n:
        row = first + 64 * i
        lane, group = i64(row + 8 * st.COPY_LANE), i64(row + 8 * st.COPY_GROUP)
        together = lane == warp_copies.WARP
        rows = i64(row + 8 * st.COPY_ADDRESS) if together else 1
        i += rows
        if together:
            done = warp_copies.complete(m, w, act, keep, row, groups, checking)
        else:
            done = act >> lane & 1 and (keep < 0 or group < i64(groups + 8 * lane) - keep)
        if not done:
            to = first + 64 * left
            if to != row:
                for j in range(0, 64 * min(rows, warp_copies.WARP_ROWS), 16):
                    copy16(to + j, row + j)
            left += rows
            continue
        if together:
            continue
        to, source = i64(row + 8 * st.COPY_TO), i64(row + 8 * st.COPY_FROM)
        size, have = i64(row + 8 * st.COPY_BYTES), i64(row + 8 * st.COPY_HAVE)
        warp_copies.copy(to, source, size, have)
        if checking:
            end_copy(m, w, i64(row + 8 * st.COPY_ADDRESS), size)
        if m.k[st.K_SLEEPERS]:
            wake(m, to, size)
    m.pending[w] = left
    if left == 0:
        m.lanes[w, st.LANES_COPIES] = 0
    if left != n:
        m.wrote[w] = 1
