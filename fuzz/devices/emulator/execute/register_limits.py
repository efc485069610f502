"""Registers of warps: setmaxnreg moves them between a warp and the pool of its CTA. Compiled by numba.

A warp begins with as many as the kernel's directives give (`Kernel.entry_registers`); where these do not say,
setmaxnreg has no effect. Counts are of one thread. A warp that exits gives its registers back, which PTX does not
promise, so that no deadlock is reported that may be none. How many registers a warp uses is decided by ptxas: what is
seen here is an instruction that names more than the warp has.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.sanitize import vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding

WARPGROUP = 4
# values of findings: a count on the wrong side of what the warp has; an instruction that names more than it has;
# another setmaxnreg than another warp of its warpgroup; not ordered after theirs; one that another warp never executes
WRONG_SIDE, TOO_FEW, DIFFERENT, UNORDERED, ALONE = range(5)


@njit
def begin(m, slot):
    """A CTA starts: no register is free."""
    m.cta[slot, st.CTA_REGISTERS] = 0
    for w in range(slot * m.k[st.K_WARPS], (slot + 1) * m.k[st.K_WARPS]):
        for column in range(6):
            m.limits[w, column] = 0
        m.limits[w, st.LIM_NOW] = m.k[st.K_ENTRY_REGISTERS]


@njit
def use(m, w, pc, lane, count):
    """An instruction that names `count` registers of a thread is next."""
    now = m.limits[w, st.LIM_NOW]
    if now and count > now:
        finding(m, st.F_REGISTERS, pc, w, lane, now, count, TOO_FEW)


@njit
def adjust(m, w, pc, grows, wanted):
    """setmaxnreg.inc (grows) and .dec. True when the warp must wait for registers, and come back."""
    slot = w // m.k[st.K_WARPS]
    now = m.limits[w, st.LIM_NOW]
    m.wrote[w] = 1
    if now == 0:
        return False
    if not m.limits[w, st.LIM_WAITS]:
        _follow(m, w, pc, grows, wanted)
    m.limits[w, st.LIM_WAITS] = 0
    if (grows != 0 and wanted < now) or (grows == 0 and wanted > now):
        finding(m, st.F_REGISTERS, pc, w, 0, now, wanted, WRONG_SIDE)
        return False
    if grows != 0 and m.cta[slot, st.CTA_REGISTERS] < wanted - now:
        m.limits[w, st.LIM_WAITS] = 1
        m.status[w] = st.AT_REGISTERS
        return True
    m.limits[w, st.LIM_NOW] = wanted
    _give_back(m, slot, now - wanted)
    return False


@njit
def _give_back(m, slot, count):
    """The pool of the CTA in row `slot` gets `count` registers; the warps that wait for some try again."""
    m.cta[slot, st.CTA_REGISTERS] += count
    if count > 0:
        for w in range(slot * m.k[st.K_WARPS], (slot + 1) * m.k[st.K_WARPS]):
            if m.status[w] == st.AT_REGISTERS:
                m.status[w] = st.RUNNING


@njit
def _follow(m, w, pc, grows, wanted):
    """Counts a setmaxnreg of the warp, and holds it against those of its warpgroup."""
    checked = m.k[st.K_CHECKS] & st.CHECK_REGISTERS
    count, what = m.limits[w, st.LIM_COUNT], 2 * wanted + grows
    first, last = _warpgroup(m, w)
    for other in range(first, last):
        if other == w or not checked:
            continue
        if m.limits[other, st.LIM_COUNT] == count + 1 and m.limits[other, st.LIM_WHAT] != what:
            finding(m, st.F_REGISTERS, pc, w, 0, m.limits[other, st.LIM_WHAT], other - first, DIFFERENT)
        unordered = m.limits[other, st.LIM_COUNT] < count
        if count and m.k[st.K_CHECKS] & st.CHECK_RACES and m.limits[other, st.LIM_COUNT] == count:
            entity = vector_clocks.entity(m, other)
            known = vector_clocks.clock_of(m, w, entity)
            unordered = unordered or known < m.limits[other, st.LIM_CLOCK]
        if unordered:
            finding(m, st.F_REGISTERS, pc, w, 0, 0, other - first, UNORDERED)
    m.limits[w, st.LIM_COUNT] = count + 1
    m.limits[w, st.LIM_WHAT], m.limits[w, st.LIM_PC] = what, pc
    if m.k[st.K_CHECKS]:
        m.limits[w, st.LIM_CLOCK] = vector_clocks.own(m, w)
        vector_clocks.tick(m, w)


@njit
def _warpgroup(m, w):
    """(first, last + 1) of the warps of the warp's warpgroup."""
    warps = m.k[st.K_WARPS]
    base = w - w % warps
    first = base + (w - base) // WARPGROUP * WARPGROUP
    return first, min(first + WARPGROUP, base + warps)


@njit
def leave(m, w):
    """The warp has exited."""
    if m.limits[w, st.LIM_NOW]:
        _give_back(m, w // m.k[st.K_WARPS], m.limits[w, st.LIM_NOW])
        m.limits[w, st.LIM_NOW] = 0


@njit
def end(m, slot):
    """A CTA has finished: has every warp of a warpgroup executed the same number of setmaxnreg?"""
    if not m.k[st.K_CHECKS] & st.CHECK_REGISTERS:
        return
    for w in range(slot * m.k[st.K_WARPS], (slot + 1) * m.k[st.K_WARPS]):
        first, last = _warpgroup(m, w)
        for other in range(first, last):
            if m.limits[other, st.LIM_COUNT] < m.limits[w, st.LIM_COUNT]:
                finding(m, st.F_REGISTERS, m.limits[w, st.LIM_PC], w, 0, 0, other - first, ALONE)
