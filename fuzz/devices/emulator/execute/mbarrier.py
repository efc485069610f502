"""mbarrier objects in shared memory: init, arrive, expect_tx, test_wait and try_wait. Compiled by numba.

Arrivals may be at an mbarrier of another CTA of the cluster; which CTAs have arrived is remembered for reports.

An arrival releases and a wait that succeeds acquires, phase by phase: `vector_clocks` keeps what arrives under the
object's address, and what the last completed phase brought under the one four bytes further. try_wait never blocks: a
spin sleeps anyway.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.bulk import copies as bulk_copies
from fuzz.devices.emulator.execute.mbarrier_phase import note_arrival, settle
from fuzz.devices.emulator.sanitize import cluster_order, lane_order, vector_clocks
from fuzz.devices.emulator.sanitize.shadow import note
from fuzz.devices.emulator.sanitize.shared_shadow import note_shared_by
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, finding, host_address, offset, operand, remember_read
from fuzz.devices.emulator.state.intrinsics import i64, s32, u32, w32, w64
from fuzz.devices.emulator.state.mbarrier_word import (
    MOST,
    bytes_to_come,
    is_mbarrier,
    missing_of,
    packed,
    phase_of,
    wanted_of,
)


@njit
def mbarrier(m, w, pc, wb, cb, c, act):
    """One instruction by the active lanes, one after another."""
    k = m.k
    kind = s32(c + 8) & 15
    relaxed = s32(c + 8) & op.MB_RELAXED
    a64 = s32(c + 8) >> op.ADDRESS64 & 1
    space = s32(c + 8) >> op.SPACE & 15
    base, immediate = operand(wb, cb, s32(c + 12)), s32(c + 16)
    d = s32(c + 20)
    x = s32(c + 24)
    checking = k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    done = 0
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(base, a64, lane, immediate)
        h = host_address(m, w, pc, lane, space, a, 8)
        if h == 0:
            continue
        given = 1
        if x != op.ABSENT:
            at = operand(wb, cb, x)
            given = i64(at + 8 * lane) if kind == op.MB_TEST_STATE else u32(at + 4 * lane)
        old = i64(h)
        if kind == op.MB_INIT:
            if given < 1 or given > MOST:
                finding(m, st.F_MBARRIER, pc, w, lane, a, 8, given)
                given = 1
            if checking:
                if m.k[st.K_CLUSTER] > 1:
                    who, clock = cluster_order.init(m, w, pc)
                    note_shared_by(m, w, w // m.k[st.K_WARPS], pc, lane, offset(a), 8, 1, 0, who, clock)
                else:
                    note(m, w, pc, lane, space, a, 8, 1, 0)
                vector_clocks.forget(m, h)
                vector_clocks.forget(m, h + 4)
            m.wrote[w] = 1
            w64(h, packed(given, given, 0, 0))
            continue
        if not is_mbarrier(old):
            finding(m, st.F_MBARRIER, pc, w, lane, a, 8, -1)
            continue
        if kind == op.MB_INVALIDATE:
            m.wrote[w] = 1
            w64(h, 0)
            continue
        phase = phase_of(old)
        if kind == op.MB_TEST_PARITY or kind == op.MB_TEST_STATE:
            if checking:
                note(m, w, pc, lane, space, a, 8, 0, 1)
            if m.spin[w, st.SPIN_PC] >= 0:
                remember_read(m, w, h, a)
            asked = given & 1 if kind == op.MB_TEST_PARITY else phase_of(given)
            if phase == asked and m.cta[w // k[st.K_WARPS], st.CTA_BULKS]:
                bulk_copies.arrive(m, w, h)
                phase = phase_of(i64(h))
            if phase != asked:
                done |= 1 << lane
                if m.cta[w // k[st.K_WARPS], st.CTA_REFUSAL] == h:  # a failed try_cancel has been observed
                    m.cta[w // k[st.K_WARPS], st.CTA_REFUSAL] = 1
                if checking:
                    vector_clocks.strong_read(m, w, h + 4, not relaxed)
            continue
        # ---- arrivals, and bytes that are to come
        if checking:
            note(m, w, pc, lane, space, a, 8, 0, 1)  # not as a write, so that every use is held against the init
        wanted, missing = wanted_of(old), missing_of(old)
        bytes_ = bytes_to_come(old)
        if kind == op.MB_EXPECT or kind == op.MB_ARRIVE_EXPECT:
            bytes_ += given
            given = 1
        elif kind == op.MB_COMPLETE:
            bytes_ -= given
        if kind == op.MB_DROP:
            wanted -= given
        if kind != op.MB_EXPECT and kind != op.MB_COMPLETE:
            if given > missing:
                finding(m, st.F_MBARRIER, pc, w, lane, a, 8, missing)
                given = missing
            missing -= given
            if m.k[st.K_CLUSTER] > 1:
                note_arrival(m, w, h, phase)
            if checking and relaxed:
                vector_clocks.arrive_relaxed_at(m, w, h)
            elif checking:
                lane_order.arrive_at(m, w, act, h)
        m.wrote[w] = 1
        settle(m, h, wanted, missing, bytes_, phase)
        if d != op.ABSENT:
            w64(wb + d + 8 * lane, old)
    if kind == op.MB_TEST_PARITY or kind == op.MB_TEST_STATE:
        w32(wb + d, (u32(wb + d) & ~act) | done)
    elif checking and kind == op.MB_INIT:
        lane_order.used(m, w, act, True)
    elif checking:
        vector_clocks.tick(m, w)
