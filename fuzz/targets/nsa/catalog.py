"""The targets of nsa: the kernel on every device."""

from __future__ import annotations

from fuzz.targets.nsa.emulated import EmulatedNativeSparse
from fuzz.targets.nsa.gpu import GpuNativeSparse
from fuzz.targets.nsa.target import BundledNativeSparse


def targets() -> list[BundledNativeSparse]:
    """The kernel on every device."""
    return [EmulatedNativeSparse(), GpuNativeSparse()]
