"""Bulk copies: cp.async.bulk and cp.reduce.async.bulk, with tensor maps and without. Compiled by numba.

A copy that signals an mbarrier stands among the copies of the CTA that has the mbarrier, which is not always the one
that issues it: a copy to another CTA of the cluster, or to several of them, each with its own mbarrier.

A copy is noted down when it is issued and carried out as late as PTX allows: a load when somebody asks its mbarrier for
the phase, a store when its bulk group is waited for, anything when its CTA exits. Memory counts as accessed from the
issue on, by an agent of its own (`sanitize/bulk_clocks.py`), so an access that comes too early is a race whatever the
numbers turn out to be.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.bulk import cluster_copies
from fuzz.devices.emulator.execute.bulk import rules as bulk_rules
from fuzz.devices.emulator.execute.bulk.rows import copy_rows, note_rows, row_count
from fuzz.devices.emulator.execute.mbarrier_phase import complete_bytes
from fuzz.devices.emulator.execute.refusal import refuse
from fuzz.devices.emulator.sanitize import bulk_clocks, vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state import tensor_map as tm
from fuzz.devices.emulator.state.addressing import (
    address,
    address_in,
    finding,
    host_address,
    offset,
    operand,
    owner,
    slot_of_rank,
    wake,
)
from fuzz.devices.emulator.state.intrinsics import s32, u32

FORM_ALIGNMENT = 128  # of the shared address of a tensor's copy
PLAIN_ALIGNMENT = 16  # of addresses and sizes of other copies
MULTICAST = 2  # value of a finding: the CTA that has exited is one of several destinations


@njit
def issue(m, w, pc, wb, cb, c, act):
    """One bulk copy for each active lane."""
    flags = s32(c + 8)
    kind, rank = flags & 15, flags >> op.BULK_RANK & 15
    m.wrote[w] = 1
    for lane in range(32):
        if act >> lane & 1 and _entry(m, w, pc, wb, cb, c, lane, flags, kind, rank):
            if s32(c + 60) == op.ABSENT:
                post(m, w)
            else:
                mask = u32(operand(wb, cb, s32(c + 60)) + 4 * lane) & 0xFFFF
                post_to_many(m, w, pc, lane, mask, flags & op.BULK_PAIR)
    if m.k[st.K_CHECKS]:
        vector_clocks.tick(m, w)


@njit
def _entry(m, w, pc, wb, cb, c, lane, flags, kind, rank):
    """Writes down the copy of a lane as the last entry of the CTA's table. False where it cannot be made."""
    slot, b, new = w // m.k[st.K_WARPS], m.bulk, st.BULKS
    shared = address(operand(wb, cb, s32(c + 12)), flags & op.BULK_WIDE_SHARED, lane, s32(c + 16))
    if shared >> op.SHIFT == 1:
        shared -= op.SHARED_WINDOW
    there = address(operand(wb, cb, s32(c + 20)), flags & op.BULK_WIDE_SOURCE, lane, s32(c + 24))
    barrier, barrier_at = 0, 0
    if s32(c + 28) != op.ABSENT:
        barrier_at = address(operand(wb, cb, s32(c + 28)), flags & op.BULK_WIDE_BARRIER, lane, s32(c + 32))
        if barrier_at >> op.SHIFT == 1:
            barrier_at -= op.SHARED_WINDOW
        barrier = host_address(m, w, pc, lane, op.SHARED_CLUSTER, barrier_at, 8)
        if barrier == 0:
            return False
    map_, bytes_, extent = 0, 0, 0
    if rank:
        map_ = host_address(m, w, pc, lane, op.GENERIC, there, 16)
        if map_ == 0:
            return False
        if there & 63:
            finding(m, st.F_ALIGN, pc, w, lane, there, 64, op.GENERIC)
        why = bulk_rules.refusal(map_, rank, kind, s32(c + 56) >> 8)
        if why >= tm.NO_INTERLEAVE:
            refuse(m, pc, why, there)
            return False
        if why != tm.VALID:
            finding(m, st.F_TENSOR_MAP, pc, w, lane, there, 0, why)
            return False
        if shared & FORM_ALIGNMENT - 1:
            finding(m, st.F_ALIGN, pc, w, lane, shared, FORM_ALIGNMENT, op.SHARED)
        bulk_rules.note_coordinates(m, w, pc, wb, cb, c, lane, kind, rank, map_, there)
        rows = row_count(map_, rank)
        bytes_, extent = rows * (tm.box_of(map_, 0) * tm.element_bits(map_) // 8), rows * tm.pitch(map_)
    else:
        bytes_ = u32(operand(wb, cb, s32(c + 36)) + 4 * lane)
        extent = bytes_
        if (shared | there | bytes_) & PLAIN_ALIGNMENT - 1:
            finding(m, st.F_BULK_FORM, pc, w, lane, shared, bytes_, there)
            return False
    to_others = kind == op.BULK_LOCAL or (kind == op.BULK_LOAD and not flags & op.BULK_OWN)
    if _outside(m, w, pc, lane, op.SHARED_CLUSTER if to_others else op.SHARED, shared, extent):
        return False
    data = owner(m, w, shared)
    if kind == op.BULK_LOCAL:
        if there >> op.SHIFT == 1:
            there -= op.SHARED_WINDOW
        if _outside(m, w, pc, lane, op.SHARED, there, bytes_):
            return False
        there = offset(there)
    if barrier and owner(m, w, barrier_at) != data and not flags & op.BULK_PAIR:
        finding(m, st.F_CLUSTER_MBARRIER, pc, w, lane, barrier_at, bytes_, shared)
        return False
    b[slot, new, st.B_KIND], b[slot, new, st.B_WARP] = kind, w
    b[slot, new, st.B_LANE], b[slot, new, st.B_PC] = lane, pc
    b[slot, new, st.B_GROUP] = m.bulk_groups[w, lane]
    b[slot, new, st.B_SHARED], b[slot, new, st.B_GLOBAL] = offset(shared), there
    b[slot, new, st.B_BARRIER], b[slot, new, st.B_BARRIER_AT] = barrier, barrier_at
    b[slot, new, st.B_BYTES], b[slot, new, st.B_RANK], b[slot, new, st.B_MAP] = bytes_, rank, map_
    b[slot, new, st.B_OPERATION], b[slot, new, st.B_READ] = s32(c + 56), 0
    b[slot, new, st.B_HOST] = memory_of(m, data)
    for j in range(rank):
        b[slot, new, st.B_X + j] = s32(operand(wb, cb, s32(c + 36 + 4 * j)) + 4 * lane)
    return True


@njit
def _outside(m, w, pc, lane, space, a, bytes_):
    """True, and a finding, where not all bytes from `a` on are in one CTA's shared memory that the warp may use."""
    size = m.k[st.K_SHARED_SIZE]
    start = offset(a) if m.k[st.K_CLUSTER] > 1 else a
    if start < op.RESERVED_SHARED or start + bytes_ > size:
        finding(m, st.F_SHARED_BOUNDS, pc, w, lane, a, bytes_, size)
        return True
    return m.k[st.K_CLUSTER] > 1 and a & op.CLUSTER_FLAG != 0 and slot_of_rank(m, w, pc, lane, space, a, bytes_) < 0


@njit(inline="always")
def memory_of(m, slot):
    """Host address of the shared memory of the CTA in row `slot`."""
    return m.k[st.K_SHARED] + slot * m.k[st.K_SHARED_STRIDE]


@njit(inline="always")
def data_slot(m, slot, i):
    """Row of `cta` of the CTA whose shared memory entry `i` writes, or reads where its destination is global."""
    return (m.bulk[slot, i, st.B_HOST] - m.k[st.K_SHARED]) // m.k[st.K_SHARED_STRIDE]


@njit
def post(m, w):
    """Puts what `_entry` has written down among the copies of a CTA: that of its mbarrier, else the issuing one."""
    own, b = w // m.k[st.K_WARPS], m.bulk
    slot = own
    if b[own, st.BULKS, st.B_BARRIER]:
        slot = (b[own, st.BULKS, st.B_BARRIER] - m.k[st.K_SHARED]) // m.k[st.K_SHARED_STRIDE]
    if m.cta[slot, st.CTA_BULKS] == st.BULKS:  # the oldest arrives early, which PTX allows too
        if m.bulk[slot, 0, st.B_READ] == 0:
            _carry_out(m, slot, 0)
        _remove(m, slot, 0)
    i = m.cta[slot, st.CTA_BULKS]
    m.cta[slot, st.CTA_BULKS] = i + 1
    for column in range(24):
        b[slot, i, column] = b[own, st.BULKS, column]
    _note(m, slot, i)
    if m.k[st.K_SLEEPERS] and b[slot, i, st.B_BARRIER]:  # who sleeps on it is to ask again: then the copy arrives
        wake(m, b[slot, i, st.B_BARRIER], 8)


@njit
def post_to_many(m, w, pc, lane, mask, pairs):
    """A multicast: a copy for each CTA of the mask, to the same places there. pairs: each tells the CTA of its pair
    that is even or odd as the one with the mbarrier is (.cta_group::2), else each tells its own."""
    own, b = w // m.k[st.K_WARPS], m.bulk
    first = own - m.cta[own, st.CTA_RANK]
    place = b[own, st.BULKS, st.B_BARRIER]
    told = (place - m.k[st.K_SHARED]) // m.k[st.K_SHARED_STRIDE]
    odd = told - first & 1
    for rank in range(16):
        if not mask >> rank & 1:
            continue
        slot = first + rank
        where = b[own, st.BULKS, st.B_SHARED] | op.CLUSTER_FLAG | rank << op.RANK_BIT
        if rank >= m.k[st.K_CLUSTER]:
            finding(m, st.F_CLUSTER_RANK, pc, w, lane, where, b[own, st.BULKS, st.B_BYTES], rank)
        elif m.cta[slot, st.CTA_WARPS] == 0:
            finding(m, st.F_CLUSTER_EXITED, pc, w, lane, where, b[own, st.BULKS, st.B_BYTES], MULTICAST)
        else:
            signal = first + (rank & ~1 | odd) if pairs else slot
            b[own, st.BULKS, st.B_HOST] = memory_of(m, slot)
            b[own, st.BULKS, st.B_BARRIER] = place + (signal - told) * m.k[st.K_SHARED_STRIDE]
            b[own, st.BULKS, st.B_BARRIER_AT] = (
                offset(b[own, st.BULKS, st.B_BARRIER_AT]) | op.CLUSTER_FLAG | (signal - first) << op.RANK_BIT
            )
            post(m, w)


@njit
def _note(m, slot, i):
    """Gives entry `i` its agents, and notes what it reads and writes, from the issue on."""
    if not m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED):
        return
    b = m.bulk
    pc, w = b[slot, i, st.B_PC], b[slot, i, st.B_WARP]
    if b[slot, i, st.B_BARRIER]:
        one = bulk_clocks.agent(m, slot, b[slot, i, st.B_BARRIER], pc)
    else:
        one = bulk_clocks.agent(m, slot, 4 * w + bulk_clocks.READS, pc)
        two = bulk_clocks.agent(m, slot, 4 * w + bulk_clocks.WRITES, pc)
        b[slot, i, st.B_WRITER], b[slot, i, st.B_WRITER_CLOCK] = two, bulk_clocks.next_clock(m, slot, two)
    b[slot, i, st.B_AGENT], b[slot, i, st.B_CLOCK] = one, bulk_clocks.next_clock(m, slot, one)
    if b[slot, i, st.B_KIND] >= op.BULK_LOCAL:
        cluster_copies.note_copy(m, slot, i)
    else:
        note_rows(m, slot, i)


@njit
def _carry_out(m, slot, i):
    """Moves the data of entry `i`, and tells its mbarrier."""
    b = m.bulk
    if b[slot, i, st.B_KIND] >= op.BULK_LOCAL:
        cluster_copies.copy(m, slot, i)
    else:
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
    """A CTA exits: copies that still use its shared memory are findings, and are carried out."""
    first = slot - m.cta[slot, st.CTA_RANK]
    b = m.bulk
    for queue in range(first, first + m.k[st.K_CLUSTER]):
        left = 0
        for i in range(m.cta[queue, st.CTA_BULKS]):
            source = b[queue, i, st.B_WARP] // m.k[st.K_WARPS]
            reads = b[queue, i, st.B_KIND] == op.BULK_LOCAL and source == slot
            if queue == slot or reads or data_slot(m, queue, i) == slot:
                _end_copy(m, slot, queue, i, reads)
                continue
            for column in range(24):
                b[queue, left, column] = b[queue, i, column]
            left += 1
        m.cta[queue, st.CTA_BULKS] = left


@njit
def _end_copy(m, slot, queue, i, reads):
    """Entry `i` of a queue uses the shared memory of the CTA in row `slot`, which exits."""
    b = m.bulk
    if b[queue, i, st.B_READ]:
        return
    if m.k[st.K_CHECKS] & st.CHECK_EXITS:
        pc, w, lane = b[queue, i, st.B_PC], b[queue, i, st.B_WARP], b[queue, i, st.B_LANE]
        data = data_slot(m, queue, i)
        where = b[queue, i, st.B_GLOBAL] if reads else address_in(m, w, data, b[queue, i, st.B_SHARED])
        finding(m, st.F_BULK_LEFT, pc, w, lane, where, b[queue, i, st.B_BYTES], b[queue, i, st.B_KIND])
    if queue == slot and b[queue, i, st.B_KIND] <= op.BULK_REDUCE:
        copy_rows(m, queue, i)
    else:
        _carry_out(m, queue, i)
