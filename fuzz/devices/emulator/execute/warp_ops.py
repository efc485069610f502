"""Instructions that carry values between the lanes of a warp: shfl, vote, match, redux, elect. Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding, operand
from fuzz.devices.emulator.state.intrinsics import ctz, i64, popc, s32, u32, w32


@njit(inline="always")
def write_predicate(at, act, value):
    """Sets bit i of the predicate at `at` to bit i of `value` for the active lanes."""
    w32(at, (u32(at) & ~act) | (value & act))


@njit
def shuffle(m, w, wb, cb, c, act):
    """shfl.sync: the source lane stays inside the segment that the clamp operand cuts; else a lane keeps its own
    value.
    """
    mode = s32(c + 8)
    d, p = wb + s32(c + 12), s32(c + 16)
    value, lanes, clamp = operand(wb, cb, s32(c + 20)), operand(wb, cb, s32(c + 24)), operand(wb, cb, s32(c + 28))
    scratch = m.k[st.K_SCRATCH]
    for i in range(32):
        w32(scratch + 4 * i, u32(value + 4 * i))
        w32(scratch + 128 + 4 * i, u32(lanes + 4 * i))
    inside = 0
    for lane in range(32):
        if not act >> lane & 1:
            continue
        by = u32(scratch + 128 + 4 * lane) & 31
        cv = u32(clamp + 4 * lane)
        segment, limit = cv >> 8 & 31, cv & 31
        most = (lane & segment) | (limit & ~segment & 31)
        least = lane & segment
        if mode == op.UP:
            j = lane - by
            ok = j >= most
        elif mode == op.DOWN:
            j = lane + by
            ok = j <= most
        elif mode == op.BFLY:
            j = lane ^ by
            ok = j <= most
        else:
            j = least | (by & ~segment & 31)
            ok = j <= most
        if not ok:
            j = lane
        else:
            inside |= 1 << lane
        w32(d + 4 * lane, u32(scratch + 4 * j))
    if p != op.ABSENT:
        write_predicate(wb + p, act, inside)


@njit
def vote(wb, c, act):
    mode = s32(c + 8)
    d = wb + s32(c + 12)
    p = u32(wb + s32(c + 16))
    if s32(c + 20):
        p = ~p & 0xFFFFFFFF
    p &= act
    if mode == op.BALLOT:
        for lane in range(32):
            if act >> lane & 1:
                w32(d + 4 * lane, p)
    elif mode == op.ALL:
        write_predicate(d, act, act if p == act else 0)
    elif mode == op.ANY:
        write_predicate(d, act, act if p else 0)
    else:
        write_predicate(d, act, act if p == act or p == 0 else 0)


@njit
def redux(wb, cb, c, act):
    """Integer reductions over the lanes: the operation is twice its number, plus 1 when signed."""
    operation = s32(c + 8) >> 1
    signed = s32(c + 8) & 1
    x = operand(wb, cb, s32(c + 16))
    first = ctz(act)
    r = s32(x + 4 * first) if signed else u32(x + 4 * first)
    for lane in range(first + 1, 32):
        if not act >> lane & 1:
            continue
        v = s32(x + 4 * lane) if signed else u32(x + 4 * lane)
        if operation == 0:
            r += v
        elif operation == 1:
            r = min(r, v)
        elif operation == 2:
            r = max(r, v)
        elif operation == 3:
            r &= v
        elif operation == 4:
            r |= v
        else:
            r ^= v
    d = wb + s32(c + 12)
    for lane in range(32):
        if act >> lane & 1:
            w32(d + 4 * lane, r)


@njit
def match(m, wb, cb, c, act):
    every = s32(c + 8)
    d, p = wb + s32(c + 12), s32(c + 16)
    x, wide = operand(wb, cb, s32(c + 20)), s32(c + 24)
    scratch = m.k[st.K_SCRATCH]
    same = True
    for lane in range(32):
        if not act >> lane & 1:
            continue
        mine = i64(x + 8 * lane) if wide else u32(x + 4 * lane)
        r = 0
        for j in range(32):
            if act >> j & 1 and (i64(x + 8 * j) if wide else u32(x + 4 * j)) == mine:
                r |= 1 << j
        if r != act:
            same = False
        w32(scratch + 4 * lane, r)
    for lane in range(32):
        if act >> lane & 1:
            w32(d + 4 * lane, (act if same else 0) if every else u32(scratch + 4 * lane))
    if p != op.ABSENT:
        write_predicate(wb + p, act, act if same else 0)


@njit
def elect(wb, c, act, members):
    """elect.sync: the lowest member leads."""
    leader = ctz(members)
    d = s32(c + 8)
    if d != op.ABSENT:
        for lane in range(32):
            if act >> lane & 1:
                w32(wb + d + 4 * lane, leader)
    write_predicate(wb + s32(c + 12), act, 1 << leader)


@njit
def barrier(m, w, pc, wb, cb, c, act):
    """bar.sync, bar.arrive, bar.red by one warp. True when the warp must wait. PTX counts whole warps, whoever is
    active.
    """
    slot, warps = w // m.k[st.K_WARPS], m.k[st.K_WARPS]
    kind = s32(c + 8)
    first = ctz(act)
    number = u32(operand(wb, cb, s32(c + 12)) + 4 * first)
    if number > 15:
        finding(m, st.F_BARRIER_ID, pc, w, first, number, 0, 0)
        return False
    count = 0  # 0: every warp that has not exited
    if s32(c + 16) != op.ABSENT:
        count = u32(operand(wb, cb, s32(c + 16)) + 4 * first)
        if count == 0 or count & 31 or count > 32 * warps:
            finding(m, st.F_BARRIER_COUNT, pc, w, first, number, 0, count)
    if m.arrived[slot, number] and m.expected[slot, number] != count:
        finding(m, st.F_BARRIER_COUNT, pc, w, first, number, m.expected[slot, number], count)
    if m.arrived[slot, number] == 0:
        m.gathered[slot, number, st.RED_ALL] = 1
        m.gathered[slot, number, st.RED_ANY] = 0
        m.gathered[slot, number, st.RED_COUNT] = 0
    if m.k[st.K_CHECKS]:
        vector_clocks.arrive(m, w, number)
    m.arrived[slot, number] += 32
    m.expected[slot, number] = count
    m.barrier_at[w, st.AT_NUMBER] = number
    m.barrier_at[w, st.AT_DESTINATION] = op.ABSENT
    m.barrier_at[w, st.AT_KIND] = kind
    m.wrote[w] = 1
    if kind >= op.RED_AND:
        p = u32(wb + s32(c + 20))
        if s32(c + 24):
            p = ~p & 0xFFFFFFFF
        p &= act
        if p != act:
            m.gathered[slot, number, st.RED_ALL] = 0
        if p:
            m.gathered[slot, number, st.RED_ANY] = 1
        m.gathered[slot, number, st.RED_COUNT] += popc(p)
        m.barrier_at[w, st.AT_DESTINATION] = s32(c + 28)
    if kind != op.ARRIVE:
        m.status[w] = st.AT_BARRIER
    check_barrier(m, slot, number)
    return m.status[w] == st.AT_BARRIER


@njit
def check_barrier(m, slot, number):
    """Completes a barrier that everyone expected has reached: its warps go on, and it is free again."""
    warps = m.k[st.K_WARPS]
    count = m.expected[slot, number]
    if count == 0:
        count = 32 * m.cta[slot, st.CTA_WARPS]
    if m.arrived[slot, number] == 0 or m.arrived[slot, number] < count:
        return
    m.arrived[slot, number] = 0
    m.expected[slot, number] = 0
    for w in range(slot * warps, slot * warps + warps):
        if m.status[w] == st.AT_BARRIER and m.barrier_at[w, st.AT_NUMBER] == number:
            m.status[w] = st.RUNNING
            if m.k[st.K_CHECKS]:
                vector_clocks.depart(m, w, number)
            d, kind = m.barrier_at[w, st.AT_DESTINATION], m.barrier_at[w, st.AT_KIND]
            if d == op.ABSENT:
                continue
            at = m.k[st.K_REGISTERS] + w * m.k[st.K_STRIDE] + d
            value = m.gathered[slot, number, kind - op.RED_AND]
            if kind == op.RED_POPC:
                for lane in range(32):
                    if m.mask[w] >> lane & 1:
                        w32(at + 4 * lane, value)
            else:
                write_predicate(at, m.mask[w], 0xFFFFFFFF if value else 0)
    if m.k[st.K_CHECKS]:
        vector_clocks.clear(m, vector_clocks.barrier_row(m, slot, number))
