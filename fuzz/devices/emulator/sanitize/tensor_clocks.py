"""How far each warp knows the tensor core's work to be done. Compiled by numba.

tcgen05.mma and .cp run on their own after they were issued. Every warp numbers those that it issues. Beside its row of
vector_clocks (K_TENSOR_ROWS bytes further) a warp has, for each other warp, the number of the last one that it knows is
complete: a tcgen05.commit puts the issuer's count, and what the issuer knows of others, into the mbarrier's row, and a
wait for the mbarrier takes it from there. Two more rows per warp hold what both were at its last
tcgen05.fence::after_thread_sync.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.intrinsics import i64, w64


@njit(inline="always")
def first_entity(m, w):
    """Index in a row of the first warp of the warp's cluster."""
    return vector_clocks.first_of_cluster(m, w)


@njit(inline="always")
def done(m, w, warp):
    """Number of the last operation of the cluster's warp `warp` that warp `w` knows is complete."""
    row = vector_clocks.warp_row(m, w) + m.k[st.K_TENSOR_ROWS]
    return i64(row + 16 + 8 * (first_entity(m, w) + warp))


@njit(inline="always")
def known(m, w, warp):
    """How far `w` is ordered after the cluster's warp `warp`."""
    return i64(vector_clocks.warp_row(m, w) + 16 + 8 * (first_entity(m, w) + warp))


@njit(inline="always")
def fenced_known(m, w, warp):
    """The same at the last fence::after_thread_sync."""
    row = m.k[st.K_TENSOR_FENCES] + 2 * w * m.k[st.K_ROW_SIZE]
    return i64(row + 16 + 8 * (first_entity(m, w) + warp))


@njit(inline="always")
def fenced_done(m, w, warp):
    row = m.k[st.K_TENSOR_FENCES] + (2 * w + 1) * m.k[st.K_ROW_SIZE]
    return i64(row + 16 + 8 * (first_entity(m, w) + warp))


@njit
def fence_after(m, w):
    """tcgen05.fence::after_thread_sync."""
    row = m.k[st.K_TENSOR_FENCES] + 2 * w * m.k[st.K_ROW_SIZE]
    vector_clocks.join_one(row, vector_clocks.warp_row(m, w))
    vector_clocks.join_one(row + m.k[st.K_ROW_SIZE], vector_clocks.warp_row(m, w) + m.k[st.K_TENSOR_ROWS])


@njit
def begin(m, w):
    """A warp starts: no fence yet."""
    row = m.k[st.K_TENSOR_FENCES] + 2 * w * m.k[st.K_ROW_SIZE]
    vector_clocks.clear_one(row)
    vector_clocks.clear_one(row + m.k[st.K_ROW_SIZE])


@njit
def commit(m, w, host):
    """The operations that warp `w` has issued are complete for those who wait for the mbarrier at `host`; so are those
    of others whose completion it has waited for.

    What the operations may have read through the asynchronous proxy comes before them, so before who waits: the waiter
    is ordered after all that the warp's asynchronous accesses are ordered after, with a proxy fence on the way. An
    ordinary access without one is not among it.
    """
    row = vector_clocks.location_row(m, host, True)
    if row == 0:
        return
    mine = vector_clocks.warp_row(m, w)
    for rank in range(vector_clocks.proxies(m)):
        proxy = vector_clocks.proxy_of_rank(m, rank)
        vector_clocks.join_one(row, mine + proxy)
        vector_clocks.join_one(row + proxy, mine + proxy)
    row += m.k[st.K_TENSOR_ROWS]
    vector_clocks.join_one(row, mine + m.k[st.K_TENSOR_ROWS])
    entity = vector_clocks.entity(m, w)
    low, high = i64(row), i64(row + 8)
    if high <= low:
        low, high = entity, entity + 1
    w64(row, min(low, entity))
    w64(row + 8, max(high, entity + 1))
    at = row + 16 + 8 * entity
    w64(at, max(i64(at), m.tensor_warp[w, st.TW_ISSUED]))
