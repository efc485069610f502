"""The barrier of a cluster: barrier.cluster.arrive and .wait, thread by thread. Compiled by numba.

A phase completes when every thread of the cluster that has not exited has arrived. Lanes that wait for it sleep at the
instruction, which they run again when the phase has completed.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute.divergence import select_lanes
from fuzz.devices.emulator.sanitize import cluster_order
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding
from fuzz.devices.emulator.state.intrinsics import ctz

TWICE, UNANNOUNCED = range(2)  # values of findings: arrives twice without a wait; waits without having arrived


@njit
def run(m, w, pc, kind, act):
    """One instruction by the active lanes. True when they must wait, and run it again."""
    if kind == op.CLUSTER_FENCE_INITS:
        if m.k[st.K_CHECKS]:
            cluster_order.fence_inits(m, w)
        return False
    if kind == op.CLUSTER_WAIT:
        return _wait(m, w, pc, act)
    again = act & (m.cluster[w, st.CL_ARRIVED] | m.cluster[w, st.CL_PASSED])
    if again:
        finding(m, st.F_CLUSTER_BARRIER, pc, w, ctz(again), again, 0, TWICE)
    m.wrote[w] = 1
    m.cluster[w, st.CL_ARRIVED] |= act
    m.cluster[w, st.CL_PASSED] &= ~act
    if m.k[st.K_CHECKS]:
        cluster_order.arrive(m, w, kind == op.CLUSTER_ARRIVE_RELAXED)
    check(m, w // m.k[st.K_WARPS])
    return False


@njit
def _wait(m, w, pc, act):
    arrived, passed = m.cluster[w, st.CL_ARRIVED], m.cluster[w, st.CL_PASSED]
    without = act & ~arrived & ~passed
    if without:
        finding(m, st.F_CLUSTER_BARRIER, pc, w, ctz(without), without, 0, UNANNOUNCED)
    if act & arrived:
        if m.asleep[w] == 0:
            m.k[st.K_SLEEPERS] += 1
        m.asleep[w] |= act
        m.cluster[w, st.CL_WAITING] |= act
        return True
    m.wrote[w] = 1
    m.cluster[w, st.CL_PASSED] &= ~act
    if m.k[st.K_CHECKS]:
        cluster_order.depart(m, w)
    return False


@njit
def check(m, slot):
    """Completes the phase of the cluster of row `slot` if every thread has arrived that has not exited."""
    first = (slot - m.cta[slot, st.CTA_RANK]) * m.k[st.K_WARPS]
    last = first + m.k[st.K_CLUSTER] * m.k[st.K_WARPS]
    some = False
    for w in range(first, last):
        if m.alive[w] & ~m.cluster[w, st.CL_ARRIVED]:
            return
        some = some or m.alive[w] != 0
    if not some:
        return
    if m.k[st.K_CHECKS]:
        cluster_order.complete(m, slot)
    for w in range(first, last):
        m.cluster[w, st.CL_PASSED] = m.cluster[w, st.CL_ARRIVED]
        m.cluster[w, st.CL_ARRIVED] = 0
        woken = m.cluster[w, st.CL_WAITING] & m.asleep[w]
        m.cluster[w, st.CL_WAITING] = 0
        if woken:
            m.asleep[w] &= ~woken
            if m.asleep[w] == 0:
                m.k[st.K_SLEEPERS] -= 1
            if m.status[w] == st.ASLEEP:
                select_lanes(m, w)
                m.status[w] = st.RUNNING
