"""The phase of an mbarrier: what completes it, and what that brings to those who wait. Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding, wake
from fuzz.devices.emulator.state.intrinsics import i64, w64
from fuzz.devices.emulator.state.mbarrier_word import (
    bytes_to_come,
    is_mbarrier,
    missing_of,
    packed,
    phase_of,
    wanted_of,
)


@njit
def note_arrival(m, w, h, phase):
    """Remembers for reports that the warp's CTA has arrived at the mbarrier at host address `h`."""
    slot = (h - m.k[st.K_SHARED]) // m.k[st.K_SHARED_STRIDE]
    bit = 1 << m.cta[w // m.k[st.K_WARPS], st.CTA_RANK]
    n = m.cta[slot, st.CTA_ARRIVALS]
    i = 0
    while i < n and m.arrivals[slot, i, st.AR_HOST] != h:
        i += 1
    if i == n:
        if n == st.ARRIVALS:
            return
        m.cta[slot, st.CTA_ARRIVALS] = n + 1
        m.arrivals[slot, i, st.AR_HOST], m.arrivals[slot, i, st.AR_EVER] = h, 0
        m.arrivals[slot, i, st.AR_PHASE] = -1
    if m.arrivals[slot, i, st.AR_PHASE] != phase:
        m.arrivals[slot, i, st.AR_PHASE], m.arrivals[slot, i, st.AR_RANKS] = phase, 0
    m.arrivals[slot, i, st.AR_RANKS] |= bit
    m.arrivals[slot, i, st.AR_EVER] |= bit


@njit
def settle(m, h, wanted, missing, bytes_, phase):
    """Writes the mbarrier at host address `h`: its phase completes where nothing is missing. Wakes who waits."""
    if missing == 0 and bytes_ == 0:
        phase ^= 1
        missing = wanted
        if m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED):
            vector_clocks.hand_over(m, h, h + 4)
    w64(h, packed(wanted, missing, bytes_, phase))
    if m.k[st.K_SLEEPERS]:
        wake(m, h, 8)


@njit
def complete_bytes(m, w, pc, lane, h, a, count):
    """A copy of `count` bytes has arrived, and tells the mbarrier at host address `h` (the kernel's address `a`)."""
    word = i64(h)
    if not is_mbarrier(word):
        finding(m, st.F_MBARRIER, pc, w, lane, a, 8, -1)
        return
    settle(m, h, wanted_of(word), missing_of(word), bytes_to_come(word) - count, phase_of(word))
