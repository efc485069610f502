"""The 64 bits of an mbarrier, which PTX leaves opaque, as the emulator lays them out.

Up to SMALL arrivals: those that a phase wants (17 bits), those that are missing (17), bytes that are missing (21,
biased), the phase's parity (1), a mark (8) that memory which is no mbarrier does not have. Up to MOST, PTX's limit: 20,
20, 21 and 1 bits, and a mark of 2, so that other memory is taken for an mbarrier more easily.
"""

from __future__ import annotations

from numba import njit

MOST = (1 << 20) - 1  # arrivals, and bytes
SMALL = (1 << 17) - 1
BIAS = 1 << 20
MARK = 0x5B
PENDING, BYTES, PHASE, MARKED = 17, 34, 55, 56
LARGE_MARK = 2
LARGE = -(1 << 63)  # the mark in its place
LARGE_PENDING, LARGE_BYTES, LARGE_PHASE, LARGE_MARKED = 20, 40, 61, 62


@njit
def packed(wanted, missing, bytes_, phase):
    if wanted <= SMALL:
        return MARK << MARKED | phase << PHASE | (bytes_ + BIAS) << BYTES | missing << PENDING | wanted
    return LARGE | phase << LARGE_PHASE | (bytes_ + BIAS) << LARGE_BYTES | missing << LARGE_PENDING | wanted


@njit
def is_mbarrier(word):
    """False for memory that is no mbarrier."""
    if word >> MARKED == MARK:
        return True
    wanted, missing = word & MOST, word >> LARGE_PENDING & MOST
    return word >> LARGE_MARKED & 3 == LARGE_MARK and wanted > SMALL and missing <= wanted


@njit
def wanted_of(word):
    """Arrivals of a phase."""
    return word & SMALL if word >> MARKED == MARK else word & MOST


@njit
def missing_of(word):
    """Arrivals that are still to come in this phase."""
    return word >> PENDING & SMALL if word >> MARKED == MARK else word >> LARGE_PENDING & MOST


@njit
def bytes_to_come(word):
    """Bytes that the phase still waits for; below 0 where more came than were expected so far."""
    return (word >> (BYTES if word >> MARKED == MARK else LARGE_BYTES) & 2 * BIAS - 1) - BIAS


@njit
def phase_of(word):
    """The parity of an mbarrier's phase."""
    return word >> (PHASE if word >> MARKED == MARK else LARGE_PHASE) & 1


def parity(value: int) -> int:
    """The same as `phase_of`, for reports."""
    return int(phase_of.py_func(value))


def describe(value: int) -> str:
    """The state of an mbarrier in words, for reports."""
    if not is_mbarrier.py_func(value):
        return "no mbarrier"
    missing, wanted, bytes_ = (f.py_func(value) for f in (missing_of, wanted_of, bytes_to_come))
    due = f" and {bytes_} bytes to come" if bytes_ > 0 else f" and {-bytes_} bytes more than expected" if bytes_ else ""
    return f"mbarrier with {wanted - missing} of {wanted} arrivals{due}, phase {parity(value)}"
