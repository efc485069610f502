"""The targets of dynamic_mask: the kernel and each mutant, on every device."""

from __future__ import annotations

from fuzz.core.target import Device
from fuzz.targets.dynamic_mask.emulated import EmulatedDynamicMask
from fuzz.targets.dynamic_mask.gpu import GpuDynamicMask
from fuzz.targets.dynamic_mask.interpreted import InterpretedDynamicMask
from fuzz.targets.dynamic_mask.target import BundledDynamicMask
from kernels.mutants.names import DYNAMIC_MASK as MUTANTS

CLASSES: dict[Device, type[BundledDynamicMask]] = {
    "interpreter": InterpretedDynamicMask,
    "emulator": EmulatedDynamicMask,
    "cuda": GpuDynamicMask,
}


def targets() -> list[BundledDynamicMask]:
    """The kernel on every device."""
    return [made() for made in CLASSES.values()]


def mutants() -> list[BundledDynamicMask]:
    """The mutants on every device: never part of a session unless named."""
    return [made(name) for made in CLASSES.values() for name in MUTANTS]
