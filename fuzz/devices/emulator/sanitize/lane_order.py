"""Lanes of a warp that nothing has put in step: what one of them releases at an mbarrier. Compiled by numba.

Since Volta the lanes of a warp have no common order. An arrival by some of them carries what these lanes did, and what
the others did before the warp's last instruction that waits for its lanes (`synced`). PTX promises the order of memory
for bar.warp.sync and barriers only; here every instruction with .sync that all lanes execute counts, as kernels rely
on these too. The products of mma are an exception: they are not looked at.

A warp has one clock, so what is kept is the clock of the last such instruction, the lanes that have used shared memory
since, and those of them that did so without the others. Where one of the latter arrives, its arrival carries
everything: which accesses were its own is not known, and a false alarm would be worse.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.intrinsics import i64, w64


@njit
def begin(m, w):
    """A warp starts."""
    for i in range(6):
        m.lanes[w, i] = 0
    m.lanes[w, st.LANES_CLOCK] = vector_clocks.own(m, w)


@njit(inline="always")
def used(m, w, act, shared):
    """Lanes `act` have accessed memory. shared: in shared memory."""
    if act != m.alive[w]:
        m.lanes[w, st.LANES_ALONE] |= act
    if shared:
        later(m, w)
        m.lanes[w, st.LANES_USED] |= act
        m.lanes[w, st.LANES_ARRIVED] &= ~act


@njit
def later(m, w):
    """An access to shared memory that is later than what the warp's lanes were in step for."""
    if m.lanes[w, st.LANES_USED] == 0 and vector_clocks.own(m, w) == m.lanes[w, st.LANES_CLOCK]:
        _tick(m, w)


@njit
def _tick(m, w):
    """Advances the warp's clock for its lanes: it releases nothing."""
    vector_clocks.tick(m, w)
    m.lanes[w, st.LANES_TICKS] += 1


@njit
def synced(m, w, act):
    """Lanes `act` have waited for each other."""
    if act == m.alive[w]:
        m.lanes[w, st.LANES_USED] = 0
        m.lanes[w, st.LANES_ALONE] = 0
        m.lanes[w, st.LANES_ARRIVED] = 0
        m.lanes[w, st.LANES_CLOCK] = vector_clocks.own(m, w)
    else:
        m.lanes[w, st.LANES_ALONE] |= act
        if m.k[st.K_CHECKS] & st.CHECK_LANES:
            _tick(m, w)


@njit
def copies(m, w, act):
    """Lanes `act` have issued a cp.async."""
    m.lanes[w, st.LANES_COPIES] |= act


@njit
def copied(m, w, act):
    """The copies of lanes `act` arrive: those that have any have accessed shared memory."""
    used(m, w, m.lanes[w, st.LANES_COPIES] & act, True)


@njit
def releases(m, w):
    """A number that changes when the warp releases something, and not when its clock is advanced for its lanes."""
    return vector_clocks.own(m, w) - m.lanes[w, st.LANES_TICKS]


@njit
def arrive_at(m, w, act, host):
    """Lanes `act` arrive at the mbarrier at `host`: it carries what is ordered before that."""
    m.lanes[w, st.LANES_ARRIVED] |= act
    others = m.lanes[w, st.LANES_USED] & ~m.lanes[w, st.LANES_ARRIVED]
    if others == 0 or m.lanes[w, st.LANES_ALONE] & act:
        vector_clocks.arrive_at(m, w, host)
        return
    clock, mine = m.lanes[w, st.LANES_CLOCK], vector_clocks.warp_row(m, w) + 16 + 8 * vector_clocks.entity(m, w)
    memory = mine + m.k[st.K_GLOBAL_PROXY]  # the warp's own row, where it has none for global memory
    now, elsewhere = i64(mine), i64(memory)
    w64(mine, min(now, clock))
    w64(memory, min(elsewhere, clock))
    for rank in range(vector_clocks.proxies(m)):
        shared = mine + vector_clocks.proxy_of_rank(m, rank)
        m.lanes[w, st.LANES_FENCED + rank] = i64(shared)
        w64(shared, min(i64(shared), clock))
    vector_clocks.arrive_at(m, w, host)
    for rank in range(vector_clocks.proxies(m)):
        w64(mine + vector_clocks.proxy_of_rank(m, rank), m.lanes[w, st.LANES_FENCED + rank])
    w64(memory, elsewhere)
    w64(mine, now)
