"""The targets of dynamic_mask: the kernel and each mutant, on every device."""

from __future__ import annotations

from fuzz.core.target import Device
from fuzz.targets.dynamic_mask.emulated import EmulatedDynamicMask
from fuzz.targets.dynamic_mask.gpu import GpuDynamicMask
from fuzz.targets.dynamic_mask.interpreted import InterpretedDynamicMask
from fuzz.targets.dynamic_mask.target import BundledDynamicMask
from kernels.mutants.names import DYNAMIC_MASK as MUTANTS

# Of no use in Triton's interpreter, which has no warps, runs no PTX, and sees no read beyond a tensor.
MACHINE_ONLY = ("tiles_of_each_warp", "next_keys_copied_early", "next_queries_copied_early", "mask_tail_read")
CLASSES: dict[Device, type[BundledDynamicMask]] = {
    "interpreter": InterpretedDynamicMask,
    "emulator": EmulatedDynamicMask,
    "cuda": GpuDynamicMask,
}


def targets() -> list[BundledDynamicMask]:
    """The kernel on every device."""
    return [made() for made in CLASSES.values()]


def mutants() -> list[BundledDynamicMask]:
    """The mutants on every device that shows them: never part of a session unless named."""
    interpreted = [name for name in MUTANTS if name not in MACHINE_ONLY]
    return [
        made(name) for device, made in CLASSES.items() for name in (interpreted if device == "interpreter" else MUTANTS)
    ]
