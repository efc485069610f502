"""Races of two lanes of one warp in shared memory, where they are asked for (check 'lanes'). Compiled by numba.

The lanes of a warp have one clock, which moves on when they have waited for each other (`lane_order.py`). Of every
granule three numbers are kept: the last write by a lane (of one clock a weak one rather than a strong one), the last
weak read, and the lanes that have read it at that clock. A write or read is

    age of the CTA (19 bits) | strong (1) | who (11: the warp's number in its cluster) | clock (27) | lane (5)

Two accesses of one warp at one clock by different lanes race, unless both are reads, or both are strong. Of the reads
by several warps the last one's are kept.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize.shared_cells import EQUAL, age_of
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address_in, finding
from fuzz.devices.emulator.state.intrinsics import ctz, i64, u32, w32, w64

BYTES = 24  # for each granule
STRONG = 1 << 43
AGES = 0x7FFFF
CLOCK = 0x7FFFFFF


@njit
def note(m, w, slot, pc, lane, a, size, write, strong, me, now, other):
    """An access of a lane to byte `a` of the shared memory of the CTA in row `slot`, see `shadow.note`. me: the warp's
    number in its cluster; now: its clock; other: its number in the launch."""
    k = m.k
    lg = k[st.K_SHARED_GRANULE]
    mine = (age_of(m, slot) & AGES) << 44 | (STRONG if strong else 0) | me << 32 | (now & CLOCK) << 5 | (lane & 31)
    for g in range(a >> lg, (a + size - 1 >> lg) + 1):
        at = k[st.K_SHARED_LANES] + BYTES * (slot * k[st.K_SHARED_CELLS] + g)
        place = address_in(m, w, slot, g << lg)
        wrote = i64(at)
        if together(wrote, mine) and (wrote ^ mine) & 31 and not wrote & mine & STRONG and write != EQUAL:
            kind = st.F_RACE_WW if write == 1 else st.F_RACE_WR
            finding(m, kind, pc, w, lane, place, size, st.OTHER_LANE | wrote & 31, other)
        readers = u32(at + 16) if together(i64(at + 8), mine) else 0
        if not write:
            if not strong:
                w64(at + 8, mine)
                w32(at + 16, readers | 1 << (lane & 31))
            continue
        others = readers & ~(1 << (lane & 31))
        if others:
            finding(m, st.F_RACE_RW, pc, w, lane, place, size, st.OTHER_LANE | ctz(others), other)
        if not strong or wrote & STRONG or not together(wrote, mine):  # a weak write is not forgotten for a strong one
            w64(at, mine)


@njit(inline="always")
def together(one, mine):
    """True for two accesses by one warp with nothing between them for which its lanes have waited."""
    return (one ^ mine) >> 5 & ~(STRONG >> 5) == 0
