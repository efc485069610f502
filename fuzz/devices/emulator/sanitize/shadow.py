"""Shadow memory: who touched what last. Finds races and reads of memory that nothing wrote. Compiled by numba.

Every granule (2 or 4 bytes, the smallest access) of shared memory and of every tensor has a cell: who wrote it last, at
which clock (`vector_clocks.py`). Reads are kept per warp in shared memory (`shared_shadow.py`), and as the last two
concurrent readers in global memory, so a write after three or more unordered readers may be judged by two of them.

The map of what was ever written is kept apart (global_memory.Written), because it outlives a launch.

A global cell is launch (8 bits, 0: not written by one) | strong (1) | of scope cta (1) | entity (22) | clock (27) |
lane (5). Cells of shared memory: `shared_shadow.py`.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.sanitize.scopes import NARROW, STRONG, SUM, UNFENCED, read_strongly
from fuzz.devices.emulator.sanitize.shared_shadow import EQUAL, note_shared
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding
from fuzz.devices.emulator.state.intrinsics import i64, u8, u32, w8, w32, w64

LOW32 = 0xFFFFFFFF
EVERY_BYTE = 0x01010101
STRONG_GLOBAL = 1 << 55
NARROW_GLOBAL = 1 << 54
ENTITY = 0x3FFFFF
CLOCK = 0x7FFFFFF


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
    note_global_by(m, w, pc, lane, a, size, write, strong, me, now)


@njit
def note_global_by(m, w, pc, lane, a, size, write, strong, me, now):
    """An access to global memory that the warp issues and entity `me` makes at clock `now`."""
    k = m.k
    s = a >> op.SHIFT
    writes = m.segments[s, st.S_WRITE]
    if writes == 0:
        return
    reads = m.segments[s, st.S_READ]
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
    first = (a - low) >> lg
    last = (a - low + size - 1) >> lg
    by_lane = k[st.K_CHECKS] & st.CHECK_LANES and me == vector_clocks.entity(m, w)
    bits = (STRONG_GLOBAL if strong & STRONG else 0) | (NARROW_GLOBAL if strong & NARROW else 0)
    cell_now = launch << 56 | bits | me << 32 | (now & CLOCK) << 5 | (lane & 31)
    for g in range(first, last + 1):
        cell = i64(writes + 8 * g)
        x, then = cell >> 32 & ENTITY, cell >> 5 & CLOCK
        there = cell >> 56 == launch
        if there and x == me:
            if by_lane and write != EQUAL and other_lane(cell, cell_now):
                kind = st.F_RACE_WW if write == 1 else st.F_RACE_WR
                finding(m, kind, pc, w, lane, low + (g << lg), size, st.OTHER_LANE | cell & 31, x)
        elif there and i64(clock + 8 * x) < then:
            if not strong & STRONG or races_with(m, bits, cell, x, me):
                unordered = strong & UNFENCED == 0 or write & 1 == 1 or not read_strongly(m, w, x, then)
                if unordered and write != EQUAL:
                    kind = st.F_RACE_WW if write == 1 else st.F_RACE_WR
                    finding(m, kind, pc, w, lane, low + (g << lg), size, 1 if bits & cell & STRONG_GLOBAL else 0, x)
            elif strong & SUM and k[st.K_CHECKS] & st.CHECK_ORDER:
                finding(m, st.F_UNORDERED, pc, w, lane, low + (g << lg), size, 0, x)
        if write:
            for i in range(2):
                cell = i64(reads + 16 * g + 8 * i)
                x, then = cell >> 32 & ENTITY, cell >> 5 & CLOCK
                if cell >> 56 != launch:
                    continue
                if x == me:
                    if by_lane and other_lane(cell, cell_now):
                        finding(m, st.F_RACE_RW, pc, w, lane, low + (g << lg), size, st.OTHER_LANE | cell & 31, x)
                elif i64(clock + 8 * x) < then and races_with(m, bits, cell, x, me):
                    both = 1 if bits & cell & STRONG_GLOBAL else 0
                    finding(m, st.F_RACE_RW, pc, w, lane, low + (g << lg), size, both, x)
            w64(writes + 8 * g, cell_now)
        elif not strong & STRONG or strong & NARROW:
            at = reads + 16 * g
            another = by_lane and other_lane(i64(at), cell_now) and not concurrent(clock, at + 8, launch, me)
            if another or concurrent(clock, at, launch, me):
                at += 8
            w64(at, cell_now)


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


@njit
def races_with(m, bits, cell, x, me):
    """True for two accesses that nothing orders, by warps `me` and x, unless they are morally strong: both strong, and
    the scope of each includes the other thread."""
    if not bits & cell & STRONG_GLOBAL:
        return True
    return (bits | cell) & NARROW_GLOBAL != 0 and x // m.k[st.K_ENTITIES] != me // m.k[st.K_ENTITIES]
