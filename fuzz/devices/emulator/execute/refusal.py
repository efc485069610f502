"""Refusals of PTX that is not emulated, where that shows only while a kernel runs. Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.state import tables as st


@njit
def refuse(m, pc, why, value):
    """The launch is to end with Unimplemented. why: 0 for a descriptor (value), or tm.NO_…."""
    if m.k[st.K_REFUSED] == 0:
        m.k[st.K_REFUSED] = pc + 1
        m.k[st.K_REFUSED_WHY], m.k[st.K_REFUSED_VALUE] = why, value
