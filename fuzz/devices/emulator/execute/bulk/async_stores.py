"""st.async and red.async: words for the shared memory of a CTA of the cluster, and bytes for an mbarrier there.
Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.bulk import copies as bulk_copies
from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, finding, host_address, offset, operand, owner
from fuzz.devices.emulator.state.intrinsics import i64, s32, u32


@njit
def issue(m, w, pc, wb, cb, c, act):
    """One store for each active lane."""
    flags, operation = s32(c + 8), s32(c + 32)
    count, size = flags & 255, flags >> op.SIZE & 255
    space = flags >> op.SPACE & 15
    slot, b, new = w // m.k[st.K_WARPS], m.bulk, st.BULKS
    m.wrote[w] = 1
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(operand(wb, cb, s32(c + 12)), flags >> op.ADDRESS64 & 1, lane, s32(c + 16))
        barrier_at = address(operand(wb, cb, s32(c + 20)), s32(c + 28), lane, s32(c + 24))
        to = host_address(m, w, pc, lane, space, a, count * size)
        barrier = host_address(m, w, pc, lane, space, barrier_at, 8)
        if to == 0 or barrier == 0:
            continue
        data = owner(m, w, a)
        if owner(m, w, barrier_at) != data:
            finding(m, st.F_CLUSTER_MBARRIER, pc, w, lane, barrier_at, count * size, a)
            continue
        b[slot, new, st.B_KIND] = op.BULK_WORDS if operation == op.ABSENT else op.BULK_WORDS_REDUCE
        b[slot, new, st.B_WARP], b[slot, new, st.B_LANE], b[slot, new, st.B_PC] = w, lane, pc
        b[slot, new, st.B_SHARED], b[slot, new, st.B_GLOBAL] = offset(a), 0
        b[slot, new, st.B_BARRIER], b[slot, new, st.B_BARRIER_AT] = barrier, barrier_at
        b[slot, new, st.B_BYTES], b[slot, new, st.B_RANK], b[slot, new, st.B_READ] = count * size, 0, 0
        b[slot, new, st.B_OPERATION] = operation
        b[slot, new, st.B_HOST] = bulk_copies.memory_of(m, data)
        for j in range(count):
            x = operand(wb, cb, s32(c + 36 + 4 * j))
            if size == 8:
                b[slot, new, st.B_X + j] = i64(x + 8 * lane)
            elif j & 1:
                b[slot, new, st.B_X + (j >> 1)] |= u32(x + 4 * lane) << 32
            else:
                b[slot, new, st.B_X + (j >> 1)] = u32(x + 4 * lane)
        bulk_copies.post(m, w)
    if m.k[st.K_CHECKS]:
        vector_clocks.tick(m, w)
