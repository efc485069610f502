"""Loads, stores, atomics, asynchronous copies and matrix loads of one warp, compiled by numba.

Every access goes through `place`, which turns the kernel's address into one of this process or records a finding; so a
kernel's stray access never touches anything that is not its own. `c` is the address of the micro-operation, `wb` and `cb`
those of the warp's registers and the constants.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator import state as st
from fuzz.devices.emulator.clocks import strong_read, strong_write, tick
from fuzz.devices.emulator.raw import (
    bits_f32,
    bits_f64,
    copy16,
    f16_f32,
    f32_bits,
    f32_f16,
    f64_bits,
    i64,
    s8,
    s16,
    s32,
    transpose16,
    u8,
    u16,
    u32,
    w8,
    w16,
    w32,
    w64,
)
from fuzz.devices.emulator.shadow import note


@njit(inline="always")
def operand(wb, cb, offset):
    """Where an operand lies."""
    return wb + offset if offset >= 0 else cb + ~offset


@njit(inline="always")
def address(base, wide, lane, immediate):
    """A lane's address; one of 32 bits wraps around."""
    return i64(base + 8 * lane) + immediate if wide else (u32(base + 4 * lane) + immediate) & 0xFFFFFFFF


@njit
def finding(m, kind, pc, w, lane, where, size, value):
    """Records the first finding of its kind at this instruction."""
    if m.seen[pc, kind]:
        return
    m.seen[pc, kind] = 1
    n = m.k[st.K_FINDINGS]
    if n >= st.FINDINGS:
        return
    m.k[st.K_FINDINGS] = n + 1
    warps = m.k[st.K_WARPS]
    m.findings[n, st.C_KIND] = kind
    m.findings[n, st.C_PC] = pc
    m.findings[n, st.C_CTA] = m.cta[w // warps, 0]
    m.findings[n, st.C_WARP] = w % warps
    m.findings[n, st.C_LANE] = lane
    m.findings[n, st.C_ADDRESS] = where
    m.findings[n, st.C_SIZE] = size
    m.findings[n, st.C_OTHER_CTA] = -1
    m.findings[n, st.C_OTHER_WARP] = -1
    m.findings[n, st.C_OTHER_PC] = -1
    m.findings[n, st.C_VALUE] = value


@njit
def place(m, w, pc, lane, space, a, size):
    """The host address of the kernel's address `a`, or 0 after recording why there is none."""
    if space == op.GENERIC:
        window = a >> op.SHIFT
        if window == 1:
            space = op.SHARED
            a -= op.SHARED_WINDOW
        elif window == 2:
            space = op.LOCAL
            a -= op.LOCAL_WINDOW
        elif window == 3:
            space = op.PARAM
            a -= op.PARAM_WINDOW
    if a & (size - 1):
        finding(m, st.F_ALIGN, pc, w, lane, a, size, space)
    if space == op.SHARED:
        if a < 0 or a + size > m.k[st.K_SHARED_SIZE]:
            finding(m, st.F_SHARED_BOUNDS, pc, w, lane, a, size, m.k[st.K_SHARED_SIZE])
            return 0
        return m.k[st.K_SHARED] + (w // m.k[st.K_WARPS]) * m.k[st.K_SHARED_STRIDE] + a
    if space == op.PARAM:
        if a >> op.SHIFT == 3:
            a -= op.PARAM_WINDOW
        if a < 0 or a + size > m.k[st.K_PARAMS_SIZE]:
            finding(m, st.F_PARAM, pc, w, lane, a, size, m.k[st.K_PARAMS_SIZE])
            return 0
        return m.k[st.K_PARAMS] + a
    if space == op.LOCAL:
        bytes_ = m.k[st.K_LOCAL_SIZE]
        if a < 0 or a + size > bytes_:
            finding(m, st.F_BOUNDS, pc, w, lane, a, size, bytes_)
            return 0
        return m.k[st.K_LOCAL] + (w * 32 + lane) * bytes_ + a
    s = a >> op.SHIFT
    if s < op.FIRST_SEGMENT or s >= m.k[st.K_SEGMENTS]:
        finding(m, st.F_UNMAPPED, pc, w, lane, a, size, 0)
        return 0
    low = m.segments[s, st.S_LOW]
    if a < low or a + size > m.segments[s, st.S_HIGH]:
        finding(m, st.F_BOUNDS, pc, w, lane, a, size, s)
        return 0
    return a - low + m.segments[s, st.S_HOST]


@njit
def wake(m, host, size):
    """Wakes the warps that spin on memory in [host, host + size)."""
    for w in range(m.k[st.K_SLOTS] * m.k[st.K_WARPS]):
        if m.asleep[w]:
            for i in range(m.watched[w]):
                a = m.watch[w, i]
                if a < host + size and host < a + 8:
                    m.asleep[w] = 0
                    m.spin[w, 0] = 0
                    m.spin[w, 1] = 8
                    m.spin[w, 2] = -1
                    m.k[st.K_SLEEPERS] -= 1
                    if m.status[w] == st.ASLEEP:
                        m.status[w] = st.RUNNING
                    break


@njit
def remember_read(m, w, host, virtual):
    """A warp whose spin is being watched has read `host`."""
    n = m.watched[w]
    if n < 0:
        return
    for i in range(n):
        if m.watch[w, i] == host:
            return
    if n == st.WATCHED:
        m.watched[w] = -1
        return
    m.watch[w, n] = host
    m.watch_virtual[w, n] = virtual
    m.watched[w] = n + 1


@njit
def load(m, w, pc, wb, cb, c, act):
    flags = s32(c + 8)
    count = flags & 255
    size = flags >> op.SIZE & 255
    space = flags >> op.SPACE & 15
    wide = flags >> op.WIDE & 1
    signed = flags >> op.SIGNED & 1
    half = flags >> op.HALF & 1
    a64 = flags >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    watching = m.spin[w, 2] >= 0 and (space != op.PARAM)
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    strong = flags >> op.STRONG & 1
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(base, a64, lane, immediate)
        h = place(m, w, pc, lane, space, a, count * size)
        if h == 0:
            continue
        if watching:
            remember_read(m, w, h, a)
        if checking:
            note(m, w, pc, lane, space, a, count * size, 0, strong)
            if strong:
                strong_read(m, w, h, flags >> op.ACQUIRE & 1)
        for j in range(count):
            d = s32(c + 20 + 4 * j)
            if d == op.ABSENT:
                continue
            at = h + j * size
            if size == 4:
                v = s32(at) if signed else u32(at)
            elif size == 8:
                v = i64(at)
            elif size == 2:
                v = s16(at) if signed else u16(at)
            else:
                v = s8(at) if signed else u8(at)
            if wide:
                w64(wb + d + 8 * lane, v)
            elif half:
                w32(wb + d + 4 * lane, v & 0xFFFF)
            else:
                w32(wb + d + 4 * lane, v)


@njit
def store(m, w, pc, wb, cb, c, act):
    flags = s32(c + 8)
    count = flags & 255
    size = flags >> op.SIZE & 255
    space = flags >> op.SPACE & 15
    wide = flags >> op.WIDE & 1
    a64 = flags >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    m.wrote[w] = 1
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    strong = flags >> op.STRONG & 1
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(base, a64, lane, immediate)
        h = place(m, w, pc, lane, space, a, count * size)
        if h == 0:
            continue
        if checking:
            note(m, w, pc, lane, space, a, count * size, 1, strong)
            if strong:
                strong_write(m, w, h, flags >> op.RELEASE & 1, False)
        for j in range(count):
            x = operand(wb, cb, s32(c + 20 + 4 * j))
            at = h + j * size
            v = i64(x + 8 * lane) if wide else u32(x + 4 * lane)
            if size == 4:
                w32(at, v)
            elif size == 8:
                w64(at, v)
            elif size == 2:
                w16(at, v)
            else:
                w8(at, v)
        if m.k[st.K_SLEEPERS]:
            wake(m, h, count * size)
    if checking and flags >> op.RELEASE & 1:
        tick(m, w)


@njit
def _bf16(x):
    """A float rounded to a bfloat16 pattern."""
    v = f32_bits(x)
    if (v & 0x7FFFFFFF) > 0x7F800000:
        return 0x7FFF
    return (v + 0x7FFF + (v >> 16 & 1)) >> 16 & 0xFFFF


@njit
def _f16(x):
    return 0x7FFF if x != x else f32_f16(x)


@njit
def _canonical32(x):
    return 0x7FFFFFFF if x != x else f32_bits(x)


@njit
def combine(operation, kind, old, x, y):
    """The new value of a memory cell: `old` combined with x (and compared with x, replaced by y, for cas)."""
    if operation == op.CAS:
        return y if old == x else old
    if operation == op.EXCH:
        return x
    if kind == op.T_F32:
        return _canonical32(bits_f32(old) + bits_f32(x))
    if kind == op.T_F64:
        return f64_bits(bits_f64(old) + bits_f64(x))
    if kind == op.T_F16:
        return _f16(f16_f32(old) + f16_f32(x))
    if kind == op.T_BF16:
        return _bf16(bits_f32(old << 16) + bits_f32(x << 16))
    if kind == op.T_F16X2:
        return _f16(f16_f32(old) + f16_f32(x)) | _f16(f16_f32(old >> 16) + f16_f32(x >> 16)) << 16
    if kind == op.T_BF16X2:
        low = _bf16(bits_f32(old << 16) + bits_f32(x << 16))
        return low | _bf16(bits_f32(old & 0xFFFF0000) + bits_f32(x & 0xFFFF0000)) << 16
    if operation == op.ADD:
        return old + x
    if operation == op.AND:
        return old & x
    if operation == op.OR:
        return old | x
    if operation == op.XOR:
        return old ^ x
    if operation == op.INC:
        return 0 if old >= x else old + 1
    if operation == op.DEC:
        return x if old == 0 or old > x else old - 1
    if kind == op.T_S32:
        old, x = (old ^ 0x80000000) - 0x80000000, (x ^ 0x80000000) - 0x80000000
    less = old < x
    if kind == op.T_U64 and (old < 0) != (x < 0):
        less = not less
    if operation == op.MIN:
        return old if less else x
    return x if less else old


@njit
def atomic(m, w, pc, wb, cb, c, act):
    flags = s32(c + 8)
    size = flags >> op.SIZE & 255
    space = flags >> op.SPACE & 15
    wide = flags >> op.WIDE & 1
    a64 = flags >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    d = s32(c + 20)
    x = operand(wb, cb, s32(c + 24))
    third = s32(c + 28)
    what = s32(c + 32)
    operation, kind = what >> 8, what & 255
    watching = m.spin[w, 2] >= 0
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(base, a64, lane, immediate)
        h = place(m, w, pc, lane, space, a, size)
        if h == 0:
            continue
        if watching:
            remember_read(m, w, h, a)
        if checking:
            note(m, w, pc, lane, space, a, size, 2, 1)
            strong_read(m, w, h, flags >> op.ACQUIRE & 1)
            strong_write(m, w, h, flags >> op.RELEASE & 1, True)
        old = i64(h) if size == 8 else (u32(h) if size == 4 else u16(h))
        v = i64(x + 8 * lane) if wide else u32(x + 4 * lane)
        y = 0
        if third != op.ABSENT:
            z = operand(wb, cb, third)
            y = i64(z + 8 * lane) if wide else u32(z + 4 * lane)
        new = combine(operation, kind, old, v, y)
        if size == 4:
            new &= 0xFFFFFFFF
        elif size == 2:
            new &= 0xFFFF
        if new != old:
            m.wrote[w] = 1
            if size == 8:
                w64(h, new)
            elif size == 4:
                w32(h, new)
            else:
                w16(h, new)
            if m.k[st.K_SLEEPERS]:
                wake(m, h, size)
        if d != op.ABSENT:
            if wide:
                w64(wb + d + 8 * lane, old)
            else:
                w32(wb + d + 4 * lane, old)
    if checking and flags >> op.RELEASE & 1:
        tick(m, w)


@njit
def load_matrix(m, w, pc, wb, cb, c):
    """ldmatrix: lane 8 i + r gives the address of row r of matrix i; a row fills 16 bytes of the register."""
    a64 = s32(c + 8) >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    count, transposed = s32(c + 36), s32(c + 40)
    scratch = m.k[st.K_SCRATCH]
    watching = m.spin[w, 2] >= 0
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    for i in range(count):  # into scratch first: the address register may be a destination
        for r in range(8):
            lane = 8 * i + r
            a = address(base, a64, lane, immediate)
            h = place(m, w, pc, lane, op.SHARED, a, 16)
            if h:
                copy16(scratch + 128 * i + 16 * r, h)
                if checking:
                    note(m, w, pc, lane, op.SHARED, a, 16, 0, 0)
                if watching:
                    remember_read(m, w, h, a)
                    remember_read(m, w, h + 8, a + 8)
    for i in range(count):
        d = wb + s32(c + 20 + 4 * i)
        if transposed:
            transpose16(d, scratch + 128 * i)
        else:
            for r in range(8):
                copy16(d + 16 * r, scratch + 128 * i + 16 * r)


@njit
def store_matrix(m, w, pc, wb, cb, c):
    a64 = s32(c + 8) >> op.ADDRESS64 & 1
    base = operand(wb, cb, s32(c + 12))
    immediate = s32(c + 16)
    count, transposed = s32(c + 36), s32(c + 40)
    scratch = m.k[st.K_SCRATCH]
    m.wrote[w] = 1
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    for i in range(count):
        x = operand(wb, cb, s32(c + 20 + 4 * i))
        if transposed:
            transpose16(scratch, x)
        else:
            for r in range(8):
                copy16(scratch + 16 * r, x + 16 * r)
        for r in range(8):
            lane = 8 * i + r
            a = address(base, a64, lane, immediate)
            h = place(m, w, pc, lane, op.SHARED, a, 16)
            if h:
                copy16(h, scratch + 16 * r)
                if checking:
                    note(m, w, pc, lane, op.SHARED, a, 16, 1, 0)
                if m.k[st.K_SLEEPERS]:
                    wake(m, h, 16)


@njit
def copy_async(m, w, pc, wb, cb, c, act):
    """cp.async: only noted down here; the data arrives as late as PTX allows, when a wait asks for it."""
    a64 = s32(c + 8) >> op.ADDRESS64 & 1
    to = operand(wb, cb, s32(c + 12))
    to_immediate = s32(c + 16)
    source = operand(wb, cb, s32(c + 20))
    source_immediate = s32(c + 24)
    size = s32(c + 28)
    limit = s32(c + 32)
    m.wrote[w] = 1
    checking = m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED)
    for lane in range(32):
        if not act >> lane & 1:
            continue
        a = address(to, a64, lane, to_immediate)
        h = place(m, w, pc, lane, op.SHARED, a, size)
        s = i64(source + 8 * lane) + source_immediate
        n = size
        if limit != op.ABSENT:
            n = u32(operand(wb, cb, limit) + 4 * lane)
            n = size if n > size else n
        g = 0
        if n > 0:
            if s & (size - 1):
                finding(m, st.F_ALIGN, pc, w, lane, s, size, op.GLOBAL)
            g = place(m, w, pc, lane, op.GLOBAL, s, n) if n & (n - 1) == 0 else place(m, w, pc, lane, op.GLOBAL, s, 1)
            if g == 0:
                continue
        if h == 0:
            continue
        if checking:
            if n > 0:
                note(m, w, pc, lane, op.GLOBAL, s, n, 0, 0)
            note(m, w, pc, lane, op.SHARED, a, size, 1, 0)  # it may arrive at once …
        i = m.pending[w]
        if i >= st.COPIES:
            finding(m, st.F_COPIES, pc, w, lane, a, size, i)
            continue
        m.pending[w] = i + 1
        m.copies[w, i, 0] = lane
        m.copies[w, i, 1] = m.groups[w, lane]
        m.copies[w, i, 2] = h
        m.copies[w, i, 3] = g
        m.copies[w, i, 4] = size
        m.copies[w, i, 5] = n
        m.copies[w, i, 6] = a
        m.copies[w, i, 7] = pc


@njit
def commit(m, w, act):
    for lane in range(32):
        if act >> lane & 1:
            m.groups[w, lane] += 1


@njit
def complete(m, w, act, keep):
    """Makes the copies of all but the last `keep` committed groups of the lanes arrive (-1: everything issued)."""
    n = m.pending[w]
    left = 0
    for i in range(n):
        lane, group = m.copies[w, i, 0], m.copies[w, i, 1]
        due = act >> lane & 1 and (keep < 0 or group < m.groups[w, lane] - keep)
        if not due:
            if left != i:
                for j in range(8):
                    m.copies[w, left, j] = m.copies[w, i, j]
            left += 1
            continue
        to, source, size, have = m.copies[w, i, 2], m.copies[w, i, 3], m.copies[w, i, 4], m.copies[w, i, 5]
        if have == 16:
            copy16(to, source)
        else:
            for j in range(size):
                w8(to + j, u8(source + j) if j < have else 0)
        if m.k[st.K_CHECKS] & (st.CHECK_RACES | st.CHECK_UNINITIALISED):
            note(m, w, m.copies[w, i, 7], lane, op.SHARED, m.copies[w, i, 6], size, 1, 0)  # … or as late as this
        if m.k[st.K_SLEEPERS]:
            wake(m, to, size)
    m.pending[w] = left
    if left != n:
        m.wrote[w] = 1
