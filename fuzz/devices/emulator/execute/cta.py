"""CTAs come and go: registers and shared memory of a CTA that starts, what is left when lanes exit.
Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute import register_limits, wgmma
from fuzz.devices.emulator.execute.bulk import copies as bulk_copies
from fuzz.devices.emulator.execute.bulk.cp_async import complete
from fuzz.devices.emulator.execute.clusters import barrier as cluster_barrier
from fuzz.devices.emulator.execute.divergence import FAR
from fuzz.devices.emulator.execute.tcgen05 import memory as tensor_memory
from fuzz.devices.emulator.execute.warp_ops import check_barrier
from fuzz.devices.emulator.sanitize import cluster_order, lane_order, shared_lines, vector_clocks
from fuzz.devices.emulator.sanitize.taint import taints_of
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.intrinsics import i64, w32, w64


@njit
def start_cluster(m, slot, position):
    """Puts the cluster whose first CTA is at `position` of the order of dispatch into free rows of `cta` from `slot`
    on."""
    for rank in range(m.k[st.K_CLUSTER]):
        m.cta[slot + rank, st.CTA_RANK] = rank
    if m.k[st.K_CHECKS] and m.k[st.K_CLUSTER_BARRIER]:
        cluster_order.begin(m, slot)
    cluster_order.forget_visits(m, slot)
    for rank in range(m.k[st.K_CLUSTER]):
        start(m, slot + rank, position + rank)


@njit
def start(m, slot, position):
    """Puts the CTA at `position` of the order of dispatch into a free row of `cta`."""
    k = m.k
    linear = m.order[position]
    m.cta[slot, st.CTA_INDEX] = linear
    m.cta[slot, st.CTA_POSITION] = position
    m.cta[slot, st.CTA_SLOT] = slot
    x = linear % k[st.K_GRID_X]
    y = linear // k[st.K_GRID_X] % k[st.K_GRID_Y]
    z = linear // (k[st.K_GRID_X] * k[st.K_GRID_Y])
    m.cta[slot, st.CTA_X], m.cta[slot, st.CTA_Y], m.cta[slot, st.CTA_Z] = x, y, z
    for axis in range(3):
        size = k[st.K_CLUSTER_X + axis]
        m.cta[slot, st.CTA_CLUSTER_X + axis] = m.cta[slot, st.CTA_X + axis] // size
        m.cta[slot, st.CTA_IN_CLUSTER_X + axis] = m.cta[slot, st.CTA_X + axis] % size
    m.cta[slot, st.CTA_BASE] = op.CLUSTER_FLAG | m.cta[slot, st.CTA_RANK] << op.RANK_BIT if k[st.K_CLUSTER] > 1 else 0
    m.cta[slot, st.CTA_ARRIVALS] = 0
    warps = k[st.K_WARPS]
    m.cta[slot, st.CTA_WARPS] = warps
    k[st.K_AGE] += 1
    m.cta[slot, st.CTA_AGE] = k[st.K_AGE]
    m.cta[slot, st.CTA_BULKS] = 0
    m.cta[slot, st.CTA_AGENTS] = 0
    m.cta[slot, st.CTA_REFUSAL] = 0
    register_limits.begin(m, slot)
    if k[st.K_CHECKS]:
        vector_clocks.begin(m, slot, position)
        shared_lines.begin(m, slot)
        for w in range(slot * warps, slot * warps + warps):
            lane_order.begin(m, w)
    if k[st.K_TENSOR_MEMORY]:
        tensor_memory.begin(m, slot)
    shared = k[st.K_SHARED] + slot * k[st.K_SHARED_STRIDE]
    for i in range(0, k[st.K_SHARED_STRIDE], 8):
        w64(shared + i, -1)
    for b in range(16):
        m.arrived[slot, b] = 0
        m.expected[slot, b] = 0
    for i in range(warps):
        w = slot * warps + i
        lanes = min(32, k[st.K_THREADS] - 32 * i)
        m.alive[w] = (1 << lanes) - 1
        m.pc[w] = 0
        m.mask[w] = m.alive[w]
        m.stop[w] = FAR
        m.parked[w] = 0
        m.asleep[w] = 0
        m.status[w] = st.RUNNING
        m.wrote[w] = 1
        m.spin[w, st.SPIN_PC] = -1
        m.pending[w] = 0
        for number in range(k[st.K_LOOPS]):
            w64(k[st.K_TRIPS] + 8 * (w * k[st.K_LOOPS] + number), 0)
        m.cluster[w, st.CL_ARRIVED] = m.cluster[w, st.CL_PASSED] = m.cluster[w, st.CL_WAITING] = 0
        m.cluster_inits[w] = 0
        wgmma.begin(m, w)
        base = k[st.K_REGISTERS] + w * k[st.K_STRIDE]
        if k[st.K_CHECKS] & st.CHECK_UNINITIALISED:  # what nothing has written is no number, and true
            for j in range(0, k[st.K_STRIDE], 8):
                w64(base + j, -1)
        taints = taints_of(m, w)
        if taints:
            for j in range(0, k[st.K_STRIDE] >> 5, 4):
                w32(taints + j, 0)
        for lane in range(32):
            m.lane_pc[w, lane] = 0
            m.groups[w, lane] = 0
            m.bulk_groups[w, lane] = 0
        fill_special_registers(m, slot, i, base)


@njit
def fill_special_registers(m, slot, warp, base):
    """Writes what the kernel reads of special registers into the registers of a warp, which begin at `base`."""
    k = m.k
    for s in range(k[st.K_SPECIALS]):
        column = m.special[s, st.SR_CTA_COLUMN]
        values = k[st.K_SPECIAL_VALUES] + 256 * (s * k[st.K_WARPS] + warp)
        if m.special[s, st.SR_WIDE] == 2:
            w32(base + m.special[s, st.SR_REGISTER], 0xFFFFFFFF if i64(values) else 0)
            continue
        for lane in range(32):
            v = m.cta[slot, column] if column >= 0 else i64(values + 8 * lane)
            if m.special[s, st.SR_WIDE]:
                w64(base + m.special[s, st.SR_REGISTER] + 8 * lane, v)
            else:
                w32(base + m.special[s, st.SR_REGISTER] + 4 * lane, v)


@njit
def leave(m, w, lanes):
    """`lanes` of the warp have exited."""
    m.alive[w] &= ~lanes
    complete(m, w, lanes, -1)
    slot = w // m.k[st.K_WARPS]
    if m.k[st.K_CLUSTER_BARRIER]:
        cluster_barrier.check(m, slot)
    if m.alive[w]:
        return
    m.status[w] = st.DONE
    register_limits.leave(m, w)
    wgmma.wake_warpgroup(m, w)
    m.cta[slot, st.CTA_WARPS] -= 1
    if m.cta[slot, st.CTA_WARPS] == 0:
        m.k[st.K_FINISHED] += 1
        bulk_copies.end(m, slot)
        if m.k[st.K_CHECKS]:
            cluster_order.exits(m, slot)
        wgmma.end(m, slot)
        register_limits.end(m, slot)
        if m.k[st.K_TENSOR_MEMORY]:
            tensor_memory.end(m, slot)
        _leave_cluster(m, slot - m.cta[slot, st.CTA_RANK])
    else:
        for number in range(16):
            if m.arrived[slot, number] and m.expected[slot, number] == 0:
                check_barrier(m, slot, number)


@njit
def _leave_cluster(m, first):
    """Frees the rows of `cta` from `first` on when all CTAs of the cluster there have exited: till then their shared
    memory is there."""
    slots = range(first, first + m.k[st.K_CLUSTER])
    for slot in slots:
        if m.cta[slot, st.CTA_WARPS]:
            return
    for slot in slots:
        if m.k[st.K_CHECKS]:
            vector_clocks.end(m, slot)
        m.cta[slot, st.CTA_INDEX] = -1
        for i in range(m.k[st.K_WARPS]):
            m.status[slot * m.k[st.K_WARPS] + i] = st.EMPTY
