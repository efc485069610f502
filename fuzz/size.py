"""Size: the limits of the cases that a session draws."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Limits of the cases drawn: pairs over all heads and sequences, heads × sequences, and the longest sequence."""

    pairs: int = 1 << 17
    rows: int = 16
    length: int = 16_384

    def within(self, other: Size | None) -> Size:
        """The smaller of both in every respect."""
        if other is None:
            return self
        return Size(min(self.pairs, other.pairs), min(self.rows, other.rows), min(self.length, other.length))
