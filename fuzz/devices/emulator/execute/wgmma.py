"""Hopper's products of a warpgroup, wgmma: D = A B + C with B, and mostly A, in shared memory. Compiled by numba.

A warp's share is 16 rows: its accumulators and registers of A are laid out as in mma.sync m16n8k16, block after block
of eight columns, so a product is one such step per block (`isa/mma.py`). It is carried out when it is issued. Shared
memory counts as read by the warp, through the async proxy, from then until wait_group: the warp's own rows of A (what
other warps need not have written), and all of B. For what its registers may be used in between, see
`decode/wgmma_hazards.py`.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize import lane_order, shared_lines, shared_shadow, vector_clocks
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding, host_address, operand
from fuzz.devices.emulator.state.intrinsics import (
    copy16,
    ctz,
    i64,
    mma_bf16,
    mma_f16,
    mma_f16_f16,
    s32,
    transpose16,
    u32,
    w64,
)
from fuzz.devices.emulator.state.wgmma_descriptor import bounds, row_of

EVERY = 0xFFFFFFFF
SIGNS = -0x7FFF7FFF7FFF8000  # the sign bits of four 16-bit numbers
# the scratch memory: a block before it is transposed, A (4 blocks), B (2), zeros in place of C, addresses of operands
TURNED, BLOCKS_A, BLOCKS_B, ZEROS, OPERANDS = 1024, 1152, 1664, 1920, 2432


@njit
def read_block(m, w, pc, descriptor, transposed, negated, group, half, to):
    """Copies an 8 x 8 block to `to`, row by row of M or N."""
    k = m.k
    scratch, size = k[st.K_SCRATCH] + TURNED, k[st.K_SHARED_SIZE]
    shared = k[st.K_SHARED] + w // k[st.K_WARPS] * k[st.K_SHARED_STRIDE]
    into = scratch if transposed else to
    for row in range(8):
        a = row_of(descriptor, transposed, group, half, row)  # a multiple of 16, not negative
        if op.RESERVED_SHARED <= a <= size - 16:
            copy16(into + 16 * row, shared + a)
            continue
        h = host_address(m, w, pc, row, op.SHARED, a, 16)
        if h:
            copy16(into + 16 * row, h)
        else:
            w64(into + 16 * row, 0)
            w64(into + 16 * row + 8, 0)
    if transposed:
        transpose16(to, scratch)
    if negated:
        for i in range(0, 128, 8):
            w64(to + i, i64(to + i) ^ SIGNS)


@njit
def uniform_descriptor(m, w, pc, at):
    """A descriptor, which all lanes must give alike."""
    first = i64(at)
    for lane in range(1, 32):
        if i64(at + 8 * lane) != first:
            finding(m, st.F_DESCRIPTOR, pc, w, lane, first, 0, i64(at + 8 * lane))
    return first


@njit
def note_read(m, w, pc, descriptor, transposed, first, last):
    """Notes that the warp reads groups first … last - 1 of a matrix through the async proxy."""
    size, proxy = m.k[st.K_SHARED_SIZE], vector_clocks.proxy_of(m, m.slot[w])
    of = shared_lines.lines_of(m, w)
    for group in range(first, last):
        for half in range(2):
            for row in range(8):
                a = row_of(descriptor, transposed, group, half, row)
                if op.RESERVED_SHARED <= a <= size - 16 and (
                    a & 15 or not shared_lines.read_line_async(of, proxy, a >> 4)
                ):
                    shared_shadow.note_async_read(m, w, pc, row, a, 16)


@njit
def note_reads(m, w, i):
    """Notes the reads of the product that is entry `i` of the warp's."""
    pc, flags, n = m.wgmmas[w, i, st.W_PC], m.wgmmas[w, i, st.W_FLAGS], m.wgmmas[w, i, st.W_N]
    if not flags & op.A_REGISTERS:
        own = w % m.k[st.K_WARPS] % 4 * 2
        note_read(m, w, pc, m.wgmmas[w, i, st.W_A], flags & op.A_TRANSPOSED, own, own + 2)
    note_read(m, w, pc, m.wgmmas[w, i, st.W_B], flags & op.B_TRANSPOSED, 0, n >> 3)


@njit
def compare_warps(m, w, pc, a, b):
    """The four warps of a warpgroup must issue the same products in the same order, with the same descriptors."""
    i = m.group[w, st.G_ISSUED]
    m.group[w, st.G_ISSUED] = i + 1
    m.group[w, st.G_PC] = pc
    if not m.k[st.K_CHECKS] & st.CHECK_WARPGROUP:
        return
    first = w - w % m.k[st.K_WARPS] % 4
    j = i % st.ISSUES
    if m.issues[first, j, st.I_NUMBER] == i + 1:
        if m.issues[first, j, st.I_PC] != pc or m.issues[first, j, st.I_A] != a or m.issues[first, j, st.I_B] != b:
            finding(m, st.F_WARPGROUP, pc, w, 0, 0, 0, m.issues[first, j, st.I_PC])
    elif m.issues[first, j, st.I_NUMBER] <= i:
        m.issues[first, j, st.I_NUMBER], m.issues[first, j, st.I_PC] = i + 1, pc
        m.issues[first, j, st.I_A], m.issues[first, j, st.I_B] = a, b


@njit
def issue(m, w, pc, wb, cb, c):
    """wgmma.mma_async by one warp."""
    k = m.k
    table, n, flags = cb + s32(c + 8), s32(c + 12), s32(c + 16)
    if m.alive[w] != EVERY:
        finding(m, st.F_SYNC_MISSING, pc, w, ctz(EVERY & ~m.alive[w]), EVERY & ~m.alive[w], 0, m.alive[w])
    scale = u32(wb + s32(c + 20))
    if scale != 0 and scale != EVERY:
        finding(m, st.F_DESCRIPTOR, pc, w, 0, 0, 0, scale)
    a = 0
    if not flags & op.A_REGISTERS:
        a = uniform_descriptor(m, w, pc, operand(wb, cb, s32(c + 24)))
    b = uniform_descriptor(m, w, pc, operand(wb, cb, s32(c + 28)))
    m.wrote[w] = 1
    compare_warps(m, w, pc, a, b)
    mark_registers(m, w, pc, cb, c)
    i = m.group[w, st.G_PENDING]
    if k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED):
        if i == st.WGMMAS:
            finding(m, st.F_COPIES, pc, w, 0, 0, 0, i)
            i -= 1
        m.group[w, st.G_PENDING] = i + 1
        m.wgmmas[w, i, st.W_GROUP] = m.group[w, st.G_COMMITTED]
        m.wgmmas[w, i, st.W_PC], m.wgmmas[w, i, st.W_A], m.wgmmas[w, i, st.W_B] = pc, a, b
        m.wgmmas[w, i, st.W_FLAGS], m.wgmmas[w, i, st.W_N] = flags, n
        m.wgmmas[w, i, st.W_CLOCK] = lane_order.releases(m, w)
        own = w % k[st.K_WARPS] % 4 * 2
        m.wgmmas[w, i, st.W_A_LOW], m.wgmmas[w, i, st.W_A_HIGH] = 0, 0
        if not flags & op.A_REGISTERS:
            m.wgmmas[w, i, st.W_A_LOW], m.wgmmas[w, i, st.W_A_HIGH] = bounds(a, flags & op.A_TRANSPOSED, own, own + 2)
        m.wgmmas[w, i, st.W_B_LOW], m.wgmmas[w, i, st.W_B_HIGH] = bounds(b, flags & op.B_TRANSPOSED, 0, n >> 3)
        note_reads(m, w, i)
    # ---- the product itself, eight columns at a time
    scratch = k[st.K_SCRATCH]
    places = scratch + OPERANDS
    per = 2 if flags >> op.WGMMA_KIND & 3 == 2 else 4  # registers of D to a block
    blocks_a = table + 4 * per * (n >> 3)
    for j in range(4):  # rows 0 and columns 0 of A, rows 8, columns 8, both
        at = scratch + BLOCKS_A + 128 * j
        if not flags & op.A_REGISTERS:
            group = w % k[st.K_WARPS] % 4 * 2 + (j & 1)
            read_block(m, w, pc, a, flags & op.A_TRANSPOSED, flags & op.A_NEGATED, group, j >> 1, at)
        elif flags & op.A_NEGATED:
            source = wb + s32(blocks_a + 4 * j)
            for r in range(0, 128, 8):
                w64(at + r, i64(source + r) ^ SIGNS)
        else:
            at = wb + s32(blocks_a + 4 * j)
        w64(places + 8 * (per + j), at)
    for j in range(2):
        w64(places + 8 * (per + 4 + j), scratch + BLOCKS_B + 128 * j)
    for block in range(n >> 3):
        for j in range(2):
            at = scratch + BLOCKS_B + 128 * j
            read_block(m, w, pc, b, flags & op.B_TRANSPOSED, flags & op.B_NEGATED, block, j, at)
        for j in range(per):
            d = wb + s32(table + 4 * (per * block + j))
            w64(places + 8 * j, d)
            w64(places + 8 * (per + 6 + j), d if scale else scratch + ZEROS + 128 * j)
        if flags >> op.WGMMA_KIND & 3 == 0:
            mma_bf16(places)
        elif flags >> op.WGMMA_KIND & 3 == 1:
            mma_f16(places)
        else:
            mma_f16_f16(places)


@njit
def mark_registers(m, w, pc, cb, c):
    """Marks the registers of a wgmma that some instruction might use too early: they are in flight from now on, and
    none may have been used since the last wgmma.fence."""
    if not m.k[st.K_CHECKS] & st.CHECK_WARPGROUP:
        return
    if m.group[w, st.G_FENCES] == 0:
        finding(m, st.F_NO_FENCE, pc, w, 0, 0, 0, 0)
    if s32(c + 32) == op.ABSENT:
        return
    table, count = cb + s32(c + 32), s32(c + 36)
    states = m.k[st.K_TRACKED] + 16 * w * m.k[st.K_TRACKED_REGISTERS]
    for i in range(count):
        at = states + 16 * s32(table + 4 * i)
        if i64(at + 8) == m.group[w, st.G_FENCES] + 1:
            finding(m, st.F_NO_FENCE, pc, w, 0, 0, 0, 0)
        w64(at, m.group[w, st.G_COMMITTED] + 1)


@njit
def note_register_use(m, w, pc, c, act):
    """An instruction that uses registers of products: 2 how many of them are sources, if it is a move that may carry
    their state, 3 … their numbers, -1 at the end."""
    if not m.k[st.K_CHECKS] & st.CHECK_WARPGROUP:
        return
    states = m.k[st.K_TRACKED] + 16 * w * m.k[st.K_TRACKED_REGISTERS]
    done = m.group[w, st.G_DONE]
    flying, used = 0, 0
    for i in range(s32(c + 8)):
        at = states + 16 * s32(c + 12 + 4 * i)
        flying, used = max(flying, i64(at)), max(used, i64(at + 8))
    carries = s32(c + 8) > 0 and used <= m.group[w, st.G_FENCES]
    for i in range(s32(c + 8), 13):
        if s32(c + 12 + 4 * i) >= 0 and i64(states + 16 * s32(c + 12 + 4 * i)) > done:
            carries = False
    if flying > done or carries:
        for i in range(s32(c + 8), 13):
            if s32(c + 12 + 4 * i) >= 0:
                w64(states + 16 * s32(c + 12 + 4 * i), flying)
                w64(states + 16 * s32(c + 12 + 4 * i) + 8, used)
        return
    for i in range(13):
        register = s32(c + 12 + 4 * i)
        if register < 0:
            return
        at = states + 16 * register
        if i64(at) > done:
            finding(m, st.F_IN_FLIGHT, pc, w, 0, 0, 0, act)
        w64(at + 8, m.group[w, st.G_FENCES] + 1)


@njit
def wait_group(m, w, keep):
    """wgmma.wait_group: all but the last `keep` committed groups are done. What they read, they may have read just now;
    that is noted where the warp has released something since they were issued. True when the warp must wait for its
    warpgroup's other warps, and come back."""
    until = m.group[w, st.G_COMMITTED] - keep
    if not m.k[st.K_CHECKS] & st.CHECK_PRODUCTS:
        first, last = warpgroup(m, w)
        for other in range(first, last):
            if m.group[other, st.G_COMMITTED] < until and m.status[other] != st.DONE:
                m.status[w] = st.AT_PRODUCTS
                return True
        for other in range(first, last):
            if other != w:
                _done(m, other, until)
                _follow(m, w, other)
    m.group[w, st.G_DONE] = max(m.group[w, st.G_DONE], until)
    _done(m, w, until)
    return False


@njit
def waits_for_warpgroup(m, w):
    """A product is next. True when the warp must wait until its warpgroup's other warps have executed as many
    wgmma.fence, and come back; only where its warps' products are one (without the check `wgmma_warps`)."""
    if m.k[st.K_CHECKS] & st.CHECK_PRODUCTS:
        return False
    first, last = warpgroup(m, w)
    for other in range(first, last):
        if m.group[other, st.G_FENCES] < m.group[w, st.G_FENCES] and m.status[other] != st.DONE:
            m.status[w] = st.AT_PRODUCTS
            return True
    for other in range(first, last):
        if other != w:
            _follow(m, w, other)
    return False


@njit
def _follow(m, w, other):
    """The warp is ordered after what the other one has done until now."""
    if m.k[st.K_CHECKS]:
        vector_clocks.join(m, vector_clocks.warp_row(m, w), vector_clocks.warp_row(m, other))
        vector_clocks.tick(m, other)


@njit
def _done(m, w, until):
    """Forgets the products of a warp's groups before `until`; see wait_group."""
    left = 0
    for i in range(m.group[w, st.G_PENDING]):
        if m.wgmmas[w, i, st.W_GROUP] < until:
            if m.wgmmas[w, i, st.W_CLOCK] != lane_order.releases(m, w):
                note_reads(m, w, i)
            continue
        if left != i:
            for j in range(12):
                m.wgmmas[w, left, j] = m.wgmmas[w, i, j]
        left += 1
    m.group[w, st.G_PENDING] = left


@njit
def warpgroup(m, w):
    """(first, last + 1) of the warps of the warp's warpgroup."""
    warps = m.k[st.K_WARPS]
    base = w - w % warps
    first = base + (w - base) // 4 * 4
    return first, min(first + 4, base + warps)


@njit
def wake_warpgroup(m, w):
    """The warp has committed a group, executed a fence or exited: those that wait for its products look again."""
    first, last = warpgroup(m, w)
    for other in range(first, last):
        if m.status[other] == st.AT_PRODUCTS:
            m.status[other] = st.RUNNING


@njit
def begin(m, w):
    """A warp starts."""
    for i in range(8):
        m.group[w, i] = 0
    for i in range(st.ISSUES):
        m.issues[w, i, st.I_NUMBER] = 0
    states = m.k[st.K_TRACKED] + 16 * w * m.k[st.K_TRACKED_REGISTERS]
    for i in range(2 * m.k[st.K_TRACKED_REGISTERS]):
        w64(states + 8 * i, 0)


@njit
def end(m, slot):
    """A CTA has finished: have the warps of each warpgroup issued the same number of products?"""
    if not m.k[st.K_CHECKS] & st.CHECK_WARPGROUP:
        return
    warps = m.k[st.K_WARPS]
    for first in range(0, warps, 4):
        most, who = 0, -1
        for i in range(first, min(first + 4, warps)):
            w = slot * warps + i
            if m.group[w, st.G_ISSUED] > most:
                most, who = m.group[w, st.G_ISSUED], w
        for i in range(first, first + 4):
            if who >= 0 and (i >= warps or m.group[slot * warps + i, st.G_ISSUED] < most):
                finding(m, st.F_WARPGROUP, m.group[who, st.G_PC], who, 0, i, 0, -1)
