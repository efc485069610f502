"""The heart of the emulator, compiled by numba: runs warps until the launch finishes, deadlocks or exceeds its budget.

Lanes that are at different places run lowest place first, so they come together again without a stack. A lane that waits
for others of its warp (.sync instructions) is parked. A group of lanes that goes round a loop with unchanged registers,
having written nothing, is put to sleep until one of the addresses that it read in between is written: a spin costs
nothing and a deadlock is a state with no warp that can run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numba
from numba import njit

from fuzz.devices.emulator import clocks, raw
from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator import state as st
from fuzz.devices.emulator.exchange import barrier, check_barrier, elect, match, redux, shuffle, vote
from fuzz.devices.emulator.raw import copy16, ctz, i64, s32, straight_line, straight_line_tainted, u32, w32, w64
from fuzz.devices.emulator.transfers import (
    atomic,
    commit,
    complete,
    copy_async,
    finding,
    load,
    load_matrix,
    operand,
    store,
    store_matrix,
)

FAR = 1 << 30  # a place after every micro-operation
EVERY = 0xFFFFFFFF


@njit
def reselect(m, w):
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
def put_down(m, w, lanes, pc):
    """Notes that `lanes` stand at pc, for `reselect`."""
    for lane in range(32):
        if lanes >> lane & 1:
            m.lane_pc[w, lane] = pc


@njit
def gather(m, w, pc, act, members):
    """The lanes of `members` that are at a .sync instruction, or 0 when the others can still come: then `act` is parked."""
    have = act
    for lane in range(32):
        if m.parked[w] >> lane & 1 and m.lane_pc[w, lane] == pc:
            have |= 1 << lane
    missing = members & m.alive[w] & ~have
    if missing:
        put_down(m, w, act, pc)
        m.parked[w] |= act
        if missing & ~m.parked[w] & ~m.asleep[w]:
            return 0
        if missing & m.asleep[w]:
            return 0
        finding(m, st.F_SYNC_MISSING, pc, w, ctz(missing), missing, 0, have)
    m.parked[w] &= ~have
    return have


@njit
def spins(m, w, pc, target):
    """At a backward branch: has this group of lanes come round with nothing changed? Then it sleeps (true).

    After eight branches without a write the registers are copied, again each time their number has doubled; a later
    branch to the same place with the same registers proves the cycle.
    """
    if m.wrote[w]:
        m.wrote[w] = 0
        m.spin[w, 0] = 0
        m.spin[w, 1] = 8
        m.spin[w, 2] = -1
        return False
    m.spin[w, 0] += 1
    size = m.k[st.K_STRIDE]
    registers = m.k[st.K_REGISTERS] + w * size
    snapshot = m.k[st.K_SNAPSHOTS] + w * size
    if m.spin[w, 2] == pc and m.spin[w, 3] == m.mask[w] and m.watched[w] >= 0:
        same = True
        for i in range(0, size, 8):
            if i64(registers + i) != i64(snapshot + i):
                same = False
                break
        if same and m.watched[w] > 0:
            put_down(m, w, m.mask[w], target)
            m.asleep[w] |= m.mask[w]
            m.k[st.K_SLEEPERS] += 1
            m.spin[w, 2] = -1
            return True
    if m.spin[w, 0] >= m.spin[w, 1]:
        m.spin[w, 1] = 2 * m.spin[w, 0]
        for i in range(0, size, 16):
            copy16(snapshot + i, registers + i)
        m.spin[w, 2] = pc
        m.spin[w, 3] = m.mask[w]
        m.watched[w] = 0
    return False


@njit
def start(m, slot, position):
    """Puts the CTA at `position` of the order of dispatch into a free slot."""
    k = m.k
    linear = m.order[position]
    m.cta[slot, 0] = linear
    x = linear % k[st.K_GRID_X]
    y = linear // k[st.K_GRID_X] % k[st.K_GRID_Y]
    z = linear // (k[st.K_GRID_X] * k[st.K_GRID_Y])
    m.cta[slot, 1], m.cta[slot, 2], m.cta[slot, 3] = x, y, z
    warps = k[st.K_WARPS]
    m.cta[slot, 4] = warps
    k[st.K_AGE] += 1
    m.cta[slot, 5] = k[st.K_AGE]
    if k[st.K_CHECKS]:
        clocks.begin(m, slot, position)
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
        m.spin[w, 2] = -1
        m.pending[w] = 0
        base = k[st.K_REGISTERS] + w * k[st.K_STRIDE]
        taints = taints_of(m, w)
        if taints:
            for j in range(0, k[st.K_STRIDE] >> 5, 4):
                w32(taints + j, 0)
        for lane in range(32):
            m.lane_pc[w, lane] = 0
            m.groups[w, lane] = 0
            t = 32 * i + lane
            for s in range(k[st.K_SPECIALS]):
                what = m.special[s, 1]
                v = 0
                if what == 0:
                    v = t % k[st.K_BLOCK_X]
                elif what == 1:
                    v = t // k[st.K_BLOCK_X] % k[st.K_BLOCK_Y]
                elif what == 2:
                    v = t // (k[st.K_BLOCK_X] * k[st.K_BLOCK_Y])
                elif what < 6:
                    v = k[st.K_BLOCK_X + (what - 3)]
                elif what < 9:
                    v = m.cta[slot, 1 + what - 6]
                elif what < 12:
                    v = k[st.K_GRID_X + what - 9]
                elif what == 12:
                    v = lane
                elif what == 13:
                    v = i
                elif what == 14:
                    v = warps
                elif what == 15:
                    v = slot
                elif what == 16:
                    v = k[st.K_SLOTS]
                elif what == 17:
                    v = k[st.K_DYNAMIC]
                elif what == 18:
                    v = k[st.K_SHARED_SIZE]
                elif what == 19:
                    v = 1
                elif what == 20:
                    v = 1 << lane
                elif what == 21:
                    v = (1 << lane + 1) - 1
                elif what == 22:
                    v = (1 << lane) - 1
                elif what == 23:
                    v = EVERY & ~((1 << lane) - 1)
                elif what == 24:
                    v = EVERY & ~((1 << lane + 1) - 1)
                if m.special[s, 2]:
                    w64(base + m.special[s, 0] + 8 * lane, v)
                else:
                    w32(base + m.special[s, 0] + 4 * lane, v)


@njit
def leave(m, w, lanes):
    """`lanes` of the warp have exited."""
    m.alive[w] &= ~lanes
    complete(m, w, lanes, -1)
    if m.alive[w]:
        return
    m.status[w] = st.DONE
    slot = w // m.k[st.K_WARPS]
    m.cta[slot, 4] -= 1
    if m.cta[slot, 4] == 0:
        m.k[st.K_FINISHED] += 1
        if m.k[st.K_CHECKS]:
            clocks.end(m, slot)
        m.cta[slot, 0] = -1
        for i in range(m.k[st.K_WARPS]):
            m.status[slot * m.k[st.K_WARPS] + i] = st.EMPTY
    else:
        for number in range(16):
            if m.arrived[slot, number] and m.expected[slot, number] == 0:
                check_barrier(m, slot, number)


@njit
def lanes_named(wb, cb, offset, act):
    """The member mask of a .sync instruction, as its first lane gives it."""
    return u32(operand(wb, cb, offset) + 4 * ctz(act))


@njit(inline="always")
def taints_of(m, w):
    return m.k[st.K_TAINTS] + w * (m.k[st.K_STRIDE] >> 5) if m.k[st.K_CHECKS] & st.CHECK_WRAPPED else 0


@njit
def taint(m, w, pc, c, number, act, taints):
    """Looks for wrapped arithmetic in global addresses; what is loaded or received is clean again."""
    if number == op.LOAD or number == op.STORE or number == op.ATOMIC:
        flags = s32(c + 8)
        space = flags >> op.SPACE & 15
        if flags >> op.ADDRESS64 & 1 and (space == op.GLOBAL or space == op.GENERIC):
            look(m, w, pc, act, taints, s32(c + 12), s32(c + 16))
        if number == op.LOAD:
            for j in range(flags & 255):
                clean(taints, s32(c + 20 + 4 * j), act)
        elif number == op.ATOMIC:
            clean(taints, s32(c + 20), act)
    elif number == op.CP_ASYNC:
        look(m, w, pc, act, taints, s32(c + 20), s32(c + 24))
    elif number == op.SHUFFLE:
        source = s32(c + 20)
        any_ = u32(taints + 4 * (source >> 7)) if source >= 0 else 0
        clean(taints, s32(c + 12), act)
        if any_:
            w32(taints + 4 * (s32(c + 12) >> 7), u32(taints + 4 * (s32(c + 12) >> 7)) | act)
    elif number == op.REDUX or number == op.VOTE or number == op.MATCH:
        clean(taints, s32(c + 12), act)
    elif number == op.LDMATRIX:
        for j in range(s32(c + 36)):
            clean(taints, s32(c + 20 + 4 * j), act)


@njit(inline="always")
def clean(taints, place, act):
    if place >= 0:
        w32(taints + 4 * (place >> 7), u32(taints + 4 * (place >> 7)) & ~act)


@njit
def look(m, w, pc, act, taints, place, immediate):
    """A finding when the address in the register at `place` came out of arithmetic that wrapped."""
    if place < 0:
        return
    bad = u32(taints + 4 * (place >> 7)) & act
    if bad:
        lane = ctz(bad)
        where = i64(m.k[st.K_REGISTERS] + w * m.k[st.K_STRIDE] + place + 8 * lane) + immediate
        finding(m, st.F_WRAPPED, pc, w, lane, where, 0, 0)


@njit
def run_warp(m, w, quantum):
    """Runs one warp until it waits, exits or has run about `quantum` micro-operations; returns how many it ran."""
    k = m.k
    wb = k[st.K_REGISTERS] + w * k[st.K_STRIDE]
    cb = k[st.K_CONSTANTS]
    code = k[st.K_CODE]
    taints = taints_of(m, w)
    executed = 0
    while True:
        pc, mask, stop = m.pc[w], m.mask[w], m.stop[w]
        # ---- straight ahead until something is for us
        if taints:
            n = straight_line_tainted(code, pc, stop, wb, cb, mask, taints)
        else:
            n = straight_line(code, pc, stop, wb, cb, mask)
        executed += n - pc
        pc = n
        if pc >= stop:
            put_down(m, w, mask, pc)
            reselect(m, w)
            continue
        c = code + 64 * pc
        number = s32(c)
        guard = s32(c + 4)
        act = mask
        if guard >= 0:
            p = u32(wb + (guard >> 1))
            act &= ~p if guard & 1 else p
        executed += 1
        if number == op.BRANCH:
            target = s32(c + 8)
            if act == mask:
                m.pc[w] = target
                if target <= pc:
                    if spins(m, w, pc, target):
                        if not reselect(m, w):
                            m.status[w] = st.ASLEEP
                            return executed
                        continue
                    if executed >= quantum:
                        return executed
                elif stop != FAR:
                    put_down(m, w, mask, target)
                    reselect(m, w)
            elif act == 0:
                m.pc[w] = pc + 1
            else:
                put_down(m, w, act, target)
                put_down(m, w, mask & ~act, pc + 1)
                if target <= pc:  # the lanes that go round may be spinning
                    m.pc[w], m.mask[w] = target, act
                    if spins(m, w, pc, target):
                        pass
                if not reselect(m, w):
                    m.status[w] = st.ASLEEP
                    return executed
                if executed >= quantum:
                    return executed
            continue
        if number == op.EXIT:
            if act == 0:
                m.pc[w] = pc + 1
                continue
            put_down(m, w, mask & ~act, pc + 1)
            leave(m, w, act)
            if m.status[w] >= st.DONE:
                return executed
            if not reselect(m, w):
                if m.asleep[w]:
                    m.status[w] = st.ASLEEP
                    return executed
                unpark(m, w)
            continue
        if act == 0:
            m.pc[w] = pc + 1
            continue
        if taints:
            taint(m, w, pc, c, number, act, taints)
        if number == op.LOAD:
            load(m, w, pc, wb, cb, c, act)
        elif number == op.STORE:
            store(m, w, pc, wb, cb, c, act)
        elif number == op.CP_ASYNC:
            copy_async(m, w, pc, wb, cb, c, act)
        elif number == op.ATOMIC:
            atomic(m, w, pc, wb, cb, c, act)
        elif number == op.CP_COMMIT:
            commit(m, w, act)
        elif number == op.CP_WAIT:
            complete(m, w, act, s32(c + 8))
        elif number == op.NOTHING:
            pass
        elif number == op.FENCE:
            if k[st.K_CHECKS]:
                clocks.fence(m, w)
        elif number == op.SLEEP:
            m.pc[w] = pc + 1
            if executed >= quantum >> 3:
                return executed
            continue
        elif number == op.CLOCK:
            now = k[st.K_EXECUTED] + executed
            for lane in range(32):
                if act >> lane & 1:
                    if s32(c + 12):
                        w64(wb + s32(c + 8) + 8 * lane, now)
                    else:
                        w32(wb + s32(c + 8) + 4 * lane, now >> 32 if s32(c + 16) else now)
        elif number == op.ACTIVE_MASK:
            for lane in range(32):
                if act >> lane & 1:
                    w32(wb + s32(c + 8) + 4 * lane, act)
        elif number == op.TRAP:
            finding(m, st.F_TRAP, pc, w, ctz(act), 0, 0, 0)
            leave(m, w, m.alive[w])
            return executed
        else:
            # ---- everything below needs the lanes that it names together
            members = EVERY
            if number == op.SHUFFLE:
                members = lanes_named(wb, cb, s32(c + 32), act)
            elif number == op.VOTE:
                members = lanes_named(wb, cb, s32(c + 24), act)
            elif number == op.REDUX:
                members = lanes_named(wb, cb, s32(c + 20), act)
            elif number == op.MATCH:
                members = lanes_named(wb, cb, s32(c + 28), act)
            elif number == op.ELECT:
                members = lanes_named(wb, cb, s32(c + 16), act)
            elif number == op.WARP_BARRIER:
                members = lanes_named(wb, cb, s32(c + 8), act)
            if members & m.alive[w] & ~act or m.parked[w]:
                put_down(m, w, mask & ~act, pc + 1)
                have = gather(m, w, pc, act, members)
                if have == 0:
                    if not reselect(m, w):
                        if m.asleep[w]:
                            m.status[w] = st.ASLEEP
                            return executed
                        unpark(m, w)
                    continue
                act = have
                # the gathered lanes run on together; who else is at pc + 1 joins at the next choice
                put_down(m, w, act, pc)
                reselect_group(m, w, pc, act)
            if number < op.BASE:
                straight_line(code, pc, pc + 1, wb, cb, -1)
            elif number == op.LDMATRIX:
                load_matrix(m, w, pc, wb, cb, c)
            elif number == op.STMATRIX:
                store_matrix(m, w, pc, wb, cb, c)
            elif number == op.SHUFFLE:
                shuffle(m, w, wb, cb, c, act)
            elif number == op.VOTE:
                vote(wb, c, act)
            elif number == op.REDUX:
                redux(wb, cb, c, act)
            elif number == op.MATCH:
                match(m, wb, cb, c, act)
            elif number == op.ELECT:
                elect(wb, c, act, members & m.alive[w])
            elif number == op.BARRIER:
                if act != m.alive[w]:
                    finding(m, st.F_BARRIER_DIVERGED, pc, w, ctz(m.alive[w] & ~act), act, 0, m.alive[w])
                m.pc[w] = pc + 1
                if barrier(m, w, pc, wb, cb, c, act):
                    return executed
                continue
        m.pc[w] = pc + 1
        if executed >= quantum and k[st.K_POLICY] == st.RANDOM:
            return executed


@njit
def reselect_group(m, w, pc, act):
    """`act` runs at pc although others may be behind or before it."""
    second = FAR
    ready = m.alive[w] & ~m.parked[w] & ~m.asleep[w] & ~act
    for lane in range(32):
        if ready >> lane & 1 and m.lane_pc[w, lane] < second:
            second = m.lane_pc[w, lane]
    m.pc[w], m.mask[w] = pc, act
    m.stop[w] = max(second, pc + 1)


@njit
def unpark(m, w):
    """No lane of the warp can run but parked ones, and they wait for each other: the lowest goes on without the rest."""
    best = FAR
    for lane in range(32):
        if m.parked[w] >> lane & 1 and m.lane_pc[w, lane] < best:
            best = m.lane_pc[w, lane]
    for lane in range(32):
        if m.parked[w] >> lane & 1 and m.lane_pc[w, lane] == best:
            m.parked[w] &= ~(1 << lane)
    reselect(m, w)


@njit
def chance(m):
    """A number from 0 to 2**31 - 1 from the launch's seed (xorshift)."""
    x = m.k[st.K_SEED]
    x ^= x << 13
    x ^= (x >> 7) & 0x1FFFFFFFFFFFFFF
    x ^= x << 17
    m.k[st.K_SEED] = x
    return (x >> 20) & 0x7FFFFFFF


@njit
def choose(m):
    """The warp that goes on next, by the launch's policy; -1 when none can."""
    k = m.k
    total = k[st.K_SLOTS] * k[st.K_WARPS]
    policy = k[st.K_POLICY]
    if policy == st.STARVE_OLDEST:
        best, age = -1, -1
        first = k[st.K_LAST] + 1
        for j in range(total):
            w = (first + j) % total
            if m.status[w] == st.RUNNING and m.cta[w // k[st.K_WARPS], 5] > age:
                best, age = w, m.cta[w // k[st.K_WARPS], 5]
        return best
    first = k[st.K_LAST] + 1
    if policy == st.ONE_FIRST:
        first = k[st.K_LAST] if k[st.K_LAST] >= 0 else 0
    elif policy == st.RANDOM:
        first = chance(m) % total
    for j in range(total):
        w = (first + j) % total
        if m.status[w] == st.RUNNING:
            return w
    return -1


def run(address):
    """Runs the launch whose state.Machine has this address: FINISHED, DEADLOCK (nothing can run; the state stays for
    the report), OUT_OF_BUDGET or TOO_MANY."""
    m = st.machine(address)
    k = m.k
    total = k[st.K_CTAS]
    while True:
        if k[st.K_NEXT] < total:
            for slot in range(k[st.K_SLOTS]):
                if m.cta[slot, 0] < 0 and k[st.K_NEXT] < total:
                    start(m, slot, k[st.K_NEXT])
                    k[st.K_NEXT] += 1
        if k[st.K_FINISHED] >= total:
            return st.FINISHED
        w = choose(m)
        if w < 0:
            return st.DEADLOCK
        k[st.K_LAST] = w
        quantum = k[st.K_QUANTUM]
        if k[st.K_POLICY] == st.RANDOM:
            quantum = 1 << chance(m) % 12
        elif k[st.K_POLICY] == st.ONE_FIRST:
            quantum = FAR
        k[st.K_EXECUTED] += run_warp(m, w, quantum)
        if k[st.K_EXECUTED] > k[st.K_BUDGET]:
            return st.OUT_OF_BUDGET
        if k[st.K_FINDINGS] >= st.FINDINGS:
            return st.TOO_MANY


@contextlib.contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    """Numba's cache knows only the file of the function that it keeps; the folder's name knows all of them."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


with _cache_in(str(raw.FOLDER)):
    run = njit(cache=True, nogil=True)(run)
