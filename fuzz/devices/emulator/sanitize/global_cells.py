"""Cells of global memory's shadow: one access of a granule. Compiled by numba.

A cell is launch (8 bits, 0: none) | strong (1) | of scope cta (1) | entity (22) | clock (27) | lane (5).
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.state.intrinsics import i64

STRONG_GLOBAL = 1 << 55
NARROW_GLOBAL = 1 << 54
ENTITY = 0x3FFFFF
CLOCK = 0x7FFFFFF


@njit
def concurrent(clock, at, launch, me):
    """True for a cell of another entity's access that is not ordered before those of the warp with this row."""
    cell = i64(at)
    x = cell >> 32 & ENTITY
    return cell >> 56 == launch and x != me and i64(clock + 8 * x) < (cell >> 5 & CLOCK)


@njit
def other_lane(cell, mine):
    """True for two accesses by lanes of one warp that nothing orders: the warp's clock has not moved in between. Strong
    ones do not race with each other."""
    changed = cell ^ mine
    return (
        changed >> 56 == 0
        and changed >> 5 & (ENTITY << 27 | CLOCK) == 0
        and changed & 31 != 0
        and (cell & mine & STRONG_GLOBAL == 0)
    )
