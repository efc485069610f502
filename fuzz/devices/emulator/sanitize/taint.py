"""Follows 32-bit arithmetic that wrapped until it becomes an address. Compiled by numba.

The straight-line part (`isa/straight_line.py`) sets and passes on the taints of registers; here they meet memory and
exchanges.
"""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator import opcodes as op
from fuzz.devices.emulator.state import tables as st
from fuzz.devices.emulator.state.addressing import finding
from fuzz.devices.emulator.state.intrinsics import ctz, i64, s32, u32, w32


@njit(inline="always")
def taints_of(m, w):
    return m.k[st.K_TAINTS] + w * (m.k[st.K_STRIDE] >> 5) if m.k[st.K_CHECKS] & st.CHECK_WRAPPED else 0


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
