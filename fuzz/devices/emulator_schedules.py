"""Schedules of a case's repeats on the emulated GPU: the first in order, the others random."""

from __future__ import annotations

from typing import Any

RESIDENT = (4, 1, 3, 8)  # CTAs at once, by the repeat; 1: each one runs alone


def schedule_of(repeat: int) -> dict[str, Any]:
    """Settings of an Emulator, by the number of the repeat."""
    if not repeat:
        return {}
    resident = RESIDENT[repeat % len(RESIDENT)]
    return {"warp_schedule": "random", "seed": repeat, "dispatch": "permuted", "resident_ctas": resident}
