"""Shared memory that tcgen05.mma and .cp read: is it written and visible, and does nobody overwrite it too early?
Compiled by numba.

A granule's cell here is the CTA's age (24 bits) | warp (8) | number of the warp's last operation that reads it (32). A
write needs to know that operation complete (`tensor_clocks.py`).
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import tensor_clocks, vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding
from fuzz.devices.emulator.state.intrinsics import i64, w64

LOW32 = 0xFFFFFFFF


@njit(inline="always")
def _cells(m, w):
    return m.k[st.K_TENSOR_READS] + w // m.k[st.K_WARPS] * m.k[st.K_SHARED_CELLS] * 8


@njit
def note_read(m, w, pc, lane, a, size):
    """The last operation that warp `w` has issued reads `size` bytes at `a` of shared memory. What was written there
    must be ordered before it, with a proxy fence on the way."""
    k = m.k
    warps = k[st.K_WARPS]
    slot, mine = w // warps, w % warps
    first = tensor_clocks.first_entity(m, w)
    known = vector_clocks.warp_row(m, w) + 16 + 8 * first
    proxied = known + k[st.K_PROXY]
    age = m.cta[slot, st.CTA_AGE]
    lg = k[st.K_SHARED_GRANULE]
    writes = k[st.K_SHARED_WRITES] + slot * k[st.K_SHARED_CELLS] * 8
    reads = _cells(m, w)
    mark = (age & 0xFFFFFF) << 40 | mine << 32 | m.tensor_warp[w, st.TW_ISSUED]
    races = k[st.K_CHECKS] & st.CHECK_RACES
    for g in range(a >> lg, ((a + size - 1) >> lg) + 1):
        cell = i64(writes + 8 * g)
        if cell >> 40 != age:
            if k[st.K_CHECKS] & st.CHECK_UNINITIALISED:
                finding(m, st.F_UNINITIALISED, pc, w, lane, g << lg, size, 0, -1)
        elif races:
            x = cell >> 32 & 127
            if i64(proxied + 8 * x) < (cell & LOW32):
                ordered = x == mine or i64(known + 8 * x) >= (cell & LOW32)
                kind = st.F_TC_PROXY if ordered else st.F_RACE_WR
                finding(m, kind, pc, w, lane, g << lg, size, 0, first + x)
        w64(reads + 8 * g, mark)


@njit
def overwritten(m, w, pc, lane, g, size):
    """A write to granule `g` of shared memory, which the tensor core may still be reading."""
    cell = i64(_cells(m, w) + 8 * g)
    slot = w // m.k[st.K_WARPS]
    if cell >> 40 & 0xFFFFFF != m.cta[slot, st.CTA_AGE] & 0xFFFFFF:
        return
    reader = cell >> 32 & 255
    if tensor_clocks.done(m, w, reader) < (cell & LOW32):
        first = tensor_clocks.first_entity(m, w)
        finding(m, st.F_TC_OVERWRITTEN, pc, w, lane, g << m.k[st.K_SHARED_GRANULE], size, 0, first + reader)
