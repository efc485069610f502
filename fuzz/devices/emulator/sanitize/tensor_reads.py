"""Shared memory that tcgen05.mma and .cp read: is it written and visible, and does nobody overwrite it too early?
Compiled by numba.

A granule's cell here is the CTA's age (20 bits) | warp (10, its number in the cluster) | number of the warp's last
operation that reads it (32). A write needs to know that operation complete (`tensor_clocks.py`).
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import shared_lines, tensor_clocks, vector_clocks
from fuzz.devices.emulator.sanitize.shared_cells import LOW32, age_in_cell, age_of, entity_of
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address_in, finding
from fuzz.devices.emulator.state.intrinsics import i64, w64


@njit(inline="always")
def _cells(m, slot):
    return m.k[st.K_TENSOR_READS] + slot * m.k[st.K_SHARED_CELLS] * 8


@njit
def note_read(m, w, pc, lane, a, size):
    """The last operation that warp `w` has issued reads `size` bytes at `a` of its CTA's shared memory."""
    note_read_of(m, w, w // m.k[st.K_WARPS], pc, lane, a, size)


@njit
def note_read_of(m, w, slot, pc, lane, a, size):
    """The same of the shared memory of the CTA in row `slot`. What was written there must be ordered before it, with a
    proxy fence on the way."""
    k = m.k
    mine = vector_clocks.in_cluster(m, w)
    first = tensor_clocks.first_entity(m, w)
    known = vector_clocks.warp_row(m, w) + 16 + 8 * first
    proxied = known + vector_clocks.proxy_of(m, slot)
    age = age_of(m, slot)
    lg = k[st.K_SHARED_GRANULE]
    reads = _cells(m, slot)
    mark = age << 43 | mine << 32 | m.tensor_warp[w, st.TW_ISSUED]
    races = k[st.K_CHECKS] & st.CHECK_RACES
    for g in range(a >> lg, ((a + size - 1) >> lg) + 1):
        cell = shared_lines.written(m, slot, g)
        if age_in_cell(cell) != age:
            if k[st.K_CHECKS] & st.CHECK_UNINITIALISED:
                finding(m, st.F_UNINITIALISED, pc, w, lane, address_in(m, w, slot, g << lg), size, 0, -1)
        elif races:
            x = entity_of(cell)
            if i64(proxied + 8 * x) < (cell & LOW32):
                ordered = x == mine or i64(known + 8 * x) >= (cell & LOW32)
                kind = st.F_TC_PROXY if ordered else st.F_RACE_WR
                finding(m, kind, pc, w, lane, address_in(m, w, slot, g << lg), size, 0, first + x)
            elif cell < 0:
                finding(m, st.F_COPY_IN_FLIGHT, pc, w, lane, address_in(m, w, slot, g << lg), size, 0, first + x)
        w64(reads + 8 * g, mark)


@njit
def overwritten(m, w, slot, pc, lane, g, size):
    """A write to granule `g` of the shared memory of the CTA in row `slot`, which the tensor core may still be
    reading."""
    cell = i64(_cells(m, slot) + 8 * g)
    if age_in_cell(cell) != age_of(m, slot):
        return
    reader = entity_of(cell)
    if tensor_clocks.done(m, w, reader) < (cell & LOW32):
        first = tensor_clocks.first_entity(m, w)
        where = address_in(m, w, slot, g << m.k[st.K_SHARED_GRANULE])
        finding(m, st.F_TC_OVERWRITTEN, pc, w, lane, where, size, 0, first + reader)
