"""The heart of the emulator, compiled by numba: runs warps until the launch finishes, deadlocks or exceeds its budget.

A spin is put to sleep until one of the addresses that it reads is written (`divergence.spins`), so it costs nothing and
a deadlock is a state in which no warp can run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from numba import njit, types

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.execute import plain, register_limits
from fuzz.devices.emulator.execute.atomics import atomic
from fuzz.devices.emulator.execute.bulk import async_stores, tensor_maps
from fuzz.devices.emulator.execute.bulk import copies as bulk_copies
from fuzz.devices.emulator.execute.bulk.cp_async import commit, complete, copy_async
from fuzz.devices.emulator.execute.chance import chance
from fuzz.devices.emulator.execute.clusters import barrier as cluster_barrier
from fuzz.devices.emulator.execute.clusters import launch as cluster_launch
from fuzz.devices.emulator.execute.cta import leave, start_cluster
from fuzz.devices.emulator.execute.divergence import (
    FAR,
    converge,
    count_trip,
    select_group,
    select_lanes,
    set_pc,
    spins,
    wake_parked,
)
from fuzz.devices.emulator.execute.load_store import load, load_matrix, store, store_matrix
from fuzz.devices.emulator.execute.mbarrier import mbarrier
from fuzz.devices.emulator.execute.printf import note_print
from fuzz.devices.emulator.execute.tcgen05.issue import issue as issue_tensor
from fuzz.devices.emulator.execute.tcgen05.memory import collective as tensor_collective
from fuzz.devices.emulator.execute.tcgen05.memory import loads_used
from fuzz.devices.emulator.execute.warp_ops import barrier, elect, match, redux, shuffle, vote
from fuzz.devices.emulator.execute.wgmma import (
    issue,
    note_register_use,
    wait_group,
    waits_for_warpgroup,
    wake_warpgroup,
)
from fuzz.devices.emulator.sanitize import lane_order, vector_clocks
from fuzz.devices.emulator.sanitize.scopes import fence
from fuzz.devices.emulator.sanitize.taint import taint, taints_of
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding, operand
from fuzz.devices.emulator.state.code_cache import cache_folder, numba_cache_in
from fuzz.devices.emulator.state.intrinsics import (
    ctz,
    i64,
    ldmatrix,
    run_translated,
    s32,
    straight_line,
    straight_line_tainted,
    u32,
    w32,
    w64,
)
from fuzz.devices.emulator.state.whole_program import compile_apart, is_cached
from oracles.reference.compiled_code import CheckedCode

EVERY = 0xFFFFFFFF


@njit
def lanes_named(wb, cb, offset, act):
    """The member mask of a .sync instruction, as its first lane gives it."""
    return u32(operand(wb, cb, offset) + 4 * ctz(act))


@njit
def wait_at(m, w, pc, lanes):
    """Running lanes of the warp sleep at pc; the others go on. False when none can."""
    set_pc(m, w, m.mask[w] & ~lanes, pc + 1)
    set_pc(m, w, lanes, pc)
    if select_lanes(m, w):
        return True
    m.status[w] = st.ASLEEP
    return False


@njit
def run_warp(m, w, quantum):
    """Runs one warp until it waits, exits or has run about `quantum` micro-operations; returns how many it ran."""
    k = m.k
    wb = k[st.K_REGISTERS] + w * k[st.K_STRIDE]
    cb = k[st.K_CONSTANTS]
    code = k[st.K_CODE]
    taints = taints_of(m, w)
    checking = k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    shared = k[st.K_SHARED] + (w // k[st.K_WARPS]) * k[st.K_SHARED_STRIDE]
    translated = k[st.K_TRANSLATED]
    executed = 0
    if m.mask[w] == 0:  # it was woken
        select_lanes(m, w)
    while True:
        pc, mask, stop = m.pc[w], m.mask[w], m.stop[w]
        plainly = not checking and m.spin[w, st.SPIN_PC] < 0  # memory is neither checked nor watched
        n = pc
        # ---- straight ahead until something is for us: what is translated, and the rest of it
        if translated and mask == EVERY:
            function = i64(translated + 8 * pc)
            if function:
                size = k[st.K_SHARED_SIZE] if plainly and not taints and not k[st.K_TRACE_SIZE] else 0
                last = pc + quantum - executed - 1 if k[st.K_POLICY] == st.RANDOM else FAR
                n = run_translated(function, wb, cb, taints, shared, size, last)
        if u32(code + 64 * n) < op.BASE:
            if taints:
                n = straight_line_tainted(code, n, stop, wb, cb, mask, taints)
            else:
                n = straight_line(code, n, stop, wb, cb, mask)
        executed += n - pc
        m.reached[pc] += 1
        pc = n
        if pc >= stop:
            m.reached[pc] -= 1
            set_pc(m, w, mask, pc)
            select_lanes(m, w)
            continue
        m.reached[pc + 1] -= 1  # the one that is for us counts too
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
                    count_trip(m, w, c)
                    if spins(m, w, pc, target):
                        if not select_lanes(m, w):
                            m.status[w] = st.ASLEEP
                            return executed
                        continue
                    if executed >= quantum:
                        return executed
                elif stop != FAR:
                    set_pc(m, w, mask, target)
                    select_lanes(m, w)
            elif act == 0:
                m.pc[w] = pc + 1
            else:
                set_pc(m, w, act, target)
                set_pc(m, w, mask & ~act, pc + 1)
                if target <= pc:  # the lanes that go round may be spinning
                    m.pc[w], m.mask[w] = target, act
                    count_trip(m, w, c)
                    if spins(m, w, pc, target):
                        pass
                if not select_lanes(m, w):
                    m.status[w] = st.ASLEEP
                    return executed
                if executed >= quantum:
                    return executed
            continue
        if number == op.EXIT:
            if act == 0:
                m.pc[w] = pc + 1
                continue
            set_pc(m, w, mask & ~act, pc + 1)
            leave(m, w, act)
            if m.status[w] >= st.DONE:
                return executed
            if not select_lanes(m, w):
                if m.asleep[w]:
                    m.status[w] = st.ASLEEP
                    return executed
                wake_parked(m, w)
            continue
        if act == 0:
            m.pc[w] = pc + 1
            continue
        if number <= op.CP_ASYNC:
            k[st.K_MEMORY] += number >= op.LOAD
        if taints:
            taint(m, w, pc, c, number, act, taints)
        if number == op.LOAD:
            if not plainly or not plain.load(m, w, wb, cb, c, act):
                load(m, w, pc, wb, cb, c, act)
        elif number == op.STORE:
            if checking or not plain.store(m, w, wb, cb, c, act):
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
                fence(m, w, s32(c + 8))
        elif number == op.PROXY_FENCE:
            if k[st.K_CHECKS]:
                vector_clocks.proxy_fence(m, w, s32(c + 8))
        elif number == op.MBARRIER:
            mbarrier(m, w, pc, wb, cb, c, act)
        elif number == op.BULK:
            bulk_copies.issue(m, w, pc, wb, cb, c, act)
        elif number == op.BULK_COMMIT:
            bulk_copies.commit(m, w, act)
        elif number == op.BULK_WAIT:
            bulk_copies.wait(m, w, act, s32(c + 8), s32(c + 12))
        elif number == op.TENSOR_MAP:
            tensor_maps.replace(m, w, pc, wb, cb, c, act)
        elif number == op.TENSOR_MAP_COPY:
            tensor_maps.publish(m, w, pc, wb, cb, c, act)
        elif number == op.REGISTER_USE:
            note_register_use(m, w, pc, c, act)
        elif number == op.TC_USED:
            loads_used(m, w, c)
        elif op.TC_MMA <= number <= op.TC_FENCE:
            issue_tensor(m, w, pc, wb, cb, c, act, number)
        elif number == op.STORE_ASYNC:
            async_stores.issue(m, w, pc, wb, cb, c, act)
        elif number == op.CLC:
            cluster_launch.try_cancel(m, w, pc, wb, cb, c, act)
        elif number == op.REGISTERS_USED:
            register_limits.use(m, w, pc, ctz(act), s32(c + 8))
        elif number == op.UNDEFINED:
            if k[st.K_CHECKS] & st.CHECK_UNINITIALISED:
                finding(m, st.F_UNDEFINED, pc, w, ctz(act), 0, 0, s32(c + 8))
        elif number == op.CLUSTER:
            if cluster_barrier.run(m, w, pc, s32(c + 8), act):
                if not wait_at(m, w, pc, act):
                    return executed
                continue
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
        elif number == op.PRINT:
            note_print(m, w, c, act)
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
                set_pc(m, w, mask & ~act, pc + 1)
                have = converge(m, w, pc, act, members)
                if have == 0:
                    if not select_lanes(m, w):
                        if m.asleep[w]:
                            m.status[w] = st.ASLEEP
                            return executed
                        wake_parked(m, w)
                    continue
                act = have
                # the gathered lanes run on together; who else is at pc + 1 joins at the next choice
                set_pc(m, w, act, pc)
                select_group(m, w, pc, act)
            if checking:
                lane_order.synced(m, w, act)
            if number < op.BASE:
                straight_line(code, pc, pc + 1, wb, cb, -1)
            elif number == op.LDMATRIX:
                wide = s32(c + 8) >> op.ADDRESS64 & 1
                if wide or not plainly or not ldmatrix(c, wb, cb, shared, k[st.K_SHARED_SIZE]):
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
            elif number >= op.TC_ALLOC:
                if tensor_collective(m, w, pc, wb, cb, c, act, number):
                    m.pc[w] = pc
                    return executed
            elif number == op.WGMMA:
                if waits_for_warpgroup(m, w):
                    m.pc[w] = pc
                    return executed
                issue(m, w, pc, wb, cb, c)
            elif number == op.WGMMA_FENCE:
                m.group[w, st.G_FENCES] += 1
                wake_warpgroup(m, w)
            elif number == op.WGMMA_COMMIT:
                m.group[w, st.G_COMMITTED] += 1
                wake_warpgroup(m, w)
            elif number == op.WGMMA_WAIT:
                if wait_group(m, w, s32(c + 8)):
                    m.pc[w] = pc
                    return executed
            elif number == op.CLUSTER_ALIGNED:
                if cluster_barrier.run(m, w, pc, s32(c + 8), act):
                    if not wait_at(m, w, pc, act):
                        return executed
                    continue
            elif number == op.REGISTERS:
                if register_limits.adjust(m, w, pc, s32(c + 8), s32(c + 12)):
                    m.pc[w] = pc
                    return executed
            elif number == op.ELECT:
                elect(wb, c, act, members & m.alive[w])
            elif number == op.WARP_BARRIER:
                if m.k[st.K_CHECKS] & st.CHECK_LANES:
                    vector_clocks.tick(m, w)
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
def record(m, w, ran):
    """One slice of the timeline: from when to when a warp ran, and what it waits for now."""
    k = m.k
    n = k[st.K_TRACE]
    k[st.K_TRACE] = n + 1
    m.trace[n, st.T_START] = k[st.K_EXECUTED]
    m.trace[n, st.T_LENGTH] = ran
    m.trace[n, st.T_POSITION] = m.cta[w // k[st.K_WARPS], 6]
    m.trace[n, st.T_WARP] = w % k[st.K_WARPS]
    m.trace[n, st.T_STATUS] = m.status[w]
    if m.status[w] == st.AT_BARRIER:
        m.trace[n, st.T_AWAITED] = m.barrier_at[w, st.AT_NUMBER]
    elif m.status[w] == st.ASLEEP and m.cluster[w, st.CL_WAITING]:
        m.trace[n, st.T_KNOWN] = st.AT_CLUSTER
    elif m.status[w] == st.ASLEEP:
        m.trace[n, st.T_AWAITED] = m.watch_virtual[w, 0]
        m.trace[n, st.T_VALUE] = s32(m.watch[w, 0])
        lane = ctz(m.asleep[w])
        place = m.wanted[m.lane_pc[w, lane]]
        if place != op.ABSENT:
            m.trace[n, st.T_KNOWN] = 1
            m.trace[n, st.T_WANTED] = s32(
                operand(k[st.K_REGISTERS] + w * k[st.K_STRIDE], k[st.K_CONSTANTS], place) + 4 * lane
            )
    m.trace[n, st.T_MEMORY] = k[st.K_MEMORY]
    k[st.K_MEMORY] = 0


@njit
def choose(m):
    """The warp that goes on next, by the launch's policy; -1 when none can."""
    k = m.k
    total = k[st.K_RESIDENT_CTAS] * k[st.K_WARPS]
    policy = k[st.K_POLICY]
    if policy == st.OLDEST_LAST:
        best, age = -1, -1
        first = k[st.K_LAST] + 1
        for j in range(total):
            w = (first + j) % total
            if m.status[w] == st.RUNNING and m.cta[w // k[st.K_WARPS], 5] > age:
                best, age = w, m.cta[w // k[st.K_WARPS], 5]
        return best
    first = k[st.K_LAST] + 1
    if policy == st.GREEDY:
        first = k[st.K_LAST] if k[st.K_LAST] >= 0 else 0
    elif policy == st.RANDOM:
        first = chance(m) % total
    for j in range(total):
        w = (first + j) % total
        if m.status[w] == st.RUNNING:
            return w
    return -1


@njit
def explore(m):
    """After a deadlock: runs CTAs that never became resident beside the others, each as far as it goes, to see whose
    writes the sleeping warps wait for. Memory is not what it was after this."""
    k = m.k
    k[st.K_CHECKS] = 0
    slot, ctas = k[st.K_RESIDENT_CTAS], k[st.K_CLUSTER]
    k[st.K_RESIDENT_CTAS] = slot + ctas
    warps = k[st.K_WARPS] * ctas
    slots = slot * k[st.K_WARPS]
    for position in range(k[st.K_NEXT], min(k[st.K_CTAS], k[st.K_NEXT] + k[st.K_EXPLORE]), ctas):
        k[st.K_WRITER] = position + 1
        start_cluster(m, slot, position)
        ran = 0
        going = True
        while going and ran < 1 << 24:
            going = False
            for w in range(slots, slots + warps):
                if m.status[w] == st.RUNNING:
                    ran += run_warp(m, w, k[st.K_QUANTUM])
                    going = True
        for w in range(slots, slots + warps):
            m.asleep[w] = 0
            m.status[w] = st.EMPTY
    k[st.K_RESIDENT_CTAS] = slot


def run(address):
    """Runs the launch whose state.Machine has this address: FINISHED, DEADLOCK (nothing can run; the state stays for
    the report), OUT_OF_BUDGET, TOO_MANY, or PAUSED, when K_PAUSE micro-operations have been run: then the next call
    goes on, with the schedule that it would have had."""
    m = st.machine(address)
    k = m.k
    if k[st.K_EXPLORE]:
        explore(m)
        return st.DEADLOCK
    total = k[st.K_CTAS]
    while True:
        if k[st.K_NEXT] < total:
            for slot in range(0, k[st.K_RESIDENT_CTAS], k[st.K_CLUSTER]):
                if m.cta[slot, st.CTA_INDEX] < 0 and k[st.K_NEXT] < total:
                    start_cluster(m, slot, k[st.K_NEXT])
                    k[st.K_NEXT] += k[st.K_CLUSTER]
        if k[st.K_FINISHED] + k[st.K_CANCELLED] >= total:
            return st.FINISHED
        w = choose(m)
        if w < 0:
            return st.DEADLOCK
        k[st.K_LAST] = w
        quantum = k[st.K_QUANTUM]
        if k[st.K_POLICY] == st.RANDOM:
            quantum = 1 << chance(m) % 12
        elif k[st.K_POLICY] == st.GREEDY:
            quantum = max(1, k[st.K_PAUSE] - k[st.K_EXECUTED])  # the same warp goes on after the pause
        quantum = min(quantum, k[st.K_BUDGET] - k[st.K_EXECUTED] + 1)
        ran = run_warp(m, w, quantum)
        if k[st.K_TRACE] < k[st.K_TRACE_SIZE]:
            record(m, w, ran)
        k[st.K_EXECUTED] += ran
        if k[st.K_EXECUTED] > k[st.K_BUDGET]:
            return st.OUT_OF_BUDGET
        if k[st.K_FINDINGS] >= st.FINDINGS:
            return st.TOO_MANY
        if k[st.K_EXECUTED] >= k[st.K_PAUSE]:
            return st.PAUSED


FOLDER = cache_folder("execute.interpreter")
with numba_cache_in(FOLDER):
    run = njit(cache=True, nogil=True)(run)


@lru_cache
def ready() -> None:
    """Compiles `run`, which takes most of a minute, or loads it from the cache folder; of processes that start together
    one compiles."""
    code = CheckedCode(FOLDER, "**/*.nb?")
    try:
        dispatcher: Any = run
        if not is_cached(dispatcher):
            compile_apart(__name__, "run")
        dispatcher.compile((types.int64,))
    finally:
        code.seal()
