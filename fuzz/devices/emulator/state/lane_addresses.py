"""Host addresses of a warp's accesses, of all lanes at once, where every access is a plain one: aligned, in the shared
memory of the warp's CTA, in the parameters or in one segment of global memory. Compiled by numba.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import address, own_shared
from fuzz.devices.emulator.state.intrinsics import ctz, host_addresses32, host_addresses64

HOSTS = 3072  # of the scratch memory: 8 bytes for each lane


@njit
def window(m, w, space, a):
    """(lowest address, one behind the highest, what leads to the host's address) of the memory around an address of the
    kernel; nothing (0, 0, 0) where it is not memory that is taken here."""
    k = m.k
    if space == op.SHARED:
        return op.RESERVED_SHARED, k[st.K_SHARED_SIZE], k[st.K_SHARED] + (w // k[st.K_WARPS]) * k[st.K_SHARED_STRIDE]
    if space == op.GLOBAL or space == op.GENERIC:
        s = a >> op.SHIFT
        if op.FIRST_SEGMENT <= s < k[st.K_SEGMENTS]:
            low = m.segments[s, st.S_LOW]
            return low, m.segments[s, st.S_HIGH], m.segments[s, st.S_HOST] - low
    elif space == op.PARAM and a >> op.SHIFT == 0:
        return 0, k[st.K_PARAMS_SIZE], k[st.K_PARAMS]
    return 0, 0, 0


@njit
def locate(m, w, space, base, wide, immediate, size, act, to):
    """Writes the host addresses of the lanes' accesses of `size` bytes to `to`, 8 bytes each; False where one of those
    in `act` is not plain."""
    low, high, delta = window(m, w, space, address(base, wide, ctz(act), immediate))
    if wide:
        outside = host_addresses64(base, immediate, low, high - size, size - 1, delta, to)
    else:
        outside = host_addresses32(base, immediate, low, high - size, size - 1, delta, to)
    return outside & act == 0


@njit
def locate_lines(m, w, base, wide, immediate, to):
    """Writes the host addresses of the lanes' accesses of 16 bytes to `to`; returns the lanes that have none in the
    shared memory of the warp's CTA."""
    prefix, size, memory = own_shared(m, w)
    first = prefix + op.RESERVED_SHARED
    if wide:
        return host_addresses64(base, immediate, first, prefix + size - 16, 15, memory - prefix, to)
    return host_addresses32(base, immediate, first, prefix + size - 16, 15, memory - prefix, to)
