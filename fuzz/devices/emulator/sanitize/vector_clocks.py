"""Vector clocks of the running warps: which accesses are ordered after which. Compiled by numba.

Every warp of the grid is one entity with a clock of its own, and so is what makes bulk copies (`bulk_clocks.py`); a
warp's row holds, for each entity, how far it is ordered after it. Barriers, fences with strong accesses, and release
and acquire operations join rows, as the PTX memory model has it (a warp stands for its lanes: races between lanes of
one warp are not seen). A row is [low, high, clocks…], with nothing but zeros outside low … high, so joining costs what
is known and not the size of the grid.

Where a kernel has asynchronous accesses of shared memory (wgmma, bulk copies, tcgen05), every row has further ones
K_PROXY bytes on: how far a warp is ordered after the others with a proxy fence on the way, as such an access needs it
of an ordinary write. There is one for the shared memory of each CTA of a cluster (`proxy_of`), since
fence.proxy.async.shared::cta concerns that of its own CTA alone. Where it has bulk copies another one K_GLOBAL_PROXY
bytes on, for accesses of global memory. Where it has tcgen05 instructions, one K_TENSOR_ROWS bytes on
(`tensor_clocks.py`).

The CTAs of a cluster stand one after the other, so that their entities do too: an entity of a cluster is known by its
number there (`in_cluster`), which for a CTA on its own is the warp's.

Rows: one per resident warp; the warp's last fence; what it has read strongly since (ordered by its next fence); these
two once more for fences of scope cta (`scopes.py`); one per barrier; one per memory location that orders others; two
per cluster for its barrier (`cluster_order.py`).
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.intrinsics import i64, w64

LOCATIONS = 8192  # memory locations that can carry an order
WARP_ROWS = 5  # rows of each resident warp


@njit(inline="always")
def row(m, i):
    return m.k[st.K_ROWS] + i * m.k[st.K_ROW_SIZE]


@njit
def warp_row(m, w):
    return row(m, w)


@njit
def fence_row(m, w):
    return row(m, m.k[st.K_RESIDENT_CTAS] * m.k[st.K_WARPS] + w)


@njit
def pending_row(m, w):
    return row(m, 2 * m.k[st.K_RESIDENT_CTAS] * m.k[st.K_WARPS] + w)


@njit
def near_fence_row(m, w):
    return row(m, 3 * m.k[st.K_RESIDENT_CTAS] * m.k[st.K_WARPS] + w)


@njit
def near_pending_row(m, w):
    return row(m, 4 * m.k[st.K_RESIDENT_CTAS] * m.k[st.K_WARPS] + w)


@njit
def barrier_row(m, slot, number):
    return row(m, WARP_ROWS * m.k[st.K_RESIDENT_CTAS] * m.k[st.K_WARPS] + 16 * slot + number)


@njit
def location(m, key, add):
    """The number of a memory location that has a row; -1 where it has none, and is not to be given one, or when there
    are too many. key: its host address, or what scopes.own_key makes of it."""
    h = ((key >> 2 ^ key >> 45) * 0x9E3779B1 >> 7) & (LOCATIONS - 1)
    for _ in range(64):
        there = i64(m.k[st.K_KEYS] + 8 * h)
        if there == 0:
            if not add:
                return -1
            w64(m.k[st.K_KEYS] + 8 * h, key)
            there = key
        if there == key:
            return h
        h = (h + 1) & (LOCATIONS - 1)
    if add:
        m.k[st.K_CHECKS] &= ~st.CHECK_RACES  # the order through this location would be lost: no false alarms instead
        m.k[st.K_DROPPED] = 1
    return -1


@njit
def row_of_location(m, h):
    return row(m, m.k[st.K_RESIDENT_CTAS] * (WARP_ROWS * m.k[st.K_WARPS] + 16) + h)


@njit
def location_row(m, host, add):
    """The row of a memory location, or 0, see `location`."""
    h = location(m, host, add)
    return row_of_location(m, h) if h >= 0 else 0


@njit
def clear_one(r):
    for i in range(i64(r), i64(r + 8)):
        w64(r + 16 + 8 * i, 0)
    w64(r, 1 << 40)
    w64(r + 8, 0)


@njit(inline="always")
def proxies(m):
    """How many rows for accesses through the asynchronous proxy every row has: one per CTA of a cluster, or none."""
    return m.k[st.K_CLUSTER] if m.k[st.K_PROXY] else 0


@njit(inline="always")
def proxy_of_rank(m, rank):
    """The distance from a row to its row for asynchronous accesses of the shared memory of its cluster's CTA `rank`;
    0 where there is none."""
    return m.k[st.K_PROXY] + rank * m.k[st.K_PROXY_STEP]


@njit(inline="always")
def proxy_of(m, slot):
    """`proxy_of_rank` of the CTA in row `slot`."""
    return proxy_of_rank(m, m.cta[slot, st.CTA_RANK])


@njit
def clear(m, r):
    clear_one(r)
    for rank in range(proxies(m)):
        clear_one(r + proxy_of_rank(m, rank))
    if m.k[st.K_GLOBAL_PROXY]:
        clear_one(r + m.k[st.K_GLOBAL_PROXY])
    if m.k[st.K_TENSOR_ROWS]:
        clear_one(r + m.k[st.K_TENSOR_ROWS])


@njit
def join_one(to, source):
    low, high = i64(source), i64(source + 8)
    if high <= low:
        return
    for i in range(low, high):
        v = i64(source + 16 + 8 * i)
        if v > i64(to + 16 + 8 * i):
            w64(to + 16 + 8 * i, v)
    if i64(to + 8) <= i64(to):
        w64(to, low)
        w64(to + 8, high)
    else:
        w64(to, min(low, i64(to)))
        w64(to + 8, max(high, i64(to + 8)))


@njit
def join(m, to, source):
    """to = the later of both, entity by entity."""
    join_one(to, source)
    for rank in range(proxies(m)):
        join_one(to + proxy_of_rank(m, rank), source + proxy_of_rank(m, rank))
    if m.k[st.K_GLOBAL_PROXY]:
        join_one(to + m.k[st.K_GLOBAL_PROXY], source + m.k[st.K_GLOBAL_PROXY])
    if m.k[st.K_TENSOR_ROWS]:
        join_one(to + m.k[st.K_TENSOR_ROWS], source + m.k[st.K_TENSOR_ROWS])


@njit
def entity(m, w):
    slot = m.slot[w]
    return m.cta[slot, st.CTA_POSITION] * m.k[st.K_ENTITIES] + w - slot * m.k[st.K_WARPS]


@njit(inline="always")
def first_in(m, slot):
    """The first entity of the cluster of the CTA in row `slot`."""
    return (m.cta[slot, st.CTA_POSITION] - m.cta[slot, st.CTA_RANK]) * m.k[st.K_ENTITIES]


@njit(inline="always")
def number_in(m, slot, w):
    """The number of a warp of the CTA in row `slot` among the entities of its cluster."""
    return m.cta[slot, st.CTA_RANK] * m.k[st.K_ENTITIES] + w - slot * m.k[st.K_WARPS]


@njit(inline="always")
def first_of_cluster(m, w):
    """The first entity of the warp's cluster."""
    return first_in(m, w // m.k[st.K_WARPS])


@njit(inline="always")
def in_cluster(m, w):
    """The number of a warp among the entities of its cluster."""
    return number_in(m, w // m.k[st.K_WARPS], w)


@njit
def tick(m, w):
    """Advances the warp's own clock: what follows is not part of what it has released."""
    at = warp_row(m, w) + 16 + 8 * entity(m, w)
    w64(at, i64(at) + 1)


@njit
def own(m, w):
    """The warp's own clock."""
    return i64(warp_row(m, w) + 16 + 8 * entity(m, w))


@njit
def proxy_fence(m, w, spaces):
    """Orders the asynchronous proxy after everything that the warp is ordered after; spaces: see op.PROXY_FENCE."""
    mine = warp_row(m, w)
    if spaces & 2 and m.k[st.K_GLOBAL_PROXY]:
        join_one(mine + m.k[st.K_GLOBAL_PROXY], mine)
        if not spaces & 1:
            tick(m, w)
    if spaces & 1 and m.k[st.K_PROXY]:
        own_rank = m.cta[m.slot[w], st.CTA_RANK]
        for rank in range(proxies(m)):
            if rank == own_rank or spaces & 4:
                join_one(mine + proxy_of_rank(m, rank), mine)
        tick(m, w)


@njit
def _know_cluster(m, slot, first, r):
    """Row `r` is ordered after all that came before the cluster of the CTA in row `slot`, whose entities begin at
    `first`."""
    entities, ctas = m.k[st.K_ENTITIES], m.k[st.K_CLUSTER]
    w64(r, first)
    w64(r + 8, first + ctas * entities)
    for c in range(ctas):
        base = m.cta[slot - m.cta[slot, st.CTA_RANK] + c, st.CTA_CLOCK] + 1
        for i in range(c * entities, (c + 1) * entities):
            w64(r + 16 + 8 * (first + i), base)


@njit
def begin(m, slot, position):
    """A CTA starts: its warps know nothing of others. Its clocks go on from those of the last CTA in this row; so do
    those of the other CTAs of its cluster, which start with it."""
    warps = m.k[st.K_WARPS]
    first = (position - m.cta[slot, st.CTA_RANK]) * m.k[st.K_ENTITIES]
    for w in range(slot * warps, slot * warps + warps):
        for r in (
            warp_row(m, w), fence_row(m, w), pending_row(m, w), near_fence_row(m, w), near_pending_row(m, w)
        ):  # fmt: skip
            clear(m, r)
        _know_cluster(m, slot, first, warp_row(m, w))
        _know_cluster(m, slot, first, warp_row(m, w) + m.k[st.K_GLOBAL_PROXY])  # the same row, where it has no other
        for its in range(proxies(m)):
            _know_cluster(m, slot, first, warp_row(m, w) + proxy_of_rank(m, its))
        tick(m, w)
    for number in range(16):
        clear(m, barrier_row(m, slot, number))


@njit
def end(m, slot):
    """A CTA has finished: remembers how far its clocks went."""
    warps = m.k[st.K_WARPS]
    for w in range(slot * warps, slot * warps + warps):
        m.cta[slot, st.CTA_CLOCK] = max(m.cta[slot, st.CTA_CLOCK], i64(warp_row(m, w) + 16 + 8 * entity(m, w)))
    for i in range(m.cta[slot, st.CTA_AGENTS]):
        m.cta[slot, st.CTA_CLOCK] = max(m.cta[slot, st.CTA_CLOCK], m.agents[slot, i, st.AGENT_CLOCK])


@njit
def clock_of(m, w, other):
    """How far the warp is ordered after the entity `other`."""
    return i64(warp_row(m, w) + 16 + 8 * other)


@njit
def arrive(m, w, number):
    join(m, barrier_row(m, w // m.k[st.K_WARPS], number), warp_row(m, w))
    tick(m, w)


@njit
def depart(m, w, number):
    join(m, warp_row(m, w), barrier_row(m, w // m.k[st.K_WARPS], number))


@njit
def arrive_relaxed_at(m, w, host):
    """An arrival that releases only what a fence before it has released."""
    r = location_row(m, host, True)
    if r:
        join(m, r, fence_row(m, w))


@njit
def forget(m, host):
    """Nothing is ordered by this location any more."""
    r = location_row(m, host, False)
    if r:
        clear(m, r)


@njit
def arrive_at(m, w, host):
    """A release that adds to what the location carries."""
    r = location_row(m, host, True)
    if r:
        join(m, r, warp_row(m, w))


@njit
def hand_over(m, host, to):
    """Moves the order that one location carries to another."""
    r, s = location_row(m, host, True), location_row(m, to, True)
    if r and s:
        join(m, s, r)
        clear(m, r)


@njit
def strong_read(m, w, host, acquire):
    r = location_row(m, host, False)
    if r:
        join(m, warp_row(m, w) if acquire else pending_row(m, w), r)
