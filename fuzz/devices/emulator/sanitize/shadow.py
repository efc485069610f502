"""Shadow memory: who touched what last. Finds races and reads of memory that nothing wrote. Compiled by numba.

Every granule (2 or 4 bytes, the smallest access) of shared memory and of every tensor has a cell: who wrote it last, at
which clock (`vector_clocks.py`). Reads are kept per warp in shared memory (`shared_shadow.py`), and as the last two
concurrent readers in global memory, so a write after three or more unordered readers may be judged by two of them.

The map of what was ever written is kept apart (global_memory.Written), because it outlives a launch.

Cells: `global_cells.py` and `shared_cells.py`. Granules that are always accessed together have one cell:
`global_lines.py` and `shared_lines.py`.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import global_lines, vector_clocks
from fuzz.devices.emulator.sanitize.global_cells import (
    CLOCK,
    ENTITY,
    NARROW_GLOBAL,
    STRONG_GLOBAL,
    concurrent,
    other_lane,
)
from fuzz.devices.emulator.sanitize.scopes import NARROW, STRONG, SUM, UNFENCED, read_strongly
from fuzz.devices.emulator.sanitize.shared_cells import EQUAL
from fuzz.devices.emulator.sanitize.shared_shadow import note_shared
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding
from fuzz.devices.emulator.state.intrinsics import i64, u8, u32, w8, w32, w64

EVERY_BYTE = 0x01010101


@njit
def note(m, w, pc, lane, space, a, size, write, strong):
    """An access of `size` bytes at the kernel's address `a`, which is inside its memory.

    write   0 read, 1 write, 2 both, 3 write of what is there already, which races with no other write
    strong  bits of scopes.py: STRONG, SUM for a result that depends on the order, NARROW of scope cta, UNFENCED; 0 weak
    """
    if space == op.GENERIC:
        window = a >> op.SHIFT
        if window == 1:
            space = op.SHARED
            a -= op.SHARED_WINDOW
        elif window < op.FIRST_SEGMENT:
            return
    if space == op.SHARED or space == op.SHARED_CLUSTER:
        note_shared(m, w, pc, lane, a, size, write, strong & STRONG)
    elif space == op.GLOBAL or space == op.GENERIC or space == op.CONST:
        note_global(m, w, pc, lane, a, size, write, strong)


@njit
def note_written(m, w, pc, lane, a, size, write, at):
    """Memory that was not written when it was allocated; `at`: the first of its bytes in the segment's map."""
    if size & 3 == 0:  # four bytes at once
        for i in range(0, size, 4):
            if write & 1 == 0 and u32(at + i) != EVERY_BYTE:
                finding(m, st.F_UNINITIALISED, pc, w, lane, a + i, size, 0, -1)
                return
            if write:
                w32(at + i, EVERY_BYTE)
        return
    for i in range(size):
        if write & 1 == 0 and u8(at + i) == 0:
            finding(m, st.F_UNINITIALISED, pc, w, lane, a + i, size, 0, -1)
            return
        if write:
            w8(at + i, 1)


@njit
def note_global(m, w, pc, lane, a, size, write, strong):
    """An access of a warp to global memory."""
    me = vector_clocks.entity(m, w)
    now = i64(vector_clocks.warp_row(m, w) + 16 + 8 * me)
    note_global_by(m, w, pc, lane, a, size, write, strong, me, now, 0)


@njit
def note_global_by(m, w, pc, lane, a, size, write, strong, me, now, proxy):
    """An access to global memory that the warp issues and entity `me` makes at clock `now`. proxy: K_GLOBAL_PROXY of
    one through the asynchronous proxy, which needs a proxy fence after what a warp has written; else 0."""
    k = m.k
    s = a >> op.SHIFT
    if m.segments[s, st.S_WRITE] == 0:
        return
    lg = m.segments[s, st.S_GRANULE]
    low = m.segments[s, st.S_LOW]
    written = m.segments[s, st.S_WRITTEN]
    if written and k[st.K_CHECKS] & st.CHECK_UNINITIALISED:
        note_written(m, w, pc, lane, a, size, write, written + a - low)
    races = k[st.K_CHECKS] & st.CHECK_RACES
    if not races:
        return
    clock = vector_clocks.warp_row(m, w) + 16
    launch = k[st.K_LAUNCH]
    by_lane = k[st.K_CHECKS] & st.CHECK_LANES and me == vector_clocks.entity(m, w)
    bits = (STRONG_GLOBAL if strong & STRONG else 0) | (NARROW_GLOBAL if strong & NARROW else 0)
    cell_now = launch << 56 | bits | me << 32 | (now & CLOCK) << 5 | (lane & 31)
    at, end = a, a + size
    while at < end:
        place = low + ((at - low) >> lg << lg)
        here, reads, at = global_lines.piece(m, s, at, end)
        cell = i64(here)
        x, then = cell >> 32 & ENTITY, cell >> 5 & CLOCK
        there = cell >> 56 == launch
        by_warp = x % k[st.K_ENTITIES] < k[st.K_WARPS]
        if there and x == me and not (proxy and by_warp):
            if by_lane and write != EQUAL and other_lane(cell, cell_now):
                kind = st.F_RACE_WW if write == 1 else st.F_RACE_WR
                finding(m, kind, pc, w, lane, place, size, st.OTHER_LANE | cell & 31, x)
        elif there and i64(clock + 8 * x) < then:
            if not strong & STRONG or races_with(m, bits, cell, x, me):
                unordered = strong & UNFENCED == 0 or write & 1 == 1 or not read_strongly(m, w, x, then)
                if unordered and write != EQUAL:
                    kind = st.F_RACE_WW if write == 1 else st.F_RACE_WR
                    finding(m, kind, pc, w, lane, place, size, 1 if bits & cell & STRONG_GLOBAL else 0, x)
            elif strong & SUM and k[st.K_CHECKS] & st.CHECK_ORDER:
                finding(m, st.F_UNORDERED, pc, w, lane, place, size, 0, x)
        elif there and proxy and by_warp and i64(clock + proxy + 8 * x) < then:
            finding(m, st.F_GLOBAL_PROXY, pc, w, lane, place, size, 0, x)
        if write:
            for i in range(2):
                cell = i64(reads + 8 * i)
                x, then = cell >> 32 & ENTITY, cell >> 5 & CLOCK
                if cell >> 56 != launch:
                    continue
                if x == me:
                    if by_lane and other_lane(cell, cell_now):
                        finding(m, st.F_RACE_RW, pc, w, lane, place, size, st.OTHER_LANE | cell & 31, x)
                elif i64(clock + 8 * x) < then and races_with(m, bits, cell, x, me):
                    both = 1 if bits & cell & STRONG_GLOBAL else 0
                    finding(m, st.F_RACE_RW, pc, w, lane, place, size, both, x)
            w64(here, cell_now)
        elif not strong & STRONG or strong & NARROW:
            another = by_lane and other_lane(i64(reads), cell_now) and not concurrent(clock, reads + 8, launch, me)
            w64(reads + 8 if another or concurrent(clock, reads, launch, me) else reads, cell_now)


@njit
def races_with(m, bits, cell, x, me):
    """True for two accesses that nothing orders, by warps `me` and x, unless they are morally strong: both strong, and
    the scope of each includes the other thread."""
    if not bits & cell & STRONG_GLOBAL:
        return True
    return (bits | cell) & NARROW_GLOBAL != 0 and x // m.k[st.K_ENTITIES] != me // m.k[st.K_ENTITIES]
