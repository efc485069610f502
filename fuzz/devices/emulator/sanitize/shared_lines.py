"""Lines of shared memory's shadow: 16 bytes that were always accessed together have one cell. Compiled by numba.

Matrix loads, asynchronous copies and vector accesses take 16 bytes at a time, so a line's granules mostly have the same
last write and the same readers. Such a line has one cell and one clock per reader; the first access to a part of it
splits it, and from then on, until the next CTA starts, its granules have theirs. What is found is the same either way.

`read_groups` and `write_groups` look at a warp's access as a whole. They note what is ordered as it should be, line by
line where lanes make up whole ones, and leave every other lane to `shared_shadow.py`, which reports.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.sanitize.shared_cells import IN_FLIGHT, LOW32, age_of, packed
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, contiguous
from fuzz.devices.emulator.state.intrinsics import any_above, i64, u32, w32, w64
from fuzz.devices.emulator.state.lane_addresses import HOSTS, locate_lines

SPLIT = -1  # cell of a line whose granules have cells of their own
NONE = -2  # no cell's value
NOTHING = (0,) * 7  # in place of `lines_of`, where nothing is checked


@njit
def begin(m, slot):
    """A CTA starts: nothing is written, every line is whole. Its clocks are later than all that are kept there. Where
    lanes are told apart every line is split."""
    cells = m.k[st.K_LINE_WRITES] + 8 * slot * m.k[st.K_LINES]
    whole = SPLIT if m.k[st.K_CHECKS] & st.CHECK_LANES else 0
    for line in range(m.k[st.K_LINES]):
        w64(cells + 8 * line, whole)


@njit
def piece(m, slot, at, end):
    """The bytes from `at` on, up to `end`, that have one cell: (address of the cell, of its readers' clocks, the first
    byte after them)."""
    k = m.k
    number = slot * k[st.K_LINES] + (at >> 4)
    whole = k[st.K_LINE_WRITES] + 8 * number
    if i64(whole) != SPLIT:
        if at & 15 == 0 and at + 16 <= end:
            return whole, k[st.K_LINE_READS] + 4 * number * k[st.K_READERS], at + 16
        _split(m, slot, at >> 4)
    lg = k[st.K_SHARED_GRANULE]
    g = at >> lg
    number = slot * k[st.K_SHARED_CELLS] + g
    reads = k[st.K_SHARED_READS] + 4 * number * k[st.K_READERS]
    return k[st.K_SHARED_WRITES] + 8 * number, reads, (g + 1) << lg


@njit
def _split(m, slot, line):
    k = m.k
    whole = slot * k[st.K_LINES] + line
    cell = i64(k[st.K_LINE_WRITES] + 8 * whole)
    clocks, size = k[st.K_LINE_READS] + 4 * whole * k[st.K_READERS], 4 * k[st.K_READERS]
    lg = k[st.K_SHARED_GRANULE]
    first = slot * k[st.K_SHARED_CELLS] + (line << 4 >> lg)
    for number in range(first, first + (16 >> lg)):
        w64(k[st.K_SHARED_WRITES] + 8 * number, cell)
        for i in range(0, size, 4):
            w32(k[st.K_SHARED_READS] + size * number + i, u32(clocks + i))
    w64(k[st.K_LINE_WRITES] + 8 * whole, SPLIT)


@njit
def written(m, slot, g):
    """The cell of the last write of granule `g`."""
    k = m.k
    cell = i64(k[st.K_LINE_WRITES] + 8 * (slot * k[st.K_LINES] + (g << k[st.K_SHARED_GRANULE] >> 4)))
    return cell if cell != SPLIT else i64(k[st.K_SHARED_WRITES] + 8 * (slot * k[st.K_SHARED_CELLS] + g))


@njit
def lines_of(m, w):
    """What `read_cell` and `write_cell` need of a warp and of its CTA's lines: (cells, readers' clocks, bytes of these
    for a cell, age, the warp's number in the cluster, its clock, its clocks of the others)."""
    k = m.k
    slot = m.slot[w]
    lines = slot * k[st.K_LINES]
    rank = m.cta[slot, st.CTA_RANK]
    first = (m.cta[slot, st.CTA_POSITION] - rank) * k[st.K_ENTITIES]
    me = rank * k[st.K_ENTITIES] + w - slot * k[st.K_WARPS]
    block = vector_clocks.warp_row(m, w) + 16 + 8 * first
    size = 4 * k[st.K_READERS]
    return (
        k[st.K_LINE_WRITES] + 8 * lines, k[st.K_LINE_READS] + size * lines, size, age_of(m, slot), me,
        i64(block + 8 * me), block,
    )  # fmt: skip


@njit
def granules_of(m, w, lines):
    """The same of the granules, from `lines_of`."""
    _, _, size, age, me, now, block = lines
    granules = m.slot[w] * m.k[st.K_SHARED_CELLS]
    return m.k[st.K_SHARED_WRITES] + 8 * granules, m.k[st.K_SHARED_READS] + size * granules, size, age, me, now, block


@njit
def writes_lines(m, w):
    """True where `write_cell` looks at all that a write of the warp has to be held against."""
    k = m.k
    if k[st.K_CHECKS] & st.CHECK_LANES:
        return False
    return k[st.K_CLUSTER] == 1 and k[st.K_TENSOR_READS] == 0 and m.group[w, st.G_PENDING] == 0


@njit
def readers_known(m, w, lines):
    """How many clocks of readers `write_cell` compares, four at a time, with what the warp knows of them: that is put
    at K_KNOWN, and nothing is above what stands there for the warp itself."""
    if not m.k[st.K_CHECKS] & st.CHECK_RACES:
        return 0
    _, _, _, _, me, _, block = lines
    known = m.k[st.K_KNOWN]
    readers = m.k[st.K_WARPS] + m.cta[m.slot[w], st.CTA_AGENTS]
    for x in range(readers):
        w32(known + 4 * x, i64(block + 8 * x))
    w32(known + 4 * me, -1)
    for x in range(readers, (readers + 3) & ~3):
        w32(known + 4 * x, -1)
    return readers


@njit
def read_cell(of, number):
    """Notes a weak read of all that has one cell; False where it is not written, or the read not ordered after that."""
    cells, clocks, size, age, me, now, block = of
    cell = i64(cells + 8 * number)
    if cell >> 43 != age:
        return False
    x = cell >> 32 & 1023
    if x != me and i64(block + 8 * x) < (cell & LOW32):
        return False
    w32(clocks + size * number + 4 * me, now)
    return True


@njit
def read_line_async(of, proxy, line):
    """Notes a read of line `line` through the asynchronous proxy; False where it is not written, or the read not
    ordered after that with a proxy fence on the way. proxy: `vector_clocks.proxy_of` of the CTA."""
    cells, clocks, size, age, me, now, block = of
    cell = i64(cells + 8 * line)
    if cell >> 43 != age or i64(block + proxy + 8 * (cell >> 32 & 1023)) < (cell & LOW32):
        return False
    w32(clocks + size * line + 4 * me, now)
    return True


@njit
def write_cell(of, number, known, readers):
    """Notes a weak write of all that has one cell; False where that is a split line, a cp.async is under way to it, or
    the write not ordered after what was there. known: K_KNOWN."""
    cells, clocks, size, age, me, now, block = of
    cell = i64(cells + 8 * number)
    if cell >> 43 == age:
        x = cell >> 32 & 1023
        if x != me and i64(block + 8 * x) < (cell & LOW32):
            return False
    elif cell < 0:
        return False
    at = clocks + size * number
    for x in range(0, readers, 4):
        if any_above(at + 4 * x, known + 4 * x):
            return False
    w64(cells + 8 * number, packed(age, 0, me, now))
    return True


@njit
def read_lines(of, hosts, memory, act):
    """The same as `read_cell` for the lines at the host addresses of the lanes of `act`, which are at `hosts`; returns
    the lanes whose reads are noted. memory: host address of the CTA's shared memory.

    A cell that is the same as the lane's before gets the same answer: what a warp reads was mostly written at once."""
    cells, clocks, size, age, me, now, block = of
    ordered, noted = NONE, 0
    for lane in range(32):
        if not act >> lane & 1:
            continue
        number = (i64(hosts + 8 * lane) - memory) >> 4
        cell = i64(cells + 8 * number)
        if cell != ordered:
            if cell >> 43 != age:
                continue
            x = cell >> 32 & 1023
            if x != me and i64(block + 8 * x) < (cell & LOW32):
                continue
            ordered = cell
        w32(clocks + size * number + 4 * me, now)
        noted |= 1 << lane
    return noted


@njit
def write_lines(of, hosts, memory, act, known, readers):
    """The same as `write_cell` for the lines at the lanes' host addresses, see `read_lines`. The readers of each line
    are looked at, whoever wrote it last."""
    cells, clocks, size, age, me, now, block = of
    record = packed(age, 0, me, now)
    ordered, noted = NONE, 0
    for lane in range(32):
        if not act >> lane & 1:
            continue
        number = (i64(hosts + 8 * lane) - memory) >> 4
        cell = i64(cells + 8 * number)
        if cell != ordered:
            if cell >> 43 == age:
                x = cell >> 32 & 1023
                if x != me and i64(block + 8 * x) < (cell & LOW32):
                    continue
            elif cell < 0:
                continue
            ordered = cell
        at, later = clocks + size * number, 0
        for x in range(0, readers, 4):
            later |= any_above(at + 4 * x, known + 4 * x)
        if later:
            continue
        w64(cells + 8 * number, record)
        noted |= 1 << lane
    return noted


@njit
def begin_copies(of, hosts, memory, act):
    """Copies are under way to the lines at the lanes' host addresses, whose writes `write_lines` has noted."""
    cells, _, _, age, me, now, _ = of
    record = packed(age, 0, me, now) | IN_FLIGHT
    for lane in range(32):
        if act >> lane & 1:
            w64(cells + 8 * ((i64(hosts + 8 * lane) - memory) >> 4), record)


@njit
def end_copies(of, hosts, memory, act):
    """Copies to the lines at the lanes' host addresses arrive; returns the lanes whose line is not split. Who has used
    a line meanwhile was found out then, so nothing is compared."""
    cells, _, _, age, me, now, _ = of
    record = packed(age, 0, me, now)
    noted = 0
    for lane in range(32):
        if act >> lane & 1:
            here = cells + 8 * ((i64(hosts + 8 * lane) - memory) >> 4)
            if i64(here) != SPLIT:
                w64(here, record)
                noted |= 1 << lane
    return noted


@njit
def read_groups(m, w, base, a64, immediate, act, bytes_):
    """Notes weak reads of `bytes_` bytes by each lane of `act`; returns the lanes whose reads are noted."""
    if 16 % bytes_ or m.k[st.K_CHECKS] & st.CHECK_LANES:
        return 0
    lines = lines_of(m, w)
    noted = 0
    if bytes_ == 16:
        hosts = m.k[st.K_SCRATCH] + HOSTS
        outside = locate_lines(m, w, base, a64, immediate, hosts)
        memory = m.k[st.K_SHARED] + m.slot[w] * m.k[st.K_SHARED_STRIDE]
        noted = read_lines(lines, hosts, memory, act & ~outside)
        act &= ~noted
        if act == 0:
            return noted
    granules = granules_of(m, w, lines)
    prefix, size, lg = m.cta[m.slot[w], st.CTA_BASE], m.k[st.K_SHARED_SIZE], m.k[st.K_SHARED_GRANULE]
    per = 16 // bytes_
    together = (1 << per) - 1
    for first in range(0, 32, per):
        x = address(base, a64, first, immediate) ^ prefix
        whole = act >> first & together == together and x & 15 == 0 and op.RESERVED_SHARED <= x <= size - 16
        if whole and contiguous(base, a64, first, per, bytes_) and read_cell(lines, x >> 4):
            noted |= together << first
            continue
        for lane in range(first, first + per):
            x = address(base, a64, lane, immediate) ^ prefix
            if not act >> lane & 1 or x & (bytes_ - 1) or x < op.RESERVED_SHARED or x + bytes_ > size:
                continue
            if i64(lines[0] + 8 * (x >> 4)) != SPLIT:
                continue
            good = True
            for g in range(x >> lg, (x + bytes_) >> lg):
                good = good and read_cell(granules, g)
            if good:
                noted |= 1 << lane
    return noted


@njit
def write_groups(m, w, base, a64, immediate, act, bytes_):
    """Notes weak writes of `bytes_` bytes by each lane of `act`; returns the lanes whose writes are noted."""
    if 16 % bytes_ or not writes_lines(m, w):
        return 0
    lines = lines_of(m, w)
    known, readers = m.k[st.K_KNOWN], readers_known(m, w, lines)
    noted = 0
    if bytes_ == 16:
        hosts = m.k[st.K_SCRATCH] + HOSTS
        outside = locate_lines(m, w, base, a64, immediate, hosts)
        memory = m.k[st.K_SHARED] + m.slot[w] * m.k[st.K_SHARED_STRIDE]
        noted = write_lines(lines, hosts, memory, act & ~outside, known, readers)
        act &= ~noted
        if act == 0:
            return noted
    granules = granules_of(m, w, lines)
    prefix, size, lg = m.cta[m.slot[w], st.CTA_BASE], m.k[st.K_SHARED_SIZE], m.k[st.K_SHARED_GRANULE]
    per = 16 // bytes_
    together = (1 << per) - 1
    for first in range(0, 32, per):
        x = address(base, a64, first, immediate) ^ prefix
        whole = act >> first & together == together and x & 15 == 0 and op.RESERVED_SHARED <= x <= size - 16
        if whole and contiguous(base, a64, first, per, bytes_) and write_cell(lines, x >> 4, known, readers):
            noted |= together << first
            continue
        for lane in range(first, first + per):
            x = address(base, a64, lane, immediate) ^ prefix
            if not act >> lane & 1 or x & (bytes_ - 1) or x < op.RESERVED_SHARED or x + bytes_ > size:
                continue
            if i64(lines[0] + 8 * (x >> 4)) != SPLIT:
                continue
            good = True
            for g in range(x >> lg, (x + bytes_) >> lg):
                good = good and write_cell(granules, g, known, readers)
            if good:
                noted |= 1 << lane
    return noted
