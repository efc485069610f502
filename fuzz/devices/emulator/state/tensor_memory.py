"""Tensor memory: 128 lanes of 512 columns of 32 bits, and which CTA may use which columns. Compiled by numba.

An address is the lane (bits 16 to 31) and the column (bits 0 to 15). Each CTA has tensor memory of its own, or shares
one with the CTAs of its SM where LaunchConfig.ctas_per_sm is more than 1. Columns are handed out 32 at a time.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding

LANES, COLUMNS = 128, 512
ROW = 4 * COLUMNS  # bytes from a lane to the next
SIZE = LANES * ROW
UNITS = COLUMNS // 32
SCRATCH = 1 << 17  # bytes that a product needs beside it
# values of findings: why a column may not be used; what is wrong with an alloc or dealloc; with an operand
UNALLOCATED, FREED, OUTSIDE = range(3)
WRONG_COLUMNS, MORE_COLUMNS, WRONG_ADDRESS = range(3)
INSTRUCTION, SHAPE, SHARED_A, SHARED_B, LANE = range(5)
SCALES = 1  # copies that differ are of scale factors, else of A


@njit(inline="always")
def sm(m, w):
    """Number of the tensor memory that a warp's CTA uses."""
    return w // m.k[st.K_WARPS] // m.k[st.K_TENSOR_SHARE]


@njit
def pair_of(m, slot):
    """Row of `cta` of the other CTA of the pair that the CTA in row `slot` belongs to."""
    return slot + 1 - 2 * (m.cta[slot, st.CTA_RANK] & 1)


@njit(inline="always")
def host(m, w, lane, column):
    return host_in(m, w // m.k[st.K_WARPS], lane, column)


@njit(inline="always")
def host_in(m, slot, lane, column):
    """Host address of a column of a lane in the tensor memory of the CTA in row `slot`."""
    return m.k[st.K_TENSOR_MEMORY] + slot // m.k[st.K_TENSOR_SHARE] * SIZE + lane * ROW + 4 * column


@njit
def usable(m, w, pc, lane, column, count):
    """True if the warp's CTA has all of these columns; else a finding."""
    return usable_in(m, w, w // m.k[st.K_WARPS], pc, lane, column, count)


@njit
def usable_in(m, w, slot, pc, lane, column, count):
    """The same of the CTA in row `slot`."""
    why = -1
    if column < 0 or column + count > COLUMNS:
        why = OUTSIDE
    else:
        mine = 1 + m.cta[slot, st.CTA_POSITION]
        for unit in range(column >> 5, (column + count - 1 >> 5) + 1):
            owner = m.columns[slot // m.k[st.K_TENSOR_SHARE], unit, st.U_OWNER]
            if owner != mine:
                why = FREED if owner == -mine else UNALLOCATED
                break
    if why >= 0:
        finding(m, st.F_TC_COLUMNS, pc, w, lane, column, count, why)
    return why < 0
