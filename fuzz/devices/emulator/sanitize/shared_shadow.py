"""Shadow of shared memory: who of the cluster touched a granule last. Compiled by numba.

The last write of a granule is a cell (`shared_cells.py`). Beside it stands the clock of the last read by each entity of
the cluster (K_READERS of them): warps, and what makes bulk copies. Granules that are always accessed together have one
cell (`shared_lines.py`).
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import (
    cluster_order,
    lane_order,
    shared_lanes,
    shared_lines,
    tensor_reads,
    vector_clocks,
)
from fuzz.devices.emulator.sanitize.shared_cells import (
    EQUAL,
    IN_FLIGHT,
    LOW32,
    STRONG_SHARED,
    age_in_cell,
    age_of,
    entity_of,
    packed,
)
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address_in, finding, offset, owner
from fuzz.devices.emulator.state.intrinsics import i64, u32, w32, w64
from fuzz.devices.emulator.state.wgmma_descriptor import holds


@njit
def note_shared(m, w, pc, lane, a, size, write, strong):
    """An access of a warp; see shadow.note."""
    warps, entities = m.k[st.K_WARPS], m.k[st.K_ENTITIES]
    own = m.slot[w]
    by_lane = m.k[st.K_CHECKS] & st.CHECK_LANES
    if by_lane:
        lane_order.later(m, w)
    rank = m.cta[own, st.CTA_RANK]
    first, me = (m.cta[own, st.CTA_POSITION] - rank) * entities, rank * entities + w - own * warps
    block = vector_clocks.warp_row(m, w) + 16 + 8 * first
    now = i64(block + 8 * me)
    slot = own
    if a & op.CLUSTER_FLAG:
        slot = owner(m, w, a)
        if slot != own:
            cluster_order.visit(m, slot, me, now, pc, lane, a)
        a = offset(a)
    if by_lane and m.k[st.K_CHECKS] & st.CHECK_RACES:
        shared_lanes.note(m, w, slot, pc, lane, a, size, write, strong, me, now, first + me)
    _note(m, w, own, slot, pc, lane, a, size, write, strong, me, now, first, block)


@njit
def note_shared_by(m, w, slot, pc, lane, a, size, write, strong, mine, now):
    """An access at byte `a` of the shared memory of the CTA in row `slot`, that the warp issues and entity `mine` of
    the cluster makes at clock `now`."""
    own = m.slot[w]
    first = vector_clocks.first_in(m, own)
    block = vector_clocks.warp_row(m, w) + 16 + 8 * first
    _note(m, w, own, slot, pc, lane, a, size, write, strong, mine, now, first, block)


@njit(inline="always")
def _note(m, w, own, slot, pc, lane, a, size, write, strong, mine, now, first, block):
    """The same. own: row of the warp's CTA; first: of the cluster's entities; block: what the warp knows of them."""
    k = m.k
    age = age_of(m, slot)
    lg = k[st.K_SHARED_GRANULE]
    races = k[st.K_CHECKS] & st.CHECK_RACES
    at, end = a, a + size
    while at < end:
        place = at >> lg << lg
        here, reads, at = shared_lines.piece(m, slot, at, end)
        cell = i64(here)
        if age_in_cell(cell) != age:
            if write & 1 == 0 and k[st.K_CHECKS] & st.CHECK_UNINITIALISED:
                finding(m, st.F_UNINITIALISED, pc, w, lane, address_in(m, w, slot, place), size, 0, -1)
        elif races:
            x = entity_of(cell)
            if x != mine and i64(block + 8 * x) < (cell & LOW32):
                if write != EQUAL and not (strong and cell & STRONG_SHARED):
                    kind = st.F_RACE_WW if write == 1 else st.F_RACE_WR
                    finding(m, kind, pc, w, lane, address_in(m, w, slot, place), size, 0, first + x)
            elif cell < 0:
                copied_to(m, w, slot, pc, lane, place, size, first + x)
        if write:
            if races:
                _after_reads(m, w, own, slot, pc, lane, place, at, size, mine, first, block, reads)
            w64(here, packed(age, strong, mine, now))
        elif not strong:
            w32(reads + 4 * mine, now)


@njit
def copied_to(m, w, slot, pc, lane, place, size, other):
    """An access of memory to which a cp.async of entity `other`, that the access is ordered after, is under way."""
    finding(m, st.F_COPY_IN_FLIGHT, pc, w, lane, address_in(m, w, slot, place), size, 0, other)


@njit
def begin_copy(m, w, a, size):
    """A cp.async of the warp to `size` bytes at `a` of its CTA's shared memory is under way; its write is noted."""
    _copied(m, w, a, size, IN_FLIGHT)


@njit
def end_copy(m, w, a, size):
    """A cp.async of the warp arrives, see `shared_lines.end_copies`."""
    _copied(m, w, a, size, 0)


@njit
def _copied(m, w, a, size, flight):
    slot = m.slot[w]
    me = vector_clocks.number_in(m, slot, w)
    record = packed(age_of(m, slot), 0, me, vector_clocks.own(m, w)) | flight
    at = offset(a)
    end = at + size
    while at < end:
        here, _, at = shared_lines.piece(m, slot, at, end)
        w64(here, record)


@njit
def _after_reads(m, w, own, slot, pc, lane, place, end, size, mine, first, block, reads):
    """Holds a write of the bytes from `place` to `end`, which have one cell, against their readers, whose clocks are at
    `reads`."""
    k = m.k
    if k[st.K_TENSOR_READS]:
        for g in range(place >> k[st.K_SHARED_GRANULE], end >> k[st.K_SHARED_GRANULE]):
            tensor_reads.overwritten(m, w, slot, pc, lane, g, size)
    if m.group[w, st.G_PENDING] and slot == own:
        overwritten(m, w, pc, lane, place, end - place)
    for c in range(k[st.K_CLUSTER]):
        start = c * k[st.K_ENTITIES]
        its = slot - m.cta[slot, st.CTA_RANK] + c
        for x in range(start, start + k[st.K_WARPS] + m.cta[its, st.CTA_AGENTS]):
            if u32(reads + 4 * x) > i64(block + 8 * x) and x != mine:
                finding(m, st.F_RACE_RW, pc, w, lane, address_in(m, w, slot, place), size, 0, first + x)


@njit
def overwritten(m, w, pc, lane, a, size):
    """A write of shared memory that a product of the same warp may still be reading."""
    k = m.k
    group = w % k[st.K_WARPS] % 4 * 2
    for i in range(m.group[w, st.G_PENDING]):
        flags = m.wgmmas[w, i, st.W_FLAGS]
        for j in range(2):
            if m.wgmmas[w, i, 8 + 2 * j] < a + size and a < m.wgmmas[w, i, 9 + 2 * j]:
                first, last = (group, group + 2) if j == 0 else (0, m.wgmmas[w, i, st.W_N] >> 3)
                transposed = flags & (op.A_TRANSPOSED if j == 0 else op.B_TRANSPOSED)
                if holds(m.wgmmas[w, i, 2 + j], transposed, first, last, a, a + size):
                    finding(m, st.F_RACE_RW, pc, w, lane, a, size, 0, vector_clocks.entity(m, w))
                    return


@njit
def note_async_read(m, w, pc, lane, a, size):
    """A read of shared memory by a wgmma of the warp, through the asynchronous proxy."""
    me = vector_clocks.in_cluster(m, w)
    note_async_read_by(m, w, pc, lane, a, size, me, vector_clocks.own(m, w), st.F_PROXY)


@njit
def note_async_read_by(m, w, pc, lane, a, size, reader, clock, unfenced):
    """A read of the CTA's shared memory through the asynchronous proxy, that the warp issues and `reader` (its number
    among the cluster's entities) makes at `clock`: what was written there must be ordered before it, with a proxy fence
    on the way, else it is a race, or a finding of kind `unfenced`."""
    k = m.k
    slot = m.slot[w]
    mine, origin = vector_clocks.number_in(m, slot, w), vector_clocks.first_in(m, slot)
    known = vector_clocks.warp_row(m, w) + 16 + 8 * origin
    proxied = known + vector_clocks.proxy_of(m, slot)
    age = age_of(m, slot)
    lg = k[st.K_SHARED_GRANULE]
    races = k[st.K_CHECKS] & st.CHECK_RACES
    at, end = a, a + size
    while at < end:
        place = at >> lg << lg
        here, reads, at = shared_lines.piece(m, slot, at, end)
        cell = i64(here)
        if age_in_cell(cell) != age:
            if k[st.K_CHECKS] & st.CHECK_UNINITIALISED:
                finding(m, st.F_UNINITIALISED, pc, w, lane, place, size, 0, -1)
        elif races:
            x = entity_of(cell)
            if i64(proxied + 8 * x) < (cell & LOW32):
                ordered = x == mine or i64(known + 8 * x) >= (cell & LOW32)
                kind = unfenced if ordered else st.F_RACE_WR
                finding(m, kind, pc, w, lane, place, size, 0, origin + x)
            elif cell < 0:
                copied_to(m, w, slot, pc, lane, place, size, origin + x)
        w32(reads + 4 * reader, clock)


@njit
def note_async_write(m, w, slot, pc, lane, a, size, writer, clock):
    """A write of the shared memory of the CTA in row `slot` through the asynchronous proxy, that the warp issues and
    `writer` (its number among the cluster's entities) makes at `clock`. What was read there must be ordered before it;
    what was written there too, with a proxy fence on the way."""
    k = m.k
    own = m.slot[w]
    mine, origin = vector_clocks.number_in(m, own, w), vector_clocks.first_in(m, own)
    known = vector_clocks.warp_row(m, w) + 16 + 8 * origin
    proxied = known + vector_clocks.proxy_of(m, slot)
    age = age_of(m, slot)
    lg = k[st.K_SHARED_GRANULE]
    races = k[st.K_CHECKS] & st.CHECK_RACES
    at, end = a, a + size
    while at < end:
        place = at >> lg << lg
        here, reads, at = shared_lines.piece(m, slot, at, end)
        if races:
            cell = i64(here)
            x = entity_of(cell)
            if age_in_cell(cell) == age and i64(proxied + 8 * x) < (cell & LOW32):
                ordered = x == mine or i64(known + 8 * x) >= (cell & LOW32)
                kind = st.F_BULK_PROXY if ordered else st.F_RACE_WW
                finding(m, kind, pc, w, lane, address_in(m, w, slot, place), size, 0, origin + x)
            elif age_in_cell(cell) == age and cell < 0:
                copied_to(m, w, slot, pc, lane, place, size, origin + x)
            _after_reads(m, w, own, slot, pc, lane, place, at, size, mine, origin, known, reads)
        w64(here, packed(age, 0, writer, clock))
