"""Loads, stores and cp.async of a warp where memory is not checked and every lane's access is a plain one: aligned, in
the shared memory of the warp's CTA, in the parameters or in one segment of global memory. Compiled by numba.

Each function looks first and does nothing where it returns False: then the general one (`load_store.py`, `cp_async.py`)
makes the access, lane by lane, and its findings.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.bulk.cp_async import COPY_FROM_LANES, COPY_TO_LANES, WARP, WARP_ROWS
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, operand
from fuzz.devices.emulator.state.intrinsics import (
    ctz,
    host_addresses32,
    host_addresses64,
    i64,
    popc,
    s8,
    s16,
    s32,
    u8,
    u16,
    u32,
    w8,
    w16,
    w32,
    w64,
)

HOSTS = 3072  # of the scratch memory: host addresses of the lanes


@njit
def window(m, w, space, a):
    """(lowest address, one behind the highest, what leads to the host's address) of the memory around an address of the
    kernel; nothing (0, 0, 0) where it is not memory that is taken here."""
    k = m.k
    if space == op.SHARED:
        return 0, k[st.K_SHARED_SIZE], k[st.K_SHARED] + (w // k[st.K_WARPS]) * k[st.K_SHARED_STRIDE]
    if space == op.GLOBAL or space == op.GENERIC:
        s = a >> op.SHIFT
        if op.FIRST_SEGMENT <= s < k[st.K_SEGMENTS]:
            low = m.segments[s, st.S_LOW]
            return low, m.segments[s, st.S_HIGH], m.segments[s, st.S_HOST] - low
    elif space == op.PARAM and a >> op.SHIFT == 0:
        return 0, k[st.K_PARAMS_SIZE], k[st.K_PARAMS]
    return 0, 0, 0


@njit
def locate(m, w, space, base, wide, immediate, size, act, to):
    """Writes the host addresses of the lanes' accesses of `size` bytes to `to`, 8 bytes each; False where one of those
    in `act` is not plain."""
    low, high, delta = window(m, w, space, address(base, wide, ctz(act), immediate))
    if wide:
        outside = host_addresses64(base, immediate, low, high - size, size - 1, delta, to)
    else:
        outside = host_addresses32(base, immediate, low, high - size, size - 1, delta, to)
    return outside & act == 0


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
    for j in range(count):
        d = s32(c + 20 + 4 * j)
        if d == op.ABSENT:
            continue
        d += wb
        at = j * size
        if size == 4 and not wide:
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


@njit
def copy_async(m, w, pc, wb, cb, c, act):
    """cp.async of lanes that copy all of their bytes or none, and have committed the same number of groups: see
    cp_async.py for its rows of `copies`."""
    to = operand(wb, cb, s32(c + 12))
    source = operand(wb, cb, s32(c + 20))
    size, limit = s32(c + 28), s32(c + 32)
    i, lanes = m.pending[w], popc(act)
    if lanes < WARP_ROWS or i + lanes > st.COPIES:  # too many: the general function says so
        return False
    group = m.groups[w, ctz(act)]
    for lane in range(32):
        if act >> lane & 1 and m.groups[w, lane] != group:
            return False
    row = st.address_of(m.copies, (w * st.COPIES + i) * 8)
    if not locate(m, w, op.SHARED, to, s32(c + 8) >> op.ADDRESS64 & 1, s32(c + 16), size, act, row + COPY_TO_LANES):
        return False
    reads = act
    if limit != op.ABSENT:
        have = operand(wb, cb, limit)
        reads = 0
        for lane in range(32):
            n = u32(have + 4 * lane)
            if act >> lane & 1:
                if n == size:
                    reads |= 1 << lane
                elif n:
                    return False
    if reads and not locate(m, w, op.GLOBAL, source, 1, s32(c + 24), size, reads, row + COPY_FROM_LANES):
        return False
    m.wrote[w] = 1
    w64(row + 8 * st.COPY_LANE, WARP)
    w64(row + 8 * st.COPY_GROUP, group)
    w64(row + 8 * st.COPY_TO, act)
    w64(row + 8 * st.COPY_FROM, reads)
    w64(row + 8 * st.COPY_BYTES, size)
    w64(row + 8 * st.COPY_ADDRESS, lanes)
    m.pending[w] = i + lanes
    return True
