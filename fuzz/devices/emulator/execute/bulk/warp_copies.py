"""cp.async of lanes that copy together: noted down as one, and carried out as one. Compiled by numba.

The rows of `copies` that such lanes would have are used in another way: the first has WARP for a lane, two masks of
lanes (those that are left, and those that read: the others get zeros), the bytes of each and, in place of an address,
the number of rows; then come the lanes' host addresses, WARP_ROWS in all.

Where memory is checked, they are lanes of 16 bytes whose accesses are all ordered as they should be, line by line.
`cp_async.py` has all other lanes, and what is found.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import global_lines, shared_lines
from fuzz.devices.emulator.sanitize.shared_shadow import end_copy
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, operand, own_shared, wake
from fuzz.devices.emulator.state.intrinsics import copy16, ctz, i64, popc, s32, u8, u32, w8, w64
from fuzz.devices.emulator.state.lane_addresses import locate

WARP = 32
WARP_ROWS = 9
TO_LANES, FROM_LANES = 64, 320  # from the row on, in bytes: host addresses to write and to read
EVERY = 0xFFFFFFFF


@njit
def issue(m, w, pc, wb, cb, c, act):
    """cp.async of lanes that copy all of their bytes or none, have committed the same number of groups, and do nothing
    that is found. False where they are not that: then nothing is noted down."""
    to = operand(wb, cb, s32(c + 12))
    source = operand(wb, cb, s32(c + 20))
    size, limit = s32(c + 28), s32(c + 32)
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    if checking and (size != 16 or not shared_lines.writes_lines(m, w)):
        return False
    i, lanes = m.pending[w], popc(act)
    if lanes < WARP_ROWS or i + lanes > st.COPIES:  # too many: the general function says so
        return False
    group = m.groups[w, ctz(act)]
    for lane in range(32):
        if act >> lane & 1 and m.groups[w, lane] != group:
            return False
    row = st.address_of(m.copies, (w * st.COPIES + i) * 8)
    if not locate(m, w, op.SHARED, to, s32(c + 8) >> op.ADDRESS64 & 1, s32(c + 16), size, act, row + TO_LANES):
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
    if reads and not locate(m, w, op.GLOBAL, source, 1, s32(c + 24), size, reads, row + FROM_LANES):
        return False
    if checking and not _ordered(m, w, source, s32(c + 24), row, act, reads):
        return False
    m.wrote[w] = 1
    w64(row + 8 * st.COPY_LANE, WARP)
    w64(row + 8 * st.COPY_GROUP, group)
    w64(row + 8 * st.COPY_TO, act)
    w64(row + 8 * st.COPY_FROM, reads)
    w64(row + 8 * st.COPY_BYTES, size)
    w64(row + 8 * st.COPY_ADDRESS, lanes)
    w64(row + 8 * st.COPY_PC, pc)
    m.pending[w] = i + lanes
    return True


@njit
def _ordered(m, w, source, immediate, row, act, reads):
    """Notes the lanes' reads and writes; False where one is not ordered as it should be. All of them may be noted once
    more then: a note of the same access at the same clock changes nothing."""
    if reads:
        first = ctz(reads)
        a = address(source, 1, first, immediate)
        delta = i64(row + FROM_LANES + 8 * first) - a
        if global_lines.read_lines(m, w, a >> op.SHIFT, row + FROM_LANES, delta, reads) != reads:
            return False
    of = shared_lines.lines_of(m, w)
    readers = shared_lines.readers_known(m, w, of)
    _, _, memory = own_shared(m, w)
    if shared_lines.write_lines(of, row + TO_LANES, memory, act, m.k[st.K_KNOWN], readers) != act:
        return False
    shared_lines.begin_copies(of, row + TO_LANES, memory, act)
    return True


@njit
def copy(to, source, size, have):
    """`have` bytes, and zeros up to `size`."""
    if have == 16:
        copy16(to, source)
    else:
        for j in range(size):
            w8(to + j, u8(source + j) if j < have else 0)


@njit
def complete(m, w, act, keep, row, groups, checking):
    """Makes the due copies of a row of several lanes arrive, and takes their lanes out of its mask; True if none is
    left. keep: see cp_async.complete; groups: address of the lanes' numbers of committed groups."""
    mask, reads, size = i64(row + 8 * st.COPY_TO), i64(row + 8 * st.COPY_FROM), i64(row + 8 * st.COPY_BYTES)
    group = i64(row + 8 * st.COPY_GROUP)
    due = mask & act
    if keep >= 0:
        for lane in range(32):
            if group >= i64(groups + 8 * lane) - keep:
                due &= ~(1 << lane)
    if due == 0:
        return mask == 0
    sleepers = m.k[st.K_SLEEPERS]
    if due == EVERY and reads == EVERY and size == 16 and not sleepers:
        for lane in range(0, 256, 8):
            copy16(i64(row + TO_LANES + lane), i64(row + FROM_LANES + lane))
    else:
        for lane in range(32):
            if due >> lane & 1:
                to = i64(row + TO_LANES + 8 * lane)
                full = reads >> lane & 1
                copy(to, i64(row + FROM_LANES + 8 * lane) if full else to, size, size if full else 0)
                if sleepers:
                    wake(m, to, size)
    if checking:
        _arrive(m, w, row, due)
    m.wrote[w] = 1
    w64(row + 8 * st.COPY_TO, mask & ~due)
    return due == mask


@njit
def _arrive(m, w, row, due):
    """Notes the writes of copies that arrive, as late as now."""
    _, _, memory = own_shared(m, w)
    noted = shared_lines.end_copies(shared_lines.lines_of(m, w), row + TO_LANES, memory, due)
    for lane in range(32):
        if (due & ~noted) >> lane & 1:
            end_copy(m, w, i64(row + TO_LANES + 8 * lane) - memory, i64(row + 8 * st.COPY_BYTES))
