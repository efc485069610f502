"""Cells of shared memory's shadow: who wrote a granule last. Compiled by numba.

A cell is in flight (1 bit) | the CTA's age (20) | strong (1) | who (10, the entity's number in its cluster) | clock
(32). The age tells the cells of one CTA from those of the one before it in the same memory. A granule to which a
cp.async is under way is in flight, from the instruction on until the copy is waited for. Its cell is negative, so that
`cell >> 43` equals no age: `shared_lines.py` then leaves the granule to `shared_shadow.py`, which masks the sign.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.state import tables as st

LOW32 = 0xFFFFFFFF
STRONG_SHARED = 1 << 42
IN_FLIGHT = -(1 << 63)
AGES = 0xFFFFF
EQUAL = 3  # of an access: a write of what is there already


@njit(inline="always")
def age_of(m, slot):
    """The age of the CTA in row `slot`, as cells have it."""
    return m.cta[slot, st.CTA_AGE] & AGES


@njit(inline="always")
def age_in_cell(cell):
    return cell >> 43 & AGES


@njit(inline="always")
def entity_of(cell):
    return cell >> 32 & 1023


@njit(inline="always")
def packed(age, strong, who, clock):
    return age << 43 | (STRONG_SHARED if strong else 0) | who << 32 | clock
