"""KernelChoice: which cases a kernel of a target is for, so that a session can ask each of its kernels in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oracles.problem import Dtype


@dataclass(frozen=True)
class KernelChoice:
    """Conditions on a case under which one variant of a kernel runs.

    variant       options that the case's variant has, among those that the target offers for its problem
    absent        names of options that it does not have: those of other kernels, with `variant` as a part of theirs
    dtype         None: any
    dims          least and most head dim; None: any
    softcap       whether there is one; None: either
    masks         kinds of masks that it is for; None: all that the target takes
    least_q, least_k   lengths from which on two CTAs add to one tile of dQ, and each of them goes on to a second tile;
                  where a kernel synchronises them. 0: it does not
    """

    variant: dict[str, str | int | bool] = field(default_factory=dict)
    dtype: Dtype | None = None
    dims: tuple[int, int] | None = None
    softcap: bool | None = None
    masks: frozenset[str] | None = None
    least_q: int = 0
    least_k: int = 0
    absent: frozenset[str] = frozenset()

    def has(self, variant: Mapping[str, object]) -> bool:
        """True if this kernel is the one of a case with these options."""
        return self.variant.items() <= variant.items() and self.absent.isdisjoint(variant)
