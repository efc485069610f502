"""The targets of nsa: the kernel and each mutant, on every device."""

from __future__ import annotations

from fuzz.targets.nsa.emulated import EmulatedNativeSparse
from fuzz.targets.nsa.gpu import GpuNativeSparse
from fuzz.targets.nsa.target import BundledNativeSparse
from kernels.mutants.names import NSA as MUTANTS


def targets() -> list[BundledNativeSparse]:
    """The kernel on every device."""
    return [EmulatedNativeSparse(), GpuNativeSparse()]


def mutants() -> list[BundledNativeSparse]:
    """The mutants on every device: never part of a session unless named."""
    return [made(name) for made in (EmulatedNativeSparse, GpuNativeSparse) for name in MUTANTS]
