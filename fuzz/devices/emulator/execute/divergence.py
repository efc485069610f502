"""Chooses the lanes of a warp that run: divergence, waits for each other, sleep in a spin. Compiled by numba.

Lanes at different places run lowest place first. Lanes at a .sync instruction whose members are not all there are
parked. Lanes that come round a loop with the same registers, having written nothing, sleep.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding, signalled, unchanged
from fuzz.devices.emulator.state.intrinsics import copy16, ctz, i64, s32, w64

FAR = 1 << 30  # a place after every micro-operation


@njit
def select_lanes(m, w):
    """Chooses the lanes that run: the lowest place among those that can. False when none can."""
    ready = m.alive[w] & ~m.parked[w] & ~m.asleep[w]
    if ready == 0:
        return False
    best, second, chosen = FAR, FAR, 0
    for lane in range(32):
        if ready >> lane & 1:
            p = m.lane_pc[w, lane]
            if p < best:
                second = best
                best = p
                chosen = 1 << lane
            elif p == best:
                chosen |= 1 << lane
            elif p < second:
                second = p
    m.pc[w] = best
    m.mask[w] = chosen
    m.stop[w] = second
    return True


@njit
def set_pc(m, w, lanes, pc):
    """Notes that `lanes` stand at pc, for `select_lanes`."""
    for lane in range(32):
        if lanes >> lane & 1:
            m.lane_pc[w, lane] = pc


@njit
def converge(m, w, pc, act, members):
    """The lanes of `members` that are at a .sync instruction, or 0 when the others can still come: then `act` is
    parked.
    """
    have = act
    for lane in range(32):
        if m.parked[w] >> lane & 1 and m.lane_pc[w, lane] == pc:
            have |= 1 << lane
    missing = members & m.alive[w] & ~have
    if missing:
        set_pc(m, w, act, pc)
        m.parked[w] |= act
        if missing & ~m.parked[w] & ~m.asleep[w]:
            return 0
        if missing & m.asleep[w]:
            return 0
        finding(m, st.F_SYNC_MISSING, pc, w, ctz(missing), missing, 0, have)
    m.parked[w] &= ~have
    return have


@njit
def count_trip(m, w, c):
    """Counts a trip of the loop whose backward branch is at `c`; the loops inside of it begin anew."""
    trips = m.k[st.K_TRIPS] + 8 * w * m.k[st.K_LOOPS]
    number = s32(c + 12)
    for inside in range(s32(c + 16), number):
        w64(trips + 8 * inside, 0)
    w64(trips + 8 * number, i64(trips + 8 * number) + 1)


@njit
def spins(m, w, pc, target):
    """At a backward branch: has this group of lanes come round with nothing changed? Then it sleeps (true).

    After eight branches without a write the registers are copied, again each time their number has doubled; a later
    branch to the same place with the same registers proves the cycle.
    """
    if m.wrote[w]:
        m.wrote[w] = 0
        m.spin[w, st.SPIN_BRANCHES] = 0
        m.spin[w, st.SPIN_COPY_AT] = 8
        m.spin[w, st.SPIN_PC] = -1
        return False
    m.spin[w, st.SPIN_BRANCHES] += 1
    size = m.k[st.K_STRIDE]
    registers = m.k[st.K_REGISTERS] + w * size
    snapshot = m.k[st.K_SNAPSHOTS] + w * size
    if m.spin[w, st.SPIN_PC] == pc and m.spin[w, st.SPIN_MASK] == m.mask[w] and m.watched[w] >= 0:
        same = True
        for i in range(0, size, 8):
            if i64(registers + i) != i64(snapshot + i):
                same = False
                break
        if same and m.watched[w] > 0 and unchanged(m, w) and not signalled(m, w):
            set_pc(m, w, m.mask[w], target)
            m.asleep[w] |= m.mask[w]
            m.k[st.K_SLEEPERS] += 1
            m.spin[w, st.SPIN_PC] = -1
            return True
    if m.spin[w, st.SPIN_BRANCHES] >= m.spin[w, st.SPIN_COPY_AT]:
        m.spin[w, st.SPIN_COPY_AT] = 2 * m.spin[w, st.SPIN_BRANCHES]
        for i in range(0, size, 16):
            copy16(snapshot + i, registers + i)
        m.spin[w, st.SPIN_PC] = pc
        m.spin[w, st.SPIN_MASK] = m.mask[w]
        m.watched[w] = 0
    return False


@njit
def select_group(m, w, pc, act):
    """`act` runs at pc although others may be behind or before it."""
    second = FAR
    ready = m.alive[w] & ~m.parked[w] & ~m.asleep[w] & ~act
    for lane in range(32):
        if ready >> lane & 1 and m.lane_pc[w, lane] < second:
            second = m.lane_pc[w, lane]
    m.pc[w], m.mask[w] = pc, act
    m.stop[w] = max(second, pc + 1)


@njit
def wake_parked(m, w):
    """Lets the lowest parked lanes go on without the rest, where only parked lanes are left and wait for each
    other.
    """
    best = FAR
    for lane in range(32):
        if m.parked[w] >> lane & 1 and m.lane_pc[w, lane] < best:
            best = m.lane_pc[w, lane]
    for lane in range(32):
        if m.parked[w] >> lane & 1 and m.lane_pc[w, lane] == best:
            m.parked[w] &= ~(1 << lane)
    select_lanes(m, w)
