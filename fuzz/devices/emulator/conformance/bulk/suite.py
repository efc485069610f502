"""All the micro-kernels of bulk copies in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.devices.emulator.conformance.bulk.limits import limit_kernels
from fuzz.devices.emulator.conformance.bulk.loads import load_kernels
from fuzz.devices.emulator.conformance.bulk.maps import map_kernels
from fuzz.devices.emulator.conformance.bulk.plain import plain_kernels
from fuzz.devices.emulator.conformance.bulk.reductions import reduction_kernels
from fuzz.devices.emulator.conformance.bulk.stores import store_kernels
from fuzz.devices.emulator.conformance.kernel import MicroKernel


def bulk_kernels() -> Iterator[MicroKernel]:
    """The whole set, in a fixed order."""
    yield from load_kernels()
    yield from store_kernels()
    yield from reduction_kernels()
    yield from plain_kernels()
    yield from map_kernels()
    yield from limit_kernels()
