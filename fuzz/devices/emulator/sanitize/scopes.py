"""Order by fences, release, acquire and strong accesses, with their scopes. Compiled by numba.

PTX orders two threads by a release and an acquire only where the scope of each includes the other thread: `.cta` orders
threads of one CTA, `.gpu` all of them (`.cluster` and `.sys` count as `.gpu` here). So a memory location carries what
was released at it for the whole GPU, and for each CTA, what that CTA's own warps released there. A fence of scope
`.cta` takes and gives only the latter.

Locations have their rows in `vector_clocks.py`. A location's row for one CTA has a key of its own and is valid while
its stamp equals the location's version, which changes when a write ends what other CTAs have released there. Kernels
that never use the scope `.cta` need none of that (K_SCOPED is 0).
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.sanitize.vector_clocks import (
    clear,
    fence_row,
    join,
    location,
    location_row,
    near_fence_row,
    near_pending_row,
    pending_row,
    row_of_location,
    tick,
    warp_row,
)
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.intrinsics import i64, w64

CTA_KEY = 47  # a key is a host address and, from this bit on, 1 + the CTA's position modulo 2**16
# strength: strong; of a sum of floats; of scope cta; a read of it is ordered by what its warp has read strongly
STRONG, SUM, NARROW, UNFENCED = 1, 2, 4, 8


@njit(inline="always")
def strength(m, flags):
    """How strong an access is, as `shadow.note` wants it: 0 for a weak one. Volatile ones are strong by PTX, and weak
    where the launch looks at them as C++ does; strong and volatile reads then need no fence of their own."""
    if not flags >> op.STRONG & 1:
        return 0
    held = STRONG | (NARROW if flags >> op.CTA_SCOPE & 1 else 0)
    if not m.k[st.K_CHECKS] & st.CHECK_VOLATILE:
        return held
    return UNFENCED if flags >> op.VOLATILE & 1 else held | UNFENCED


@njit
def read_strongly(m, w, x, clock):
    """True where what the warp has read strongly, without a fence since, orders it after `clock` of entity x. The warp
    then goes on from there, so that it may write where it has read."""
    at = 16 + 8 * x
    if i64(pending_row(m, w) + at) < clock and i64(near_pending_row(m, w) + at) < clock:
        return False
    mine = warp_row(m, w)
    w64(mine + at, clock)
    w64(mine, min(i64(mine), x))
    w64(mine + 8, max(i64(mine + 8), x + 1))
    return True


@njit
def stamp_at(m, h):
    """Where the version of a location, or the stamp of its row for a CTA, is kept."""
    return m.k[st.K_VERSIONS] + 8 * h


@njit
def own_key(m, w, host):
    return host | ((m.cta[w // m.k[st.K_WARPS], st.CTA_POSITION] & 0xFFFF) + 1) << CTA_KEY


@njit
def fence(m, w, scope):
    """Orders what was read strongly before; strong writes that follow carry everything up to here. scope: 0 cta."""
    mine = warp_row(m, w)
    if m.k[st.K_SCOPED]:
        join(m, mine, near_pending_row(m, w))
        clear(m, near_pending_row(m, w))
    if scope:
        join(m, mine, pending_row(m, w))
        clear(m, pending_row(m, w))
        clear(m, fence_row(m, w))
        join(m, fence_row(m, w), mine)
    if m.k[st.K_SCOPED]:
        clear(m, near_fence_row(m, w))
        join(m, near_fence_row(m, w), mine)
    tick(m, w)


@njit
def strong_read(m, w, host, acquire, narrow):
    """A strong read; `narrow`: of scope cta."""
    if m.k[st.K_SCOPED]:
        h, own = location(m, host, False), location(m, own_key(m, w, host), False)
        if h >= 0 and own >= 0 and i64(stamp_at(m, own)) == i64(stamp_at(m, h)):
            join(m, warp_row(m, w) if acquire else near_pending_row(m, w), row_of_location(m, own))
    if not narrow:
        r = location_row(m, host, False)
        if r:
            join(m, warp_row(m, w) if acquire else pending_row(m, w), r)


@njit
def strong_write(m, w, host, release, keeps, narrow):
    """A strong write; `keeps` for atomics, which continue the order of what they replace. One that carries no order, as
    a relaxed add to a sum, gives its location no row: a kernel adds to thousands of them."""
    far = warp_row(m, w) if release else fence_row(m, w)
    if not m.k[st.K_SCOPED]:
        r = location_row(m, host, i64(far) < i64(far + 8))
        if r:
            if not keeps:
                clear(m, r)
            join(m, r, far)
        return
    near = warp_row(m, w) if release else near_fence_row(m, w)
    carries = i64(near) < i64(near + 8)  # what `far` holds is part of it
    h = location(m, host, carries)
    own = location(m, own_key(m, w, host), carries)
    if h < 0:
        return
    valid = own >= 0 and keeps and i64(stamp_at(m, own)) == i64(stamp_at(m, h))
    if narrow or not keeps:  # other CTAs' acquires end here
        w64(stamp_at(m, h), i64(stamp_at(m, h)) + 1)
        clear(m, row_of_location(m, h))
    if own >= 0:
        if not valid:
            clear(m, row_of_location(m, own))
        w64(stamp_at(m, own), i64(stamp_at(m, h)))
        join(m, row_of_location(m, own), near)
    if not narrow:
        join(m, row_of_location(m, h), far)
