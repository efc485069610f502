"""Addresses of the kernel as addresses of this process; findings; sleeping warps and what they wait for.

Every access goes through `host_address`, so a kernel's stray access never touches anything that is not its own.
Compiled by numba.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.intrinsics import i64, u32

AFTER_FAULT = 1 << 29


@njit(inline="always")
def operand(wb, cb, offset):
    """Address of an operand."""
    return wb + offset if offset >= 0 else cb + ~offset


@njit(inline="always")
def address(base, wide, lane, immediate):
    """A lane's address; one of 32 bits wraps around."""
    return i64(base + 8 * lane) + immediate if wide else (u32(base + 4 * lane) + immediate) & 0xFFFFFFFF


@njit
def contiguous(base, wide, lane, count, size):
    """True where the registers of the `count` lanes from `lane` on hold addresses `size` bytes apart."""
    if wide:
        first = i64(base + 8 * lane)
        for j in range(1, count):  # noqa: SIM110 - numba wants a loop
            if i64(base + 8 * (lane + j)) != first + j * size:
                return False
        return True
    first = u32(base + 4 * lane)
    for j in range(1, count):  # noqa: SIM110 - numba wants a loop
        if u32(base + 4 * (lane + j)) != first + j * size:
            return False
    return True


@njit
def finding(m, kind, pc, w, lane, where, size, value, other=-1):
    """Records the first finding of its kind at this instruction; `other`: the entity (vector_clocks.py) that took part,
    or -1."""
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
    m.findings[n, st.C_CTA] = m.cta[w // warps, st.CTA_INDEX]
    m.findings[n, st.C_WARP] = w % warps
    m.findings[n, st.C_LANE] = lane
    m.findings[n, st.C_ADDRESS] = where
    m.findings[n, st.C_SIZE] = size
    m.findings[n, st.C_OTHER_CTA] = -1
    m.findings[n, st.C_OTHER_WARP] = -1
    m.findings[n, st.C_OTHER_PC] = -1
    if other >= 0:
        position, local = other // m.k[st.K_ENTITIES], other % m.k[st.K_ENTITIES]
        m.findings[n, st.C_OTHER_CTA] = m.order[position]
        m.findings[n, st.C_OTHER_WARP] = local
        slot = w // warps
        first = slot - m.cta[slot, st.CTA_RANK]
        for its in range(first, first + m.k[st.K_CLUSTER]):
            if local >= warps and m.cta[its, st.CTA_POSITION] == position:
                m.findings[n, st.C_OTHER_PC] = m.agents[its, local - warps, st.AGENT_PC]
    m.findings[n, st.C_VALUE] = value


@njit
def fault(m, kind, pc, w, lane, where, size, value):
    """Records an access that cannot be made. The launch goes on, for AFTER_FAULT micro-operations at most: what follows
    from it may be a loop without an end."""
    finding(m, kind, pc, w, lane, where, size, value)
    if not m.k[st.K_FAULTED]:
        m.k[st.K_FAULTED] = 1
        m.k[st.K_BUDGET] = min(m.k[st.K_BUDGET], m.k[st.K_EXECUTED] + AFTER_FAULT)


@njit
def owner(m, w, a):
    """Row of `cta` of the CTA whose shared memory has the address `a`, which is inside of it."""
    slot = m.slot[w]
    if a & op.CLUSTER_FLAG:
        slot += (a >> op.RANK_BIT & op.RANKS) - m.cta[slot, st.CTA_RANK]
    return slot


@njit(inline="always")
def offset(a):
    """The place of an address of shared memory in its CTA's memory."""
    return a & op.OFFSET if a & op.CLUSTER_FLAG else a


@njit
def address_in(m, w, slot, a):
    """Byte `a` of the shared memory of the CTA in row `slot`, as reports want it from warp `w`: with the rank of
    another CTA."""
    if slot == w // m.k[st.K_WARPS]:
        return a
    return a | op.CLUSTER_FLAG | m.cta[slot, st.CTA_RANK] << op.RANK_BIT


@njit
def slot_of_rank(m, w, pc, lane, space, a, size):
    """Row of `cta` of the CTA that an address with a rank means, or -1 after recording why it cannot be used."""
    slot = w // m.k[st.K_WARPS]
    mine = m.cta[slot, st.CTA_RANK]
    rank = a >> op.RANK_BIT & op.RANKS
    if rank == mine:
        return slot
    if rank >= m.k[st.K_CLUSTER]:
        fault(m, st.F_CLUSTER_RANK, pc, w, lane, a, size, rank)
        return -1
    if space == op.SHARED:
        fault(m, st.F_CLUSTER_SPACE, pc, w, lane, a, size, rank)
        return -1
    slot += rank - mine
    if m.cta[slot, st.CTA_WARPS] == 0:
        fault(m, st.F_CLUSTER_EXITED, pc, w, lane, a, size, 1)
        return -1
    return slot


@njit
def ranked_address(m, w, pc, lane, space, a, size):
    """The same as `host_address` for an address beyond the CTA's shared memory: one with a rank, or a finding."""
    slot = w // m.k[st.K_WARPS]
    if a & op.CLUSTER_FLAG and m.k[st.K_CLUSTER] > 1:
        slot = slot_of_rank(m, w, pc, lane, space, a, size)
        if slot < 0:
            return 0
        a &= ~(op.CLUSTER_FLAG | op.RANKS << op.RANK_BIT)
    if a < op.RESERVED_SHARED or a + size > m.k[st.K_SHARED_SIZE]:
        fault(m, st.F_SHARED_BOUNDS, pc, w, lane, a, size, m.k[st.K_SHARED_SIZE])
        return 0
    return m.k[st.K_SHARED] + slot * m.k[st.K_SHARED_STRIDE] + a


@njit
def own_shared(m, w):
    """(what addresses of the CTA's own shared memory begin with, its bytes, host address of the first)."""
    slot = m.slot[w]
    return m.cta[slot, st.CTA_BASE], m.k[st.K_SHARED_SIZE], m.k[st.K_SHARED] + slot * m.k[st.K_SHARED_STRIDE]


@njit
def segment_of(m, a):
    """(first address, last + 1, what to add for the host address) of the segment of a global address; nothing fits in
    the one of an address that has none."""
    s = a >> op.SHIFT
    if s < op.FIRST_SEGMENT or s >= m.k[st.K_SEGMENTS]:
        return 0, 0, 0
    low = m.segments[s, st.S_LOW]
    return low, m.segments[s, st.S_HIGH], m.segments[s, st.S_HOST] - low


@njit
def host_address(m, w, pc, lane, space, a, size):
    """The host address of the kernel's address `a`, or 0 after recording why there is none: then the access is not to
    be made, and what it reads is zero."""
    if space == op.GENERIC:
        window = a >> op.SHIFT
        if window == 1:
            space = op.SHARED_CLUSTER
            a -= op.SHARED_WINDOW
        elif window == 2:
            space = op.LOCAL
            a -= op.LOCAL_WINDOW
        elif window == 3:
            space = op.PARAM
            a -= op.PARAM_WINDOW
    if a & (size - 1):
        fault(m, st.F_ALIGN, pc, w, lane, a, size, space)
        return 0
    if space == op.SHARED or space == op.SHARED_CLUSTER:
        if a < op.RESERVED_SHARED or a + size > m.k[st.K_SHARED_SIZE]:
            return ranked_address(m, w, pc, lane, space, a, size)
        return m.k[st.K_SHARED] + m.slot[w] * m.k[st.K_SHARED_STRIDE] + a
    if space == op.PARAM:
        if a >> op.SHIFT == 3:
            a -= op.PARAM_WINDOW
        if a < 0 or a + size > m.k[st.K_PARAMS_SIZE]:
            fault(m, st.F_PARAM, pc, w, lane, a, size, m.k[st.K_PARAMS_SIZE])
            return 0
        return m.k[st.K_PARAMS] + a
    if space == op.LOCAL:
        bytes_ = m.k[st.K_LOCAL_SIZE]
        if a < 0 or a + size > bytes_:
            fault(m, st.F_BOUNDS, pc, w, lane, a, size, bytes_)
            return 0
        return m.k[st.K_LOCAL] + (w * 32 + lane) * bytes_ + a
    s = a >> op.SHIFT
    if s < op.FIRST_SEGMENT or s >= m.k[st.K_SEGMENTS]:
        fault(m, st.F_UNMAPPED, pc, w, lane, a, size, 0)
        return 0
    low = m.segments[s, st.S_LOW]
    if a < low or a + size > m.segments[s, st.S_HIGH]:
        fault(m, st.F_BOUNDS, pc, w, lane, a, size, s)
        return 0
    return a - low + m.segments[s, st.S_HOST]


@njit
def wake(m, host, size):
    """Wakes the warps that spin on memory in [host, host + size)."""
    for w in range(m.k[st.K_RESIDENT_CTAS] * m.k[st.K_WARPS]):
        if m.asleep[w]:
            for i in range(m.watched[w]):
                a = m.watch[w, i]
                if a < host + size and host < a + 8:
                    if m.k[st.K_WRITER]:  # only asking who would
                        if m.writer[w] == 0:
                            m.writer[w] = m.k[st.K_WRITER]
                        break
                    m.asleep[w] = 0
                    m.spin[w, st.SPIN_BRANCHES] = 0
                    m.spin[w, st.SPIN_COPY_AT] = 8
                    m.spin[w, st.SPIN_PC] = -1
                    m.k[st.K_SLEEPERS] -= 1
                    if m.status[w] == st.ASLEEP:
                        m.status[w] = st.RUNNING
                        m.mask[w] = 0  # who runs is chosen when it goes on: others of the warp may be parked
                    break


@njit
def value_at(host):
    """Value that is watched at a host address: the 8 or 4 bytes there, whichever it is a multiple of."""
    return i64(host) if host & 7 == 0 else u32(host & ~3)


@njit
def signalled(m, w):
    """True while a bulk copy is under way that signals an mbarrier which the warp watches: the copy arrives when the
    warp asks once more, and may have been issued since it last did."""
    slot = w // m.k[st.K_WARPS]
    for copy in range(m.cta[slot, st.CTA_BULKS]):
        barrier = m.bulk[slot, copy, st.B_BARRIER]
        for i in range(m.watched[w]):
            if barrier and m.watch[w, i] < barrier + 8 and barrier < m.watch[w, i] + 8:
                return True
    return False


@njit
def unchanged(m, w):
    """True while all that the warp has read since its spin is watched still holds: another warp may have written it."""
    for i in range(m.watched[w]):  # noqa: SIM110 - numba wants a loop
        if value_at(m.watch[w, i]) != m.watch_value[w, i]:
            return False
    return True


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
    m.watch_value[w, n] = value_at(host)
    m.watch_virtual[w, n] = virtual
    m.watched[w] = n + 1
