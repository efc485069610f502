"""Cluster launch control: clusterlaunchcontrol.try_cancel takes a cluster that has not started out of the grid.
Compiled by numba.

The request is decided when it is issued: it gets the next cluster in the order of dispatch, or fails where none is
left. PTX lets it fail at any time, and does not say when: with the random schedule one in REFUSED_OF does, and the
cluster starts later as usual. The response is written as bulk copies are (`bulk/copies.py`): when the mbarrier is asked
for its phase.

The 16 bytes of a response, which PTX leaves opaque: x, y, z of the cluster's first CTA; 1 if it is cancelled. Those of
a request that failed are all ones and 0.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.bulk import copies as bulk_copies
from fuzz.devices.emulator.execute.chance import chance
from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, finding, host_address, offset, operand
from fuzz.devices.emulator.state.intrinsics import s32

RESPONSE = 16  # bytes
REFUSED_OF = 8
OBSERVED = 1  # value of CTA_REFUSAL


@njit
def try_cancel(m, w, pc, wb, cb, c, act):
    """One request for each active lane."""
    flags = s32(c + 8)
    slot, b, new = w // m.k[st.K_WARPS], m.bulk, st.BULKS
    m.wrote[w] = 1
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(operand(wb, cb, s32(c + 12)), flags & op.CLC_WIDE, lane, s32(c + 16))
        barrier_at = address(operand(wb, cb, s32(c + 20)), flags & op.CLC_WIDE_BARRIER, lane, s32(c + 24))
        if a >> op.SHIFT == 1:
            a -= op.SHARED_WINDOW
        if barrier_at >> op.SHIFT == 1:
            barrier_at -= op.SHARED_WINDOW
        to = host_address(m, w, pc, lane, op.SHARED, a, RESPONSE)
        barrier = host_address(m, w, pc, lane, op.SHARED, barrier_at, 8)
        if to == 0 or barrier == 0:
            continue
        if m.cta[slot, st.CTA_REFUSAL] == OBSERVED:
            finding(m, st.F_CLC_AGAIN, pc, w, lane, a, RESPONSE, 0)
        b[slot, new, st.B_KIND], b[slot, new, st.B_PC] = op.BULK_RESPONSE, pc
        b[slot, new, st.B_WARP], b[slot, new, st.B_LANE] = w, lane
        b[slot, new, st.B_SHARED], b[slot, new, st.B_GLOBAL] = offset(a), 0
        b[slot, new, st.B_BARRIER], b[slot, new, st.B_BARRIER_AT] = barrier, barrier_at
        b[slot, new, st.B_BYTES], b[slot, new, st.B_RANK], b[slot, new, st.B_READ] = RESPONSE, 0, 0
        b[slot, new, st.B_HOST] = bulk_copies.memory_of(m, slot)
        respond(m, slot)
        if flags & op.CLC_ALL and m.k[st.K_CLUSTER] > 1:
            bulk_copies.post_to_many(m, w, pc, lane, (1 << m.k[st.K_CLUSTER]) - 1, 0)
        else:
            bulk_copies.post(m, w)
    if m.k[st.K_CHECKS]:
        vector_clocks.tick(m, w)


@njit
def respond(m, slot):
    """Decides the request that stands as the last entry of the table of the CTA in row `slot`."""
    k, b, new = m.k, m.bulk, st.BULKS
    b[slot, new, st.B_OPERATION] = 0
    b[slot, new, st.B_X], b[slot, new, st.B_X1] = -1, 0xFFFFFFFF
    exploring = k[st.K_WRITER] != 0
    if exploring or k[st.K_NEXT] >= k[st.K_CTAS]:
        return
    if k[st.K_POLICY] == st.RANDOM and chance(m) % REFUSED_OF == 0:
        return
    linear = m.order[k[st.K_NEXT]]
    k[st.K_NEXT] += k[st.K_CLUSTER]
    k[st.K_CANCELLED] += k[st.K_CLUSTER]
    wide, high = k[st.K_GRID_X], k[st.K_GRID_Y]
    b[slot, new, st.B_OPERATION] = 1  # it succeeded
    b[slot, new, st.B_X] = linear % wide | (linear // wide % high) << 32
    b[slot, new, st.B_X1] = linear // (wide * high) | 1 << 32
