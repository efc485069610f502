"""Loads and stores of a warp where every lane's access is a plain one (`state/lane_addresses.py`) and needs no check,
or has been checked. Compiled by numba.

Each function looks first and does nothing where it returns False: then the general one (`load_store.py`) makes the
access, lane by lane, and its findings.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import operand
from fuzz.devices.emulator.state.intrinsics import i64, s8, s16, s32, u8, u16, u32, w8, w16, w32, w64
from fuzz.devices.emulator.state.lane_addresses import HOSTS, locate

EVERY = 0xFFFFFFFF


@njit
def load(m, w, wb, cb, c, act):
    flags = s32(c + 8)
    count = flags & 255
    size = flags >> op.SIZE & 255
    wide, signed = flags >> op.WIDE & 1, flags >> op.SIGNED & 1
    hosts = m.k[st.K_SCRATCH] + HOSTS
    base = operand(wb, cb, s32(c + 12))
    space, a64 = flags >> op.SPACE & 15, flags >> op.ADDRESS64 & 1
    if not locate(m, w, space, base, a64, s32(c + 16), count * size, act, hosts):
        return False
    one = space == op.PARAM and s32(c + 12) < 0 and act == EVERY and not signed  # address, for all lanes
    for j in range(count):
        d = s32(c + 20 + 4 * j)
        if d == op.ABSENT:
            continue
        d += wb
        at = j * size
        if one and size == 8:
            v = i64(i64(hosts) + at)
            for lane in range(32):
                w64(d + 8 * lane, v)
        elif one and size == 4 and not wide:
            v = u32(i64(hosts) + at)
            for lane in range(32):
                w32(d + 4 * lane, v)
        elif size == 4 and not wide:
            for lane in range(32):
                if act >> lane & 1:
                    w32(d + 4 * lane, u32(i64(hosts + 8 * lane) + at))
        elif size == 8:
            for lane in range(32):
                if act >> lane & 1:
                    w64(d + 8 * lane, i64(i64(hosts + 8 * lane) + at))
        else:
            for lane in range(32):
                if act >> lane & 1:
                    h = i64(hosts + 8 * lane) + at
                    if size == 4:
                        v = s32(h) if signed else u32(h)
                    elif size == 2:
                        v = s16(h) if signed else u16(h)
                    else:
                        v = s8(h) if signed else u8(h)
                    if wide:
                        w64(d + 8 * lane, v)
                    else:
                        w32(d + 4 * lane, v & 0xFFFF if flags >> op.HALF & 1 else v)
    return True


@njit
def store(m, w, wb, cb, c, act):
    if m.k[st.K_SLEEPERS]:  # some warp may have to be woken
        return False
    flags = s32(c + 8)
    count = flags & 255
    size = flags >> op.SIZE & 255
    wide = flags >> op.WIDE & 1
    hosts = m.k[st.K_SCRATCH] + HOSTS
    base = operand(wb, cb, s32(c + 12))
    space, a64 = flags >> op.SPACE & 15, flags >> op.ADDRESS64 & 1
    if not locate(m, w, space, base, a64, s32(c + 16), count * size, act, hosts):
        return False
    m.wrote[w] = 1
    for lane in range(32):
        if not act >> lane & 1:
            continue
        at = i64(hosts + 8 * lane)
        for j in range(count):
            x = operand(wb, cb, s32(c + 20 + 4 * j))
            v = i64(x + 8 * lane) if wide else u32(x + 4 * lane)
            if size == 4:
                w32(at, v)
            elif size == 8:
                w64(at, v)
            elif size == 2:
                w16(at, v)
            else:
                w8(at, v)
            at += size
    return True
