"""`emulated`: a block of code in which Triton kernels and CuTe DSL functions run on the emulated GPU.

with emulated("sm_90a", warp_schedule="random", seed=3) as gpu:
    kernel[grid](q, k, v, o, 0.125)  # CPU tensors
print(*gpu.reports, sep="\\n")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from fuzz.devices.emulator.config import DEFAULT_CHECKS, LaunchConfig
from fuzz.devices.emulator.report.report import Report
from fuzz.devices.emulator.state.global_memory import Written

CHECKS = DEFAULT_CHECKS - {"equal_writes"}


@dataclass
class EmulatedGpu:
    """The device of an `emulated` block. reports: one for each launch so far."""

    arch: str
    config: LaunchConfig
    reports: list[Report] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if every launch finished and nothing was found."""
        return all(report.ok for report in self.reports)


@contextmanager
def emulated(
    arch: str = "sm_90a", *, written: Callable[[Tensor], Written | None] | None = None, **settings: Any
) -> Iterator[EmulatedGpu]:
    """Inside the block every launch of a Triton kernel, `kernel[grid](…)`, takes CPU tensors and runs emulated; so does
    every CuTe DSL function that is compiled there with "--enable-tvm-ffi", where cutlass was imported before.

    arch      what is compiled for: 'sm_80', 'sm_90a', 'sm_100a'
    written   tells of a tensor what has been written of the memory that it lies in; None: all of it
    settings  of every launch, those of Emulator; strict, the default, raises EmulationError at the first finding.
              checks: the default ones without 'equal_writes', since Triton has several warps write one value

    Raises ValueError where TRITON_INTERPRET was set when Triton was imported, and for settings out of range.
    """
    gpu = EmulatedGpu(arch, LaunchConfig(**{"checks": CHECKS, **settings}))
    with ExitStack() as frontends:
        if find_spec("triton") is not None:
            frontends.enter_context(_triton(gpu, written))
        if "cutlass" in sys.modules and find_spec("tvm_ffi") is not None:
            from fuzz.devices.emulator.frontends.cute_functions import Device, on_emulated_gpu

            frontends.enter_context(on_emulated_gpu(arch, Device(gpu.config, gpu.reports.append, written)))
        yield gpu


@contextmanager
def _triton(gpu: EmulatedGpu, written: Callable[[Tensor], Written | None] | None) -> Iterator[None]:
    from triton.language import standard
    from triton.runtime import driver
    from triton.runtime.interpreter import InterpretedFunction

    from fuzz.devices.emulator.frontends.triton_driver import EmulatedDriver

    if isinstance(standard.zeros, InterpretedFunction):
        raise ValueError("TRITON_INTERPRET: was set when triton was imported, so kernels are interpreted; unset it")
    before = driver._active
    driver.set_active(EmulatedDriver(gpu.arch, gpu.config, gpu.reports.append, written))
    try:
        yield
    finally:
        driver._active = before
