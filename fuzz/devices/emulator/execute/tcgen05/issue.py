"""tcgen05 instructions of a single thread beside mma: commit, cp and fences. Compiled by numba.

A commit arrives at its mbarrier at once, as early as PTX allows. To a warp that waits for it the products are complete
(`sanitize/tensor_clocks.py`).
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.mbarrier_phase import note_arrival, settle
from fuzz.devices.emulator.execute.tcgen05.mma import paired, product
from fuzz.devices.emulator.execute.tcgen05.operands import expand, used_of
from fuzz.devices.emulator.sanitize import (
    bulk_clocks,
    cluster_order,
    shared_shadow,
    tensor_clocks,
    tensor_reads,
    tensor_shadow,
    vector_clocks,
)
from fuzz.devices.emulator.sanitize.shadow import note
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, address_in, finding, host_address, offset, operand
from fuzz.devices.emulator.state.intrinsics import copy16, i64, s32, u32
from fuzz.devices.emulator.state.mbarrier_word import bytes_to_come, is_mbarrier, missing_of, phase_of, wanted_of
from fuzz.devices.emulator.state.tcgen05_descriptor import is_valid, k_major
from fuzz.devices.emulator.state.tensor_memory import LANE, SHARED_A, host_in, usable_in

CHECKED = st.CHECK_RACES | st.CHECK_UNINITIALISED


@njit
def issue(m, w, pc, wb, cb, c, act, number):
    """One instruction by the active lanes."""
    if number == op.TC_MMA:
        product(m, w, pc, wb, cb, c, act)
    elif number == op.TC_COMMIT:
        commit(m, w, pc, wb, cb, c, act)
    elif number == op.TC_CP:
        for lane in range(32):
            if act >> lane & 1:
                copy(m, w, pc, wb, cb, c, lane)
    elif s32(c + 8) and m.k[st.K_TENSOR_FENCES]:
        tensor_clocks.fence_after(m, w)


@njit
def commit(m, w, pc, wb, cb, c, act):
    """tcgen05.commit: an arrival at an mbarrier, or at the mbarriers of several CTAs of the cluster."""
    flags = s32(c + 8)
    space = flags >> op.SPACE & 15
    checking = m.k[st.K_CHECKS] & CHECKED
    m.wrote[w] = 1
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(operand(wb, cb, s32(c + 12)), flags >> op.ADDRESS64 & 1, lane, s32(c + 16))
        if s32(c + 20) == op.ABSENT:
            arrive(m, w, pc, lane, space, a, checking)
            continue
        mask = u32(operand(wb, cb, s32(c + 20)) + 4 * lane) & 0xFFFF
        if a >> op.SHIFT == 1:
            a -= op.SHARED_WINDOW
        for rank in range(16):
            if mask >> rank & 1 and rank >= m.k[st.K_CLUSTER]:
                finding(m, st.F_CLUSTER_RANK, pc, w, lane, a, 8, rank)
            elif mask >> rank & 1:
                there = offset(a) | op.CLUSTER_FLAG | rank << op.RANK_BIT if m.k[st.K_CLUSTER] > 1 else a
                arrive(m, w, pc, lane, op.SHARED_CLUSTER, there, checking)


@njit
def arrive(m, w, pc, lane, space, a, checking):
    """One arrival of a commit, at the mbarrier with the address `a`."""
    h = host_address(m, w, pc, lane, space, a, 8)
    if h == 0:
        return
    old = i64(h)
    if not is_mbarrier(old):
        finding(m, st.F_MBARRIER, pc, w, lane, a, 8, -1)
        return
    if checking:
        _note_arrival(m, w, pc, lane, space, a, h)
        tensor_clocks.commit(m, w, h)
        if m.k[st.K_ENTITIES] > m.k[st.K_WARPS]:
            bulk_clocks.carry(m, w, h)
    if m.k[st.K_CLUSTER] > 1:
        note_arrival(m, w, h, phase_of(old))
    missing = missing_of(old)
    if missing == 0:
        finding(m, st.F_MBARRIER, pc, w, lane, a, 8, 0)
    else:
        missing -= 1
    settle(m, h, wanted_of(old), missing, bytes_to_come(old), phase_of(old))


@njit
def _note_arrival(m, w, pc, lane, space, a, h):
    """Notes the use of the mbarrier at host address `h`. In another CTA a warp that waits for the phase orders it
    before that CTA's exit, as it does the products."""
    slot = (h - m.k[st.K_SHARED]) // m.k[st.K_SHARED_STRIDE]
    if slot == w // m.k[st.K_WARPS]:
        note(m, w, pc, lane, space, a, 8, 0, 1)
        return
    if a >> op.SHIFT == 1:
        a -= op.SHARED_WINDOW
    me = vector_clocks.in_cluster(m, w)
    shared_shadow.note_shared_by(m, w, slot, pc, lane, offset(a), 8, 0, 1, me, vector_clocks.own(m, w))
    cluster_order.visit(m, slot, me, -m.tensor_warp[w, st.TW_ISSUED], pc, lane, a)


@njit
def copy(m, w, pc, wb, cb, c, lane):
    """tcgen05.cp: rows of 16 or 32 bytes of shared memory to lanes of tensor memory, once or several times; with
    .cta_group::2 in both CTAs of a pair, each from its own shared memory."""
    m.wrote[w] = 1
    shape = s32(c + 8)
    where = (u32(operand(wb, cb, s32(c + 12)) + 4 * lane) + s32(c + 16)) & 0xFFFFFFFF
    descriptor = i64(operand(wb, cb, s32(c + 20)) + 8 * lane)
    if not is_valid(descriptor):
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, descriptor, 0, SHARED_A)
        return
    chunks = 2 if shape <= op.TC_CP_4X256 else 1
    rows = (
        4 if shape == op.TC_CP_4X256 else 128 if shape <= op.TC_CP_128X128 else 32 if shape == op.TC_CP_32X128 else 64
    )
    first, column = where >> 16, where & 0xFFFF
    if first > 31 or (first and shape != op.TC_CP_4X256):
        finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, where, 0, LANE)
        return
    cta, ctas = w // m.k[st.K_WARPS], 1
    if s32(c + 28):
        if not paired(m, w, pc, lane, cta):
            return
        cta, ctas = cta - (m.cta[cta, st.CTA_RANK] & 1), 2
    for its in range(cta, cta + ctas):
        if not usable_in(m, w, its, pc, lane, column, 4 * chunks):
            return
    m.tensor_warp[w, st.TW_ISSUED] += 1
    for its in range(cta, cta + ctas):
        if m.k[st.K_CHECKS] & CHECKED:
            groups = 0x55 << (first >> 4) if shape == op.TC_CP_4X256 else 255
            tensor_shadow.note_in(m, w, its, pc, groups, column, 4 * chunks, tensor_shadow.CP_WRITE)
        for row in range(rows):
            for chunk in range(chunks):
                _copy_chunk(m, w, its, pc, lane, shape, s32(c + 24), first, column, row, chunk, descriptor)


@njit
def _copy_chunk(m, w, cta, pc, lane, shape, bits, first, column, row, chunk, descriptor):
    """16 bytes of shared memory to the lanes of the CTA in row `cta` that get them."""
    a = k_major(descriptor, row, chunk)
    h = host_address(m, w, pc, lane, op.SHARED_CLUSTER, address_in(m, w, cta, a), 16)
    if h == 0:
        return
    if m.k[st.K_CHECKS] & CHECKED:
        tensor_reads.note_read_of(m, w, cta, pc, lane, a, used_of(bits))
    column += 4 * chunk
    if shape == op.TC_CP_4X256:
        _put(host_in(m, cta, first + 32 * row, column), h, bits)
    elif shape <= op.TC_CP_128X128:
        _put(host_in(m, cta, row, column), h, bits)
    elif shape == op.TC_CP_64X128_02:
        _put(host_in(m, cta, row, column), h, bits)
        _put(host_in(m, cta, row + 64, column), h, bits)
    elif shape == op.TC_CP_64X128_01:
        _put(host_in(m, cta, 64 * (row >> 5) + (row & 31), column), h, bits)
        _put(host_in(m, cta, 64 * (row >> 5) + 32 + (row & 31), column), h, bits)
    else:
        for quarter in range(4):
            _put(host_in(m, cta, row + 32 * quarter, column), h, bits)


@njit
def _put(to, source, bits):
    """16 bytes, or 16 numbers of so many bits as bytes."""
    if bits:
        expand(to, source, bits)
    else:
        copy16(to, source)
