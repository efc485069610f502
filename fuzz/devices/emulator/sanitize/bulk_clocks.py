"""Clocks of copies that run on their own: which accesses of memory they are ordered with. Compiled by numba.

A bulk copy is an access by an agent beside the warps of its CTA. An agent has a column of its own in every vector clock
(`vector_clocks.py`), after those of the CTA's warps, and its clock counts its copies:
- copies that signal one mbarrier are one agent's: who sees a phase of it completed is ordered after their writes;
- of the copies of a warp's bulk groups, reads of shared memory are one agent's, writes of global memory another's:
  `cp.async.bulk.wait_group.read` orders after the first, `wait_group` after both.
Where a CTA has more mbarriers than agents, the last agent stands for several, and races between those are not seen.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.intrinsics import i64, w64

# keys of a warp's agents: 4 * warp + one of these; an mbarrier's key is its host address. INITS stands for a warp's
# mbarrier.init in a launch with clusters (`cluster_order.py`)
READS, WRITES, INITS = 1, 2, 3


@njit
def agent(m, slot, key, pc):
    """The number, in its CTA, of the agent with this key; the instruction at `pc` is its latest."""
    n = m.cta[slot, st.CTA_AGENTS]
    found = n
    for i in range(n):
        if m.agents[slot, i, st.AGENT_KEY] == key:
            found = i
            break
    if found == n:
        if n < st.AGENTS:
            m.cta[slot, st.CTA_AGENTS] = n + 1
            m.agents[slot, n, st.AGENT_KEY] = key
            m.agents[slot, n, st.AGENT_CLOCK] = m.cta[slot, st.CTA_CLOCK] + 1  # as the clocks of its warps began
        else:
            found = st.AGENTS - 1
    m.agents[slot, found, st.AGENT_PC] = pc
    return found


@njit
def find(m, slot, key):
    """The number of the agent with this key; -1 where there is none."""
    for i in range(m.cta[slot, st.CTA_AGENTS]):
        if m.agents[slot, i, st.AGENT_KEY] == key:
            return i
    return -1


@njit
def next_clock(m, slot, number):
    """The clock of the agent's next copy."""
    m.agents[slot, number, st.AGENT_CLOCK] += 1
    return m.agents[slot, number, st.AGENT_CLOCK]


@njit
def entity(m, slot, number):
    """The agent's column in a vector clock."""
    return m.cta[slot, st.CTA_POSITION] * m.k[st.K_ENTITIES] + m.k[st.K_WARPS] + number


@njit
def in_cluster(m, slot, number):
    """The agent's number among the entities of its cluster."""
    return m.cta[slot, st.CTA_RANK] * m.k[st.K_ENTITIES] + m.k[st.K_WARPS] + number


@njit
def learn_one(r, column, clock):
    low, high = i64(r), i64(r + 8)
    if high <= low:
        low, high = column, column + 1
    w64(r, min(low, column))
    w64(r + 8, max(high, column + 1))
    at = r + 16 + 8 * column
    if i64(at) < clock:
        w64(at, clock)


@njit
def learn(m, r, column, clock):
    """Orders the owner of row `r`, in every proxy, after the agent's copies up to `clock`."""
    learn_one(r, column, clock)
    for rank in range(vector_clocks.proxies(m)):
        learn_one(r + vector_clocks.proxy_of_rank(m, rank), column, clock)
    if m.k[st.K_GLOBAL_PROXY]:
        learn_one(r + m.k[st.K_GLOBAL_PROXY], column, clock)


@njit
def carry(m, w, host):
    """A tcgen05.commit of warp `w` arrives at the mbarrier at `host`. It releases nothing, but copies that the warp
    knows complete are: who waits for the mbarrier is ordered after them."""
    r = vector_clocks.location_row(m, host, True)
    if r == 0:
        return
    mine, entities, warps = vector_clocks.warp_row(m, w), m.k[st.K_ENTITIES], m.k[st.K_WARPS]
    for column in range(i64(mine), i64(mine + 8)):
        clock = i64(mine + 16 + 8 * column)
        if clock and column % entities >= warps:
            learn(m, r, column, clock)


@njit
def bring(m, host, column, clock):
    """A copy has completed: the mbarrier at `host` carries that to those who wait for its phase."""
    r = vector_clocks.location_row(m, host, True)
    if r:
        learn(m, r, column, clock)
