"""Accuracy: the budget of every element from the data, the judgement of every tensor against it."""

from __future__ import annotations

from oracles.numerics import CPU_FLASH, EAGER, EXACT, FUSED, Numerics

__all__ = ["CPU_FLASH", "EAGER", "EXACT", "FUSED", "Numerics"]
