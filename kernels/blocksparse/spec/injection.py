"""Injections by name: what a mutant replaces in each kernel of a call, and in what the host launches them with. The
operators carry only the name; "" is the correct one. Users' functions have no such argument; kernels/mutants does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant

Named: TypeAlias = dict[str, Tensor | int | float]  # the values of a launch, by the names of signature.py


@dataclass(frozen=True)
class HostInjection:
    """Replacements of a mutant before a launch.

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


NO_HOST_INJECTION = HostInjection()


@dataclass(frozen=True)
class Injections:
    """Injections of one mutant: into the forward kernel, into the backward pass's kernels together, into the host."""

    forward: Injection = NO_INJECTION
    backward: Injection = NO_INJECTION
    host: HostInjection = NO_HOST_INJECTION


_REGISTRY: dict[str, Injections] = {"": Injections()}


def register_injections(name: str, injection: Injections) -> None:
    """Makes a mutant's injections known to the operators. Raises ValueError where others have that name."""
    if _REGISTRY.setdefault(name, injection) is not injection:
        raise ValueError(f"injection: the name {name!r} is taken; choose another")


def find_injections(name: str) -> Injections:
    """The injections of that name. Raises ValueError where there are none."""
    if name not in _REGISTRY:
        raise ValueError(f"injection: needs one of {sorted(_REGISTRY)} (import kernels.mutants), got {name!r}")
    return _REGISTRY[name]
