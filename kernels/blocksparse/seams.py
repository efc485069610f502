"""Named sets of seams: what a planted bug replaces in each kernel of a call. Operators carry only the name; "" is
correct."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.blocksparse.variant import NO_SEAMS, Seams


@dataclass(frozen=True)
class SeamSet:
    """The seams of the forward kernel, and those of the backward pass's kernels together."""

    forward: Seams = NO_SEAMS
    backward: Seams = NO_SEAMS


_REGISTRY: dict[str, SeamSet] = {"": SeamSet()}


def register_seams(name: str, seams: SeamSet) -> None:
    """Makes a seam set known to the operators. Raises ValueError where another set has that name."""
    if _REGISTRY.setdefault(name, seams) is not seams:
        raise ValueError(f"seams: the name {name!r} is taken; choose another")


def find_seams(name: str) -> SeamSet:
    """The seam set of that name. Raises ValueError where there is none."""
    if name not in _REGISTRY:
        raise ValueError(f"seams: needs one of {sorted(_REGISTRY)} (import kernels.mutants), got {name!r}")
    return _REGISTRY[name]
