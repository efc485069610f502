"""A loop that does not end: whose it is, how often it went round, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.devices.emulator.report.seen import shortened

Cta = tuple[int, int, int]
HOUR = 3600.0


@dataclass(frozen=True)
class Endless:
    """One warp in a loop that does not end.

    source       source line of the loop's backward branch, '' where the PTX does not say; lines: PTX lines of the loop,
                 first and last; instruction: the backward branch
    trips        how often the warp went round since it came to the loop; seconds: of the processor in that time
    why          how it is known, in a sentence without its end
    """

    kernel: str
    cta: Cta
    warp: int
    source: str
    lines: tuple[int, int]
    instruction: str
    trips: int
    seconds: float
    why: str

    def __str__(self) -> str:
        first, last = self.lines
        lines = f"lines {first} to {last}" if first != last else f"line {last}"
        where = f"{self.source}, " if self.source else ""
        return (
            f"endless: CTA {self.cta} warp {self.warp} of kernel {shortened(self.kernel)} does not leave its loop "
            f"({where}PTX {lines}: {self.instruction}): {self.trips:,} trips in {self.seconds:.1f} s; "
            f"{self.why}"
        )


def cta_at(linear: int, grid: tuple[int, int, int]) -> Cta:
    """The place in the grid of the CTA with this linear index."""
    x, y, _ = grid
    return linear % x, linear // x % y, linear // (x * y)


def duration(seconds: float) -> str:
    """Seconds in words: '71 hours', '12 years'."""
    for unit, size in (("years", 8766 * HOUR), ("days", 24 * HOUR), ("hours", HOUR)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
