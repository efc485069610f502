"""printf of a kernel: notes what each lane prints, in the order in which lanes come to it. `report/printed.py` makes
text of that. Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.intrinsics import i64, s32, u32


@njit
def note_print(m, w, c, act):
    """vprintf(format, arguments): the two pointers lie in the lane's local memory, the arguments too."""
    k = m.k
    size = k[st.K_LOCAL_SIZE]
    for lane in range(32):
        if not act >> lane & 1:
            continue
        n = k[st.K_PRINTED]
        k[st.K_PRINTED] = n + 1
        if n >= st.PRINTS:
            continue
        local = k[st.K_LOCAL] + (w * 32 + lane) * size
        m.printed[n, 0] = i64(local + s32(c + 8))
        at = i64(local + s32(c + 12)) - op.LOCAL_WINDOW
        for i in range(st.PRINTED_WORDS):
            from_ = at + 8 * i
            if from_ < 0 or from_ + 4 > size:
                break
            m.printed[n, 1 + i] = i64(local + from_) if from_ + 8 <= size else u32(local + from_)
