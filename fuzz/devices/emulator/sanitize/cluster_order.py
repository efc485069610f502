"""Order among the CTAs of a cluster: its barrier, initialised mbarriers, and CTAs that exit. Compiled by numba.

The barrier of a cluster has two vector clocks (`vector_clocks.py`): what has been released to the phase that is going
on, and what the last completed phase has brought.

`fence.mbarrier_init` makes a warp's mbarrier.init visible to the cluster, and nothing else. So such an init counts as a
write by an agent of its own (`bulk_clocks.INITS`), whose clock a relaxed arrival after that fence carries.

Shared memory ends with its CTA. An access by another CTA must be ordered before the exit: of each entity of the
cluster, the last access to a CTA's memory is remembered (K_VISITS), and looked at when the CTA exits.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import bulk_clocks, vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding
from fuzz.devices.emulator.state.intrinsics import i64, w64

VISIT = 24  # bytes: clock, pc and lane, address
WARP_ROWS, BARRIERS = vector_clocks.WARP_ROWS, 16


@njit
def _row(m, slot, completed):
    """The row of what the phase of the cluster's barrier has been told, or of what the completed one has brought."""
    resident = m.k[st.K_RESIDENT_CTAS]
    first = resident * (WARP_ROWS * m.k[st.K_WARPS] + BARRIERS) + vector_clocks.LOCATIONS
    return vector_clocks.row(m, first + 2 * (slot - m.cta[slot, st.CTA_RANK]) + completed)


@njit
def begin(m, slot):
    """A cluster starts whose first CTA is in row `slot`."""
    vector_clocks.clear(m, _row(m, slot, 0))
    vector_clocks.clear(m, _row(m, slot, 1))


@njit
def forget_visits(m, slot):
    """A cluster starts whose first CTA is in row `slot`: what was noted of the one before it in its rows goes. Where
    nothing is checked any more, after a deadlock, the row may be one that has no notes."""
    if m.k[st.K_VISITS] and m.k[st.K_CHECKS]:
        first = m.k[st.K_VISITS] + VISIT * slot * m.k[st.K_READERS]
        for i in range(m.k[st.K_CLUSTER] * m.k[st.K_READERS]):
            w64(first + VISIT * i, 0)


@njit
def arrive(m, w, relaxed):
    """barrier.cluster.arrive: a relaxed one releases what fences before it have released."""
    slot = w // m.k[st.K_WARPS]
    row = _row(m, slot, 0)
    if relaxed:
        vector_clocks.join(m, row, vector_clocks.fence_row(m, w))
        clock = m.cluster_inits[w]
        if clock:
            agent = bulk_clocks.find(m, slot, _key(w))
            bulk_clocks.learn(m, row, bulk_clocks.entity(m, slot, agent), clock)
    else:
        vector_clocks.join(m, row, vector_clocks.warp_row(m, w))
    vector_clocks.tick(m, w)


@njit
def complete(m, slot):
    """The phase of the barrier is complete."""
    vector_clocks.clear(m, _row(m, slot, 1))
    vector_clocks.join(m, _row(m, slot, 1), _row(m, slot, 0))
    vector_clocks.clear(m, _row(m, slot, 0))


@njit
def depart(m, w):
    """barrier.cluster.wait: the warp goes on."""
    vector_clocks.join(m, vector_clocks.warp_row(m, w), _row(m, w // m.k[st.K_WARPS], 1))


# ---- mbarrier.init


@njit
def _key(w):
    return 4 * w + bulk_clocks.INITS


@njit
def init(m, w, pc):
    """(number among the cluster's entities, clock) of the agent that makes the warp's mbarrier.init."""
    slot = w // m.k[st.K_WARPS]
    agent = bulk_clocks.agent(m, slot, _key(w), pc)
    clock = bulk_clocks.next_clock(m, slot, agent)
    bulk_clocks.learn_one(vector_clocks.warp_row(m, w), bulk_clocks.entity(m, slot, agent), clock)
    return bulk_clocks.in_cluster(m, slot, agent), clock


@njit
def fence_inits(m, w):
    """fence.mbarrier_init: what the warp has initialised goes with its next arrival, a relaxed one too."""
    slot = w // m.k[st.K_WARPS]
    agent = bulk_clocks.find(m, slot, _key(w))
    if agent >= 0:
        m.cluster_inits[w] = m.agents[slot, agent, st.AGENT_CLOCK]


# ---- exits


@njit
def visit(m, slot, who, clock, pc, lane, a):
    """Entity `who` of the cluster accesses the shared memory of the CTA in row `slot`, another one than its own. clock:
    below 0 the number of a warp's tcgen05.mma or .cp that must be known complete, see `tensor_clocks.py`."""
    if m.k[st.K_VISITS]:
        at = m.k[st.K_VISITS] + VISIT * (slot * m.k[st.K_READERS] + who)
        w64(at, clock)
        w64(at + 8, pc << 5 | lane)
        w64(at + 16, a)


@njit
def exits(m, slot):
    """The CTA in row `slot` exits: have the accesses of others been ordered before that?"""
    if m.k[st.K_VISITS] == 0 or not m.k[st.K_CHECKS] & st.CHECK_RACES:
        return
    entities, warps, rank = m.k[st.K_ENTITIES], m.k[st.K_WARPS], m.cta[slot, st.CTA_RANK]
    first = vector_clocks.first_of_cluster(m, slot * warps)
    for c in range(m.k[st.K_CLUSTER]):
        for local in range(warps):
            x = c * entities + local
            at = m.k[st.K_VISITS] + VISIT * (slot * m.k[st.K_READERS] + x)
            if c == rank or i64(at) == 0:
                continue
            ordered = False
            clock, beside = i64(at), 16 + 8 * (first + x)
            if clock < 0:
                clock, beside = -clock, beside + m.k[st.K_TENSOR_ROWS]
            for w in range(slot * warps, (slot + 1) * warps):
                if i64(vector_clocks.warp_row(m, w) + beside) >= clock:
                    ordered = True
            if not ordered:
                visitor = (slot - rank + c) * warps + local
                pc, lane = i64(at + 8) >> 5, i64(at + 8) & 31
                finding(m, st.F_CLUSTER_EXITED, pc, visitor, lane, i64(at + 16), 0, 0)
