"""The 64 bits of an mbarrier, which PTX leaves opaque, as the emulator lays them out.

Arrivals that a phase wants (17 bits), those that are missing (17), bytes that are missing (21, biased), the phase's
parity (1), a mark (8) that memory which is no mbarrier does not have.
"""

from __future__ import annotations

from numba import njit

MOST = (1 << 17) - 1
BIAS = 1 << 20
MARK = 0x5B
PENDING, BYTES, PHASE, MARKED = 17, 34, 55, 56


@njit
def packed(wanted, missing, bytes_, phase):
    return MARK << MARKED | phase << PHASE | (bytes_ + BIAS) << BYTES | missing << PENDING | wanted


def phase_of(value: int) -> int:
    """The parity of an mbarrier's phase."""
    return value >> PHASE & 1


def describe(value: int) -> str:
    """The state of an mbarrier in words, for reports."""
    if value >> MARKED != MARK:
        return "no mbarrier"
    missing, wanted = value >> PENDING & MOST, value & MOST
    bytes_ = (value >> BYTES & 2 * BIAS - 1) - BIAS
    due = f" and {bytes_} bytes to come" if bytes_ > 0 else f" and {-bytes_} bytes more than expected" if bytes_ else ""
    return f"mbarrier with {wanted - missing} of {wanted} arrivals{due}, phase {value >> PHASE & 1}"
