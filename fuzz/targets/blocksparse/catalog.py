"""The targets of blocksparse: the kernel and each mutant, on every device."""

from __future__ import annotations

from fuzz.core.target import Device
from fuzz.targets.blocksparse.devices import emulator_there
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.blocksparse.gpu import GpuBlockSparse
from fuzz.targets.blocksparse.target import BlockSparseTarget
from kernels.mutants.names import BLOCKSPARSE as MUTANTS  # made by python -m kernels.mutants

CLASSES: dict[Device, type[BlockSparseTarget]] = {
    "host": BlockSparseTarget,
    "emulator": EmulatedBlockSparse,
    "cuda": GpuBlockSparse,
}


def targets() -> list[BlockSparseTarget]:
    """The kernel on every device; on 'host' only where the emulator is missing."""
    return [CLASSES[device]() for device in _devices()]


def mutants() -> list[BlockSparseTarget]:
    """The mutants on every device: never part of a session unless named."""
    return [CLASSES[device](name) for device in _devices() for name in MUTANTS]


def _devices() -> tuple[Device, ...]:
    return ("emulator", "cuda") if emulator_there() else ("host", "cuda")
