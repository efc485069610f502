"""Size: the limits of the cases that a session draws."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Size:
    """Limits of the cases drawn: pairs over all heads and sequences, heads × sequences, the longest sequence, and the
    elements of any one of Q, K, V (a few keys and very many queries are few pairs, yet slow)."""

    pairs: int = 1 << 17
    rows: int = 16
    length: int = 16_384
    elements: int = 1 << 22

    def within(self, other: Size | None) -> Size:
        """The smaller of both in every respect."""
        if other is None:
            return self
        return Size(*(min(mine, its) for mine, its in zip(astuple(self), astuple(other), strict=True)))
