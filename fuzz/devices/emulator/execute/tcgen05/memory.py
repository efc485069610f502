"""tcgen05 instructions of a whole warp: alloc, dealloc, relinquish_alloc_permit, ld, st and wait. Compiled by numba.

ld and st are carried out when they are issued; what must not happen before their wait is a finding
(`sanitize/tensor_shadow.py`). A warp whose alloc finds too few free columns waits until some are freed.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import tensor_clocks, tensor_shadow
from fuzz.devices.emulator.sanitize.shadow import note
from fuzz.devices.emulator.sanitize.taint import clean, taints_of
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, finding, host_address, operand, wake
from fuzz.devices.emulator.state.intrinsics import s32, u16, u32, w16, w32, w64
from fuzz.devices.emulator.state.tensor_memory import (
    COLUMNS,
    MORE_COLUMNS,
    ROW,
    UNITS,
    WRONG_ADDRESS,
    WRONG_COLUMNS,
    host,
    pair_of,
    sm,
    usable,
)

CHECKED = st.CHECK_RACES | st.CHECK_UNINITIALISED
EVERY = 0xFFFFFFFF


@njit
def collective(m, w, pc, wb, cb, c, act, number):
    """One instruction by a warp, whose lanes are together. True when the warp must wait and come back."""
    if m.alive[w] != EVERY:
        finding(m, st.F_SYNC_MISSING, pc, w, 0, EVERY & ~m.alive[w], 0, m.alive[w])
    m.wrote[w] = 1
    if number == op.TC_LD or number == op.TC_ST:
        move(m, w, pc, wb, cb, c, number == op.TC_ST)
    elif number == op.TC_WAIT:
        wait(m, w, s32(c + 8))
    elif number == op.TC_ALLOC:
        return allocate(m, w, pc, wb, cb, c)
    elif number == op.TC_DEALLOC:
        free(m, w, pc, u32(operand(wb, cb, s32(c + 8))), u32(operand(wb, cb, s32(c + 12))))
    else:
        m.tensor_cta[w // m.k[st.K_WARPS], st.TC_RELINQUISHED] = pc + 1
    return False


# ---- columns


@njit
def allocate(m, w, pc, wb, cb, c):
    slot = w // m.k[st.K_WARPS]
    count = u32(operand(wb, cb, s32(c + 20)))
    if count < 32 or count > COLUMNS or count & (count - 1):
        finding(m, st.F_TC_ALLOC, pc, w, 0, 0, count, WRONG_COLUMNS)
        return False
    pair = s32(c + 8) & op.TC_ALLOC_PAIR and m.k[st.K_CLUSTER] > 1
    if pair:
        if _alone(m, w):
            return True
        if m.tensor_cta[slot, st.TC_GIVEN] == m.tensor_cta[slot, st.TC_ASKED]:
            return _first(m, w)
    if m.tensor_cta[slot, st.TC_RELINQUISHED]:
        finding(m, st.F_TC_RELINQUISHED, pc, w, 0, 0, count, 0)
    elif m.tensor_cta[slot, st.TC_COLUMNS] and count > m.tensor_cta[slot, st.TC_COLUMNS]:
        finding(m, st.F_TC_ALLOC, pc, w, 0, m.tensor_cta[slot, st.TC_COLUMNS], count, MORE_COLUMNS)
    units = count >> 5
    first = -1
    for start in range(0, UNITS - units + 1, units):
        free_here = True
        for unit in range(start, start + units):
            if m.columns[sm(m, w), unit, st.U_OWNER] > 0:
                free_here = False
        if free_here:
            first = start
            break
    if first < 0:
        m.status[w] = st.AT_ALLOC
        return True
    m.tensor_cta[slot, st.TC_COLUMNS] = count
    for unit in range(first, first + units):
        m.columns[sm(m, w), unit, st.U_OWNER] = 1 + m.cta[slot, st.CTA_POSITION]
        m.columns[sm(m, w), unit, st.U_FIRST] = first
        m.columns[sm(m, w), unit, st.U_UNITS] = units
        m.columns[sm(m, w), unit, st.U_WARP] = w
        m.columns[sm(m, w), unit, st.U_PC] = pc
    for lane in range(128):  # what nothing has written is no number
        at = host(m, w, lane, 32 * first)
        for i in range(0, 4 * count, 8):
            w64(at + i, -1)
    if m.k[st.K_CHECKS] & CHECKED:
        tensor_shadow.forget(m, w, 32 * first, count)
    flags = s32(c + 8)
    a = address(operand(wb, cb, s32(c + 12)), flags >> op.ADDRESS64 & 1, 0, s32(c + 16))
    h = host_address(m, w, pc, 0, flags >> op.SPACE & 15, a, 4)
    if h:
        if m.k[st.K_CHECKS] & CHECKED:
            note(m, w, pc, 0, flags >> op.SPACE & 15, a, 4, 1, 0)
        w32(h, 32 * first)
        if m.k[st.K_SLEEPERS]:
            wake(m, h, 4)
    if pair:
        m.tensor_cta[slot, st.TC_GIVEN] += 1
        retry(m, pair_of(m, slot) * m.k[st.K_WARPS])
        return _first(m, w)
    return False


@njit
def _alone(m, w):
    """True, and the warp waits, until the other CTA of its pair has come to its alloc too."""
    slot = w // m.k[st.K_WARPS]
    other = pair_of(m, slot)
    if m.tensor_cta[slot, st.TC_ASKED] == m.tensor_cta[slot, st.TC_PASSED]:
        m.tensor_cta[slot, st.TC_ASKED] += 1
        retry(m, other * m.k[st.K_WARPS])
    if m.tensor_cta[other, st.TC_ASKED] >= m.tensor_cta[slot, st.TC_ASKED]:
        return False
    m.status[w] = st.AT_ALLOC
    return True


@njit
def _first(m, w):
    """True, and the warp waits, until the other CTA of its pair has its columns too."""
    slot = w // m.k[st.K_WARPS]
    given = m.tensor_cta[slot, st.TC_GIVEN]
    if m.tensor_cta[pair_of(m, slot), st.TC_GIVEN] >= given:
        m.tensor_cta[slot, st.TC_PASSED] = given
        return False
    m.status[w] = st.AT_ALLOC
    return True


@njit
def free(m, w, pc, where, count):
    """tcgen05.dealloc; warps that wait for columns try again."""
    slot = w // m.k[st.K_WARPS]
    mine = 1 + m.cta[slot, st.CTA_POSITION]
    column = where & 0xFFFF
    unit = column >> 5
    if (
        where >> 16 or column & 31 or unit >= UNITS or m.columns[sm(m, w), unit, st.U_OWNER] != mine
        or m.columns[sm(m, w), unit, st.U_FIRST] != unit or m.columns[sm(m, w), unit, st.U_UNITS] != count >> 5
    ):  # fmt: skip
        finding(m, st.F_TC_ALLOC, pc, w, 0, where, count, WRONG_ADDRESS)
        return
    if m.k[st.K_CHECKS] & CHECKED:
        tensor_shadow.note(m, w, pc, 255, column, count, tensor_shadow.FREE)
    for i in range(unit, unit + (count >> 5)):
        m.columns[sm(m, w), i, st.U_OWNER] = -mine
    retry(m, w)


@njit
def retry(m, w):
    """Columns of the tensor memory of `w` have become free."""
    share = m.k[st.K_TENSOR_SHARE] * m.k[st.K_WARPS]
    for other in range(sm(m, w) * share, min((sm(m, w) + 1) * share, m.k[st.K_RESIDENT_CTAS] * m.k[st.K_WARPS])):
        if m.status[other] == st.AT_ALLOC:
            m.status[other] = st.RUNNING


@njit
def begin(m, slot):
    """A CTA starts."""
    m.tensor_cta[slot, st.TC_RELINQUISHED] = 0
    m.tensor_cta[slot, st.TC_COLUMNS] = 0
    for column in (st.TC_ASKED, st.TC_GIVEN, st.TC_PASSED):
        m.tensor_cta[slot, column] = 0
    for w in range(slot * m.k[st.K_WARPS], (slot + 1) * m.k[st.K_WARPS]):
        m.tensor_warp[w, st.TW_ISSUED] = 0
        m.tensor_warp[w, st.TW_PENDING] = 0
        if m.k[st.K_TENSOR_FENCES]:
            tensor_clocks.begin(m, w)


@njit
def end(m, slot):
    """A CTA has finished: has it freed all of its columns?"""
    w = slot * m.k[st.K_WARPS]
    mine = 1 + m.cta[slot, st.CTA_POSITION]
    for unit in range(UNITS):
        if m.columns[sm(m, w), unit, st.U_OWNER] == mine:
            if m.columns[sm(m, w), unit, st.U_FIRST] == unit:
                finding(
                    m, st.F_TC_LEAK, m.columns[sm(m, w), unit, st.U_PC], m.columns[sm(m, w), unit, st.U_WARP], 0,
                    32 * unit, 32 * m.columns[sm(m, w), unit, st.U_UNITS], 0,
                )  # fmt: skip
            m.columns[sm(m, w), unit, st.U_OWNER] = 0
    retry(m, w)


# ---- loads and stores


@njit(inline="always")
def place(shape, lane, i):
    """(lane of tensor memory, column), both from the base, of register `i` of a thread; 16x32bx2 apart."""
    if shape == op.TC_32X32:
        return lane, i
    if shape == op.TC_16X64:
        return (lane >> 2) + 8 * (lane & 1), 2 * i + (lane >> 1 & 1)
    if shape == op.TC_16X128:
        return (lane >> 2) + 8 * (i & 1), 4 * (i >> 1) + (lane & 3)
    if shape == op.TC_16X256:
        return (lane >> 2) + 8 * (i >> 1 & 1), 8 * (i >> 2) + 2 * (lane & 3) + (i & 1)
    return lane & 15, i


@njit
def move(m, w, pc, wb, cb, c, store):
    """tcgen05.ld and .st of one warp."""
    table, count, shape = cb + s32(c + 8), s32(c + 12), s32(c + 16)
    base = operand(wb, cb, s32(c + 20))
    split, packed = s32(c + 28), s32(c + 32)
    where = (u32(base) + s32(c + 24)) & 0xFFFFFFFF
    for lane in range(1, 32):
        if (u32(base + 4 * lane) + s32(c + 24)) & 0xFFFFFFFF != where:
            finding(m, st.F_TC_DESCRIPTOR, pc, w, lane, where, 0, u32(base + 4 * lane) + s32(c + 24))
            break
    own = 32 * (w % m.k[st.K_WARPS] & 3)
    first, column = where >> 16, where & 0xFFFF
    half = first - own
    if half != 0 and (half != 16 or shape == op.TC_32X32):
        finding(m, st.F_TC_LANES, pc, w, 0, where, 0, own)
        half = half & 16 if shape != op.TC_32X32 else 0
    wide = count << packed  # columns
    if shape == op.TC_16X128 or shape == op.TC_16X256 or shape == op.TC_16X64:
        wide = wide * 2
    ok = usable(m, w, pc, own + half, column, wide)
    if shape == op.TC_16X32X2 and ok:
        ok = usable(m, w, pc, own + half, column + split, wide)
    taints = taints_of(m, w)
    if taints and not store:
        for i in range(count):
            clean(taints, s32(table + 4 * i), EVERY)
    if not ok:
        return
    groups = (3 if shape == op.TC_32X32 else 1 << (half >> 4)) << (own >> 4)
    if m.k[st.K_CHECKS] & CHECKED:
        follow(m, w, pc, groups, column, wide, store)
        if shape == op.TC_16X32X2:
            follow(m, w, pc, groups, column + split, wide, store)
    memory = host(m, w, own + half, column)
    for i in range(count):
        register = operand(wb, cb, s32(table + 4 * i))
        for lane in range(32):
            row, at = place(shape, lane, i)
            at = at << packed
            if shape == op.TC_16X32X2 and lane >= 16:
                at += split
            h = memory + row * ROW + 4 * at
            r = register + 4 * lane
            if store:
                v = u32(r)
                if packed:
                    w32(h, v & 0xFFFF)
                    w32(h + 4, v >> 16)
                else:
                    w32(h, v)
            elif packed:
                w16(r, u16(h))
                w16(r + 2, u16(h + 4))
            else:
                w32(r, u32(h))


@njit
def follow(m, w, pc, groups, column, count, store):
    """Notes an access, and that a wait has to cover it."""
    tensor_shadow.note(m, w, pc, groups, column, count, tensor_shadow.ST if store else tensor_shadow.LD)
    i = m.tensor_warp[w, st.TW_PENDING]
    if i == st.TENSOR_ACCESSES:
        finding(m, st.F_COPIES, pc, w, 0, 0, 0, i)
        return
    m.tensor_warp[w, st.TW_PENDING] = i + 1
    m.tensor_accesses[w, i, st.TA_STORE] = store
    m.tensor_accesses[w, i, st.TA_GROUPS] = groups
    m.tensor_accesses[w, i, st.TA_COLUMN] = column
    m.tensor_accesses[w, i, st.TA_COUNT] = count
    m.tensor_accesses[w, i, st.TA_PC] = pc


@njit
def wait(m, w, store):
    """tcgen05.wait::st or ::ld: all of the warp's stores or loads are complete."""
    left = 0
    for i in range(m.tensor_warp[w, st.TW_PENDING]):
        if m.tensor_accesses[w, i, st.TA_STORE] == store:
            complete(m, w, i)
        else:
            keep(m, w, i, left)
            left += 1
    m.tensor_warp[w, st.TW_PENDING] = left


@njit
def complete(m, w, i):
    """The i-th pending access of the warp is complete."""
    tensor_shadow.complete(
        m, w, m.tensor_accesses[w, i, st.TA_GROUPS], m.tensor_accesses[w, i, st.TA_COLUMN],
        m.tensor_accesses[w, i, st.TA_COUNT], m.tensor_accesses[w, i, st.TA_STORE],
    )  # fmt: skip


@njit
def keep(m, w, i, left):
    """The i-th pending access of the warp becomes that with the number `left`."""
    for j in range(5):
        m.tensor_accesses[w, left, j] = m.tensor_accesses[w, i, j]


@njit
def loads_used(m, w, c):
    """Registers of loads are used next: these loads are complete, unless the launch wants a tcgen05.wait::ld."""
    if m.k[st.K_CHECKS] & st.CHECK_TENSOR_WAITS:
        return
    left = 0
    for i in range(m.tensor_warp[w, st.TW_PENDING]):
        used = False
        for j in range(12):
            used = used or s32(c + 8 + 4 * j) == m.tensor_accesses[w, i, st.TA_PC]
        if used and not m.tensor_accesses[w, i, st.TA_STORE]:
            complete(m, w, i)
        else:
            keep(m, w, i, left)
            left += 1
    m.tensor_warp[w, st.TW_PENDING] = left
