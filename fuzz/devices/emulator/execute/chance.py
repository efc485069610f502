"""Pseudo-random numbers of a launch. Compiled by numba."""

from __future__ import annotations

from numba import njit

from fuzz.devices.emulator.state import tables as st


@njit
def chance(m):
    """A number from 0 to 2**31 - 1 from the launch's seed (xorshift)."""
    x = m.k[st.K_SEED]
    x ^= x << 13
    x ^= (x >> 7) & 0x1FFFFFFFFFFFFFF
    x ^= x << 17
    m.k[st.K_SEED] = x
    return (x >> 20) & 0x7FFFFFFF
