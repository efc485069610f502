"""Settings of the emulated GPU for a case's repeats: schedules, the first in order, the others random; and for all of
them products that are fused into sums, in half of the cases."""

from __future__ import annotations

from typing import Any

from fuzz.devices.emulator.config import AS_WRITTEN, CONTRACTIONS

RESIDENT = (4, 1, 3, 8)  # CTAs at once, by the repeat; 1: each one runs alone
FUSED = tuple(name for name in CONTRACTIONS if name != AS_WRITTEN)


def schedule_of(repeat: int, contraction: str = AS_WRITTEN) -> dict[str, Any]:
    """Settings of an Emulator, by the number of the repeat. contraction: the case's."""
    found: dict[str, Any] = {} if contraction == AS_WRITTEN else {"contraction": contraction}
    if not repeat:
        return found
    resident = RESIDENT[repeat % len(RESIDENT)]
    return found | {"warp_schedule": "random", "seed": repeat, "dispatch": "permuted", "resident_ctas": resident}


def contraction_of(seed: int) -> str:
    """Which products of the PTX its compiler fuses into sums, for a case whose inputs have this seed: none where it is
    even. All repeats of a case have the same, as those of one compiled kernel do."""
    return FUSED[seed // 2 % len(FUSED)] if seed % 2 else AS_WRITTEN
