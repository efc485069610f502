"""Named sets of seams: what a planted bug replaces in each kernel of a call, and in what the host hands them. Operators
carry only the name; "" is correct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from kernels.blocksparse.spec.variant import NO_SEAMS, Seams, Variant

Named: TypeAlias = dict[str, Tensor | int | float]  # the values of a launch, by the names of signature.py


@dataclass(frozen=True)
class Host:
    """What a planted bug replaces before a launch.

    values          changes the values that a kernel of this variant is launched with; None: they stay as they are
    variant         the variant that is compiled for a launch, of the one that it needs; None: that one
    clears_padding  whether outputs start cleared where rows of padding are never written
    """

    values: Callable[[Variant, Named], Named] | None = None
    variant: Callable[[Variant, Named], Variant] | None = None
    clears_padding: bool = True

    def changed(self, variant: Variant, values: Named) -> Named:
        """The values to launch with."""
        return values if self.values is None else self.values(variant, values)

    def kernel(self, variant: Variant, values: Named) -> Variant:
        """The variant to launch."""
        return variant if self.variant is None else self.variant(variant, values)


NO_HOST = Host()


@dataclass(frozen=True)
class SeamSet:
    """The seams of the forward kernel, those of the backward pass's kernels together, and those of the host."""

    forward: Seams = NO_SEAMS
    backward: Seams = NO_SEAMS
    host: Host = NO_HOST


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
