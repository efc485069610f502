"""Copies from one CTA of a cluster to another: cp.async.bulk and cp.reduce.async.bulk between their shared memories,
st.async and red.async; and
responses of clusterlaunchcontrol.try_cancel. Compiled by numba.

They stand among the bulk copies of the CTA that has their mbarrier (`bulk/copies.py`), and arrive when it is asked for
its phase. st.async and red.async write by the generic proxy.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.atomics import combine
from fuzz.devices.emulator.sanitize import bulk_clocks, shared_shadow
from fuzz.devices.emulator.sanitize.scopes import STRONG
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import wake
from fuzz.devices.emulator.state.intrinsics import copy16, i64, u32, w32, w64


@njit
def note_copy(m, slot, i):
    """Notes the accesses of entry `i`, by its agent."""
    b = m.bulk
    w, pc, lane, kind = b[slot, i, st.B_WARP], b[slot, i, st.B_PC], b[slot, i, st.B_LANE], b[slot, i, st.B_KIND]
    who, clock = bulk_clocks.in_cluster(m, slot, b[slot, i, st.B_AGENT]), b[slot, i, st.B_CLOCK]
    to, bytes_ = b[slot, i, st.B_SHARED], b[slot, i, st.B_BYTES]
    data = (b[slot, i, st.B_HOST] - m.k[st.K_SHARED]) // m.k[st.K_SHARED_STRIDE]
    if kind == op.BULK_LOCAL:
        source = b[slot, i, st.B_GLOBAL]
        shared_shadow.note_async_read_by(m, w, pc, lane, source, bytes_, who, clock, st.F_BULK_PROXY)
        if b[slot, i, st.B_OPERATION] & op.BULK_REDUCES:  # reductions of several CTAs meet without a race
            shared_shadow.note_shared_by(m, w, data, pc, lane, to, bytes_, 2, STRONG, who, clock)
            return
        shared_shadow.note_async_write(m, w, data, pc, lane, to, bytes_, who, clock)
        return
    if kind == op.BULK_RESPONSE:
        shared_shadow.note_async_write(m, w, data, pc, lane, to, bytes_, who, clock)
        return
    write, strong = (2, STRONG) if kind == op.BULK_WORDS_REDUCE else (1, 0)
    shared_shadow.note_shared_by(m, w, data, pc, lane, to, bytes_, write, strong, who, clock)


@njit
def _reduce(to, source, bytes_, operation, kind):
    """Combines numbers of 32 bits, or of 64 for op.T_U64, with those of another CTA."""
    if kind == op.T_U64:
        for at in range(0, bytes_, 8):
            w64(to + at, combine(operation, kind, i64(to + at), i64(source + at), 0))
    else:
        for at in range(0, bytes_, 4):
            w32(to + at, combine(operation, kind, u32(to + at), u32(source + at), 0))


@njit
def copy(m, slot, i):
    """Moves the data of entry `i`."""
    b = m.bulk
    to, bytes_ = b[slot, i, st.B_HOST] + b[slot, i, st.B_SHARED], b[slot, i, st.B_BYTES]
    if b[slot, i, st.B_KIND] == op.BULK_LOCAL:
        own = b[slot, i, st.B_WARP] // m.k[st.K_WARPS]
        source = m.k[st.K_SHARED] + own * m.k[st.K_SHARED_STRIDE] + b[slot, i, st.B_GLOBAL]
        if b[slot, i, st.B_OPERATION] & op.BULK_REDUCES:
            _reduce(to, source, bytes_, b[slot, i, st.B_OPERATION] >> 8 & 255, b[slot, i, st.B_OPERATION] & 255)
        else:
            for at in range(0, bytes_, 16):
                copy16(to + at, source + at)
    elif b[slot, i, st.B_KIND] == op.BULK_WORDS or b[slot, i, st.B_KIND] == op.BULK_RESPONSE:
        for j in range(bytes_ >> 2):
            w32(to + 4 * j, b[slot, i, st.B_X + (j >> 1)] >> 32 * (j & 1))
        if b[slot, i, st.B_KIND] == op.BULK_RESPONSE and b[slot, i, st.B_OPERATION] == 0:
            its = (b[slot, i, st.B_HOST] - m.k[st.K_SHARED]) // m.k[st.K_SHARED_STRIDE]
            if m.cta[its, st.CTA_REFUSAL] == 0:
                m.cta[its, st.CTA_REFUSAL] = b[slot, i, st.B_BARRIER]
    else:
        kind, operation = b[slot, i, st.B_OPERATION] & 255, b[slot, i, st.B_OPERATION] >> 8
        if bytes_ == 8:
            w64(to, combine(operation, kind, i64(to), b[slot, i, st.B_X], 0))
        else:
            w32(to, combine(operation, kind, u32(to), b[slot, i, st.B_X] & 0xFFFFFFFF, 0))
    if m.k[st.K_SLEEPERS]:
        wake(m, to, bytes_)
