"""Bulk copies: cp.async.bulk and cp.reduce.async.bulk, with tensor maps and without. Compiled by numba.

A copy is noted down when it is issued and carried out as late as PTX allows: a load when somebody asks its mbarrier for
the phase, a store when its bulk group is waited for, anything when its CTA exits. Memory counts as accessed from the
issue on, by an agent of its own (`sanitize/bulk_clocks.py`), so an access that comes too early is a race whatever the
numbers turn out to be.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute import bulk_rules
from fuzz.devices.emulator.execute.bulk_rows import copy_rows, note_rows, row_count
from fuzz.devices.emulator.execute.mbarrier_phase import complete_bytes
from fuzz.devices.emulator.sanitize import bulk_clocks, vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state import tensor_map as tm
from fuzz.devices.emulator.state.addressing import address, finding, host_address, operand, wake
from fuzz.devices.emulator.state.intrinsics import s32, u32

FORM_ALIGNMENT = 128  # of the shared address of a tensor's copy
PLAIN_ALIGNMENT = 16  # of addresses and sizes of other copies


@njit
def issue(m, w, pc, wb, cb, c, act):
    """One bulk copy for each active lane."""
    flags = s32(c + 8)
    kind, rank = flags & 15, flags >> op.BULK_RANK & 15
    m.wrote[w] = 1
    for lane in range(32):
        if act >> lane & 1:
            i = _entry(m, w, pc, wb, cb, c, lane, flags, kind, rank)
            if i >= 0:
                _note(m, w, i)
                _wake_waiters(m, w, i)
    if m.k[st.K_CHECKS]:
        vector_clocks.tick(m, w)


@njit
def _entry(m, w, pc, wb, cb, c, lane, flags, kind, rank):
    """Writes down the copy of a lane; its number among the CTA's copies in flight, -1 where it cannot be made."""
    slot = w // m.k[st.K_WARPS]
    shared = address(operand(wb, cb, s32(c + 12)), flags & op.BULK_WIDE_SHARED, lane, s32(c + 16))
    if shared >> op.SHIFT == 1:
        shared -= op.SHARED_WINDOW
    there = address(operand(wb, cb, s32(c + 20)), 1, lane, s32(c + 24))
    barrier, barrier_at = 0, 0
    if s32(c + 28) != op.ABSENT:
        barrier_at = address(operand(wb, cb, s32(c + 28)), flags & op.BULK_WIDE_BARRIER, lane, s32(c + 32))
        if barrier_at >> op.SHIFT == 1:
            barrier_at -= op.SHARED_WINDOW
        barrier = host_address(m, w, pc, lane, op.SHARED, barrier_at, 8)
        if barrier == 0:
            return -1
    map_, bytes_, extent = 0, 0, 0
    if rank:
        map_ = host_address(m, w, pc, lane, op.GENERIC, there, 16)
        if map_ == 0:
            return -1
        if there & 63:
            finding(m, st.F_ALIGN, pc, w, lane, there, 64, op.GENERIC)
        why = bulk_rules.refusal(map_, rank, kind, s32(c + 56) >> 8)
        if why != tm.VALID:
            finding(m, st.F_TENSOR_MAP, pc, w, lane, there, 0, why)
            return -1
        if shared & FORM_ALIGNMENT - 1:
            finding(m, st.F_ALIGN, pc, w, lane, shared, FORM_ALIGNMENT, op.SHARED)
        bulk_rules.note_coordinates(m, w, pc, wb, cb, c, lane, kind, rank, map_, there)
        rows = row_count(map_, rank)
        bytes_, extent = rows * tm.box_of(map_, 0) * tm.element_bytes(map_), rows * tm.pitch(map_)
    else:
        bytes_ = u32(operand(wb, cb, s32(c + 36)) + 4 * lane)
        extent = bytes_
        if (shared | there | bytes_) & PLAIN_ALIGNMENT - 1:
            finding(m, st.F_BULK_FORM, pc, w, lane, shared, bytes_, there)
            return -1
    if shared < 0 or shared + extent > m.k[st.K_SHARED_SIZE]:
        finding(m, st.F_SHARED_BOUNDS, pc, w, lane, shared, extent, m.k[st.K_SHARED_SIZE])
        return -1
    if m.cta[slot, st.CTA_BULKS] == st.BULKS:  # the oldest arrives early, which PTX allows too
        _carry_out(m, slot, 0)
        _remove(m, slot, 0)
    i = m.cta[slot, st.CTA_BULKS]
    m.cta[slot, st.CTA_BULKS] = i + 1
    b = m.bulk
    b[slot, i, st.B_KIND], b[slot, i, st.B_WARP], b[slot, i, st.B_LANE], b[slot, i, st.B_PC] = kind, w, lane, pc
    b[slot, i, st.B_GROUP] = m.bulk_groups[w, lane]
    b[slot, i, st.B_SHARED], b[slot, i, st.B_GLOBAL] = shared, there
    b[slot, i, st.B_BARRIER], b[slot, i, st.B_BARRIER_AT] = barrier, barrier_at
    b[slot, i, st.B_BYTES], b[slot, i, st.B_RANK], b[slot, i, st.B_MAP] = bytes_, rank, map_
    b[slot, i, st.B_OPERATION], b[slot, i, st.B_READ] = s32(c + 56), 0
    b[slot, i, st.B_HOST] = m.k[st.K_SHARED] + slot * m.k[st.K_SHARED_STRIDE]
    for j in range(rank):
        b[slot, i, st.B_X + j] = s32(operand(wb, cb, s32(c + 36 + 4 * j)) + 4 * lane)
    return i


@njit
def _note(m, w, i):
    """Gives entry `i` its agents, and notes what it reads and writes, from the issue on."""
    if not m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED):
        return
    slot, b = w // m.k[st.K_WARPS], m.bulk
    pc = b[slot, i, st.B_PC]
    if b[slot, i, st.B_KIND] == op.BULK_LOAD:
        one = bulk_clocks.agent(m, slot, b[slot, i, st.B_BARRIER], pc)
    else:
        one = bulk_clocks.agent(m, slot, 4 * w + bulk_clocks.READS, pc)
        two = bulk_clocks.agent(m, slot, 4 * w + bulk_clocks.WRITES, pc)
        b[slot, i, st.B_WRITER], b[slot, i, st.B_WRITER_CLOCK] = two, bulk_clocks.next_clock(m, slot, two)
    b[slot, i, st.B_AGENT], b[slot, i, st.B_CLOCK] = one, bulk_clocks.next_clock(m, slot, one)
    note_rows(m, slot, i)


@njit
def _wake_waiters(m, w, i):
    """Warps that sleep on the copy's mbarrier are to ask again: the copy arrives when they do."""
    slot = w // m.k[st.K_WARPS]
    if m.k[st.K_SLEEPERS] and m.bulk[slot, i, st.B_BARRIER]:
        wake(m, m.bulk[slot, i, st.B_BARRIER], 8)


@njit
def _carry_out(m, slot, i):
    """Moves the data of entry `i`, and tells its mbarrier."""
    b = m.bulk
    copy_rows(m, slot, i)
    if b[slot, i, st.B_BARRIER]:
        if m.k[st.K_CHECKS]:
            column = bulk_clocks.entity(m, slot, b[slot, i, st.B_AGENT])
            bulk_clocks.bring(m, b[slot, i, st.B_BARRIER], column, b[slot, i, st.B_CLOCK])
        complete_bytes(m, b[slot, i, st.B_WARP], b[slot, i, st.B_PC], b[slot, i, st.B_LANE],
                       b[slot, i, st.B_BARRIER], b[slot, i, st.B_BARRIER_AT], b[slot, i, st.B_BYTES])  # fmt: skip


@njit
def _remove(m, slot, i):
    n = m.cta[slot, st.CTA_BULKS] - 1
    m.cta[slot, st.CTA_BULKS] = n
    for j in range(i, n):
        for column in range(24):
            m.bulk[slot, j, column] = m.bulk[slot, j + 1, column]


@njit
def arrive(m, w, barrier):
    """Somebody waits for the phase of the mbarrier at this host address: the copies that signal it arrive."""
    slot = w // m.k[st.K_WARPS]
    i = 0
    while i < m.cta[slot, st.CTA_BULKS]:
        if m.bulk[slot, i, st.B_BARRIER] == barrier:
            _carry_out(m, slot, i)
            _remove(m, slot, i)
        else:
            i += 1


@njit
def commit(m, w, act):
    """cp.async.bulk.commit_group."""
    for lane in range(32):
        if act >> lane & 1:
            m.bulk_groups[w, lane] += 1


@njit
def wait(m, w, act, keep, reads_only):
    """cp.async.bulk.wait_group: all but the last `keep` groups of the lanes are done, or have read their sources."""
    slot, b = w // m.k[st.K_WARPS], m.bulk
    i = 0
    while i < m.cta[slot, st.CTA_BULKS]:
        lane = b[slot, i, st.B_LANE]
        due = b[slot, i, st.B_WARP] == w and b[slot, i, st.B_BARRIER] == 0 and act >> lane & 1
        if not due or b[slot, i, st.B_GROUP] >= m.bulk_groups[w, lane] - keep:
            i += 1
            continue
        if b[slot, i, st.B_READ] == 0:
            _learn(m, w, slot, i, st.B_AGENT)
            _carry_out(m, slot, i)
        if not reads_only:
            _learn(m, w, slot, i, st.B_WRITER)
        m.wrote[w] = 1
        if reads_only:
            b[slot, i, st.B_READ] = 1  # stays until somebody waits for its writes
            i += 1
        else:
            _remove(m, slot, i)


@njit
def _learn(m, w, slot, i, which):
    """The warp is ordered after the reads (B_AGENT) or the writes (B_WRITER) of an entry."""
    if m.k[st.K_CHECKS]:
        column = bulk_clocks.entity(m, slot, m.bulk[slot, i, which])
        bulk_clocks.learn(m, vector_clocks.warp_row(m, w), column, m.bulk[slot, i, which + 1])


@njit
def end(m, slot):
    """A CTA exits: copies that still use its shared memory are findings; all are carried out."""
    for i in range(m.cta[slot, st.CTA_BULKS]):
        if m.bulk[slot, i, st.B_READ] == 0:
            pc, w, lane = m.bulk[slot, i, st.B_PC], m.bulk[slot, i, st.B_WARP], m.bulk[slot, i, st.B_LANE]
            finding(m, st.F_BULK_LEFT, pc, w, lane, m.bulk[slot, i, st.B_SHARED], m.bulk[slot, i, st.B_BYTES],
                    m.bulk[slot, i, st.B_KIND])  # fmt: skip
            copy_rows(m, slot, i)
    m.cta[slot, st.CTA_BULKS] = 0
