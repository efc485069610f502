"""The targets of sdpa: the kernel and each mutant, on every device."""

from __future__ import annotations

from importlib.util import find_spec

from fuzz.process.triton_mode import chosen
from fuzz.targets.sdpa.emulated import EmulatedSdpa
from fuzz.targets.sdpa.gpu import GpuSdpa
from fuzz.targets.sdpa.interpreted import InterpretedSdpa
from fuzz.targets.sdpa.target import BundledSdpa
from kernels.mutants.names import SDPA as MUTANTS


def targets() -> list[BundledSdpa]:
    """The kernel without a GPU and on one."""
    return [made() for made in _classes()]


def mutants() -> list[BundledSdpa]:
    """The mutants on both: never part of a session unless named."""
    return [made(name) for made in _classes() for name in MUTANTS]


def _classes() -> tuple[type[BundledSdpa], type[BundledSdpa]]:
    emulates = chosen() == "emulated" and all(find_spec(name) is not None for name in ("numba", "llvmlite"))
    return (EmulatedSdpa if emulates else InterpretedSdpa), GpuSdpa
