"""The targets of sdpa: the kernel and each mutant, on every device."""

from __future__ import annotations

from fuzz.core.target import Device
from fuzz.targets.sdpa.emulated import EmulatedSdpa
from fuzz.targets.sdpa.gpu import GpuSdpa
from fuzz.targets.sdpa.interpreted import InterpretedSdpa
from fuzz.targets.sdpa.target import BundledSdpa
from kernels.mutants.names import SDPA as MUTANTS

CLASSES: dict[Device, type[BundledSdpa]] = {
    "interpreter": InterpretedSdpa,
    "emulator": EmulatedSdpa,
    "cuda": GpuSdpa,
}


def targets() -> list[BundledSdpa]:
    """The kernel on every device."""
    return [made() for made in CLASSES.values()]


def mutants() -> list[BundledSdpa]:
    """The mutants on every device: never part of a session unless named."""
    return [made(name) for made in CLASSES.values() for name in MUTANTS]
