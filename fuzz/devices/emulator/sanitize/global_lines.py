"""Lines of global memory's shadow: 16 bytes of a tensor that were always accessed together have one cell for their last
write and one for each of their last two readers. Compiled by numba.

A line is 32 bytes: the three cells (`global_cells.py`) of all its granules, and the last launch that has found all of
it written. The first access of a launch to a part of a line
splits it: then its granules have cells of their own. What is found is the same either way.

`groups` looks at a warp's access as a whole. It notes what is ordered as it should be, line by line where lanes make up
whole ones, and leaves every other lane to `shadow.py`, which reports.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.sanitize.global_cells import CLOCK, ENTITY, concurrent
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, contiguous
from fuzz.devices.emulator.state.intrinsics import ctz, host_addresses64, i64, u32, w32, w64
from fuzz.devices.emulator.state.lane_addresses import HOSTS

EVERY_BYTE = 0x0101010101010101  # eight bytes of a map of what is written
FOUR_BYTES = 0x01010101
SPLIT = (1 << 56) - 1  # below the launch's number: the cell of a line that is split
NONE = -2  # no cell's value


@njit
def piece(m, s, at, end):
    """The bytes from `at` on, up to `end`, of segment `s` that have the same cells: (address of the last write's cell,
    of the two readers', the first byte after them)."""
    low, lg = m.segments[s, st.S_LOW], m.segments[s, st.S_GRANULE]
    if m.segments[s, st.S_LINES]:
        line = m.segments[s, st.S_LINES] + 32 * ((at >> 4) - (low >> 4))
        if i64(line) != m.k[st.K_LAUNCH] << 56 | SPLIT:
            if at & 15 == 0 and at + 16 <= end:
                return line, line + 8, at + 16
            _split(m, s, line, at & ~15)
    g = (at - low) >> lg
    return m.segments[s, st.S_WRITE] + 8 * g, m.segments[s, st.S_READ] + 16 * g, low + ((g + 1) << lg)


@njit
def _split(m, s, line, start):
    low, lg = m.segments[s, st.S_LOW], m.segments[s, st.S_GRANULE]
    first = (max(start, low) - low) >> lg
    last = (min(start + 16, m.segments[s, st.S_HIGH]) - 1 - low) >> lg
    writes, reads = m.segments[s, st.S_WRITE], m.segments[s, st.S_READ]
    for g in range(first, last + 1):
        w64(writes + 8 * g, i64(line))
        w64(reads + 16 * g, i64(line + 8))
        w64(reads + 16 * g + 8, i64(line + 16))
    w64(line, m.k[st.K_LAUNCH] << 56 | SPLIT)


@njit
def read_cell(here, reads, clock, launch, me, cell_now):
    """Notes a weak read, by entity `me`, whose clocks are at `clock`, of all that has the cells `here` and at `reads`;
    False where that is a split line, or the read not ordered after its last write."""
    cell = i64(here)
    if cell >> 56 == launch:
        x = cell >> 32 & ENTITY
        if x == ENTITY or (x != me and i64(clock + 8 * x) < (cell >> 5 & CLOCK)):
            return False
    w64(reads + 8 if concurrent(clock, reads, launch, me) else reads, cell_now)
    return True


@njit
def write_cell(here, reads, clock, launch, me, cell_now):
    """Notes a weak write of all that has one cell; False where it is not ordered after every access before."""
    cell = i64(here)
    if cell >> 56 == launch:
        x = cell >> 32 & ENTITY
        if x == ENTITY or (x != me and i64(clock + 8 * x) < (cell >> 5 & CLOCK)):
            return False
    if concurrent(clock, reads, launch, me) or concurrent(clock, reads + 8, launch, me):
        return False
    w64(here, cell_now)
    return True


@njit
def _is_written(at, size):
    """True where `size` bytes, a multiple of four, are marked as written from `at` on."""
    for i in range(0, size, 4):  # noqa: SIM110 - numba wants a loop
        if u32(at + i) != FOUR_BYTES:
            return False
    return True


@njit
def read_lines(m, w, s, hosts, delta, act):
    """Notes weak reads of the lines of segment `s` at the host addresses of the lanes of `act`, which are at `hosts`
    and all inside of it; returns the lanes whose reads are noted. delta: host address minus the kernel's.

    A cell that is the same as the lane's before gets the same answer."""
    k = m.k
    if m.segments[s, st.S_LINES] == 0 or k[st.K_CHECKS] & st.CHECK_LANES:
        return 0
    me = vector_clocks.entity(m, w)
    clock = vector_clocks.warp_row(m, w) + 16
    races, launch = k[st.K_CHECKS] & st.CHECK_RACES, k[st.K_LAUNCH]
    now = launch << 56 | me << 32 | (i64(clock + 8 * me) & CLOCK) << 5
    low = m.segments[s, st.S_LOW]
    lines = m.segments[s, st.S_LINES] - 32 * (low >> 4)
    written = m.segments[s, st.S_WRITTEN] if k[st.K_CHECKS] & st.CHECK_UNINITIALISED else 0
    ordered, reader, place, noted = NONE, NONE, 8, 0
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = i64(hosts + 8 * lane) - delta
        line = lines + 2 * a
        if written and i64(line + 24) != launch:
            at = written + a - low
            if i64(at) != EVERY_BYTE or i64(at + 8) != EVERY_BYTE:
                continue
            w64(line + 24, launch)
        if races:
            cell = i64(line)
            if cell != ordered:
                x = cell >> 32 & ENTITY
                if cell >> 56 == launch and (x == ENTITY or (x != me and i64(clock + 8 * x) < (cell >> 5 & CLOCK))):
                    continue
                ordered = cell
            last = i64(line + 8) >> 5  # but for its lane
            if last != reader:
                reader, place = last, 16 if concurrent(clock, line + 8, launch, me) else 8
            w64(line + place, now | lane)
        noted |= 1 << lane
    return noted


@njit
def _read_groups(m, w, base, immediate, act):
    """The same of reads of 16 bytes, from the lanes' addresses of the kernel; of lanes of the first one's segment."""
    s = address(base, 1, ctz(act), immediate) >> op.SHIFT
    if s < op.FIRST_SEGMENT or s >= m.k[st.K_SEGMENTS]:
        return 0
    hosts, low, high = m.k[st.K_SCRATCH] + HOSTS, m.segments[s, st.S_LOW], m.segments[s, st.S_HIGH]
    outside = host_addresses64(base, immediate, low, high - 16, 15, 0, hosts)
    return read_lines(m, w, s, hosts, 0, act & ~outside)


@njit
def groups(m, w, base, immediate, act, bytes_, write):
    """Notes weak accesses of `bytes_` bytes by each lane of `act`; returns the lanes whose accesses are noted."""
    k = m.k
    if 16 % bytes_ or k[st.K_CHECKS] & st.CHECK_LANES:
        return 0
    noted = 0
    if bytes_ == 16 and not write:
        noted = _read_groups(m, w, base, immediate, act)
        act &= ~noted
        if act == 0:
            return noted
    races, unwritten = k[st.K_CHECKS] & st.CHECK_RACES, k[st.K_CHECKS] & st.CHECK_UNINITIALISED
    me = vector_clocks.entity(m, w)
    clock = vector_clocks.warp_row(m, w) + 16
    launch = k[st.K_LAUNCH]
    now = launch << 56 | me << 32 | (i64(clock + 8 * me) & CLOCK) << 5
    split = launch << 56 | SPLIT
    per = 16 // bytes_
    together, last = (1 << per) - 1, -1
    known, lines, low, high, written, writes, reads, lg = -1, 0, 0, 0, 0, 0, 0, 0
    for first in range(0, 32, per):
        whole = act >> first & together == together and contiguous(base, 1, first, per, bytes_)
        for lane in range(first, first + per):
            if not act >> lane & 1:
                continue
            a = address(base, 1, lane, immediate)
            if a == last:  # the same access, which changes nothing
                noted |= 1 << lane
                continue
            s = a >> op.SHIFT
            if s != known:
                if s < op.FIRST_SEGMENT or s >= k[st.K_SEGMENTS]:
                    continue
                known, lines, lg = s, m.segments[s, st.S_LINES], m.segments[s, st.S_GRANULE]
                low, high = m.segments[s, st.S_LOW], m.segments[s, st.S_HIGH]
                writes, reads = m.segments[s, st.S_WRITE], m.segments[s, st.S_READ]
                written = m.segments[s, st.S_WRITTEN] if unwritten else 0
            line = lines + 32 * ((a >> 4) - (low >> 4))
            bytes_written = written + a - low if written else 0
            if not (whole and lane == first and lines and a & 15 == 0 and a >= low and a + 16 <= high):
                pass
            elif _note_line(line, clock, launch, me, now | lane, bytes_written, races, write):
                noted |= together << first
                break
            if lines == 0 or a & (bytes_ - 1) or a < low or a + bytes_ > high or i64(line) != split:
                continue
            if written and (bytes_ & 3 or (not write and not _is_written(bytes_written, bytes_))):
                continue
            good = True
            if races:
                for g in range((a - low) >> lg, (a - low + bytes_) >> lg):
                    if write:
                        good = good and write_cell(writes + 8 * g, reads + 16 * g, clock, launch, me, now | lane)
                    else:
                        good = good and read_cell(writes + 8 * g, reads + 16 * g, clock, launch, me, now | lane)
            if good:
                noted, last = noted | 1 << lane, a
                if write and written:
                    for i in range(0, bytes_, 4):
                        w32(bytes_written + i, FOUR_BYTES)
    return noted


@njit
def _note_line(line, clock, launch, me, cell_now, written, races, write):
    """Notes an access of a whole line; `written`: its bytes in the map of what is written, or 0."""
    if write:
        if races and not write_cell(line, line + 8, clock, launch, me, cell_now):
            return False
        if written:
            w64(written, EVERY_BYTE)
            w64(written + 8, EVERY_BYTE)
        return True
    if written and i64(line + 24) != launch:
        if i64(written) != EVERY_BYTE or i64(written + 8) != EVERY_BYTE:
            return False
        w64(line + 24, launch)
    return not races or read_cell(line, line + 8, clock, launch, me, cell_now)
