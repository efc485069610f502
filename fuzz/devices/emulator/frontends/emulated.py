"""`emulated`: a block of code in which Triton kernels, CuTe DSL functions and CUDA C++ kernels run on the emulated GPU.

with emulated("sm_90a", warp_schedule="random", seed=3) as gpu:
    kernel[grid](q, k, v, o, 0.125)  # a Triton kernel, on CPU tensors
    Cuda(source).kernel(grid, block)(q, k, v, o, 0.125)  # cuda_source.py
print(*gpu.reports, sep="\\n")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fuzz.devices.emulator.config import BLOCK_CHECKS, LaunchConfig
from fuzz.devices.emulator.report.report import Report
from fuzz.devices.emulator.state.global_memory import Written

if TYPE_CHECKING:
    from fuzz.devices.emulator.frontends.triton_driver import Intercept

CHECKS = BLOCK_CHECKS


@dataclass
class EmulatedGpu:
    """The device of an `emulated` block. reports: one for each launch so far; the others are those of `emulated`."""

    arch: str
    config: LaunchConfig
    written: Callable[[Tensor], Written | None] | None = None
    intercept: Intercept | None = None
    reports: list[Report] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Keeps the report of a launch, and prints what its kernel has printed."""
        self.reports.append(report)
        sys.stdout.write(report.printed)

    @property
    def ok(self) -> bool:
        """True if every launch finished and nothing was found."""
        return all(report.ok for report in self.reports)


_active: list[EmulatedGpu] = []  # of the blocks that the process is in, the innermost last


def active_gpu(user: str) -> EmulatedGpu:
    """The device of the innermost `emulated` block. Raises ValueError outside of one; `user` needs it."""
    if not _active:
        raise ValueError(f'{user}: kernels run inside a block `with emulated("sm_90a"):`')
    return _active[-1]


@contextmanager
def emulated(
    arch: str = "sm_90a",
    *,
    written: Callable[[Tensor], Written | None] | None = None,
    triton: bool = True,
    intercept: Intercept | None = None,
    **settings: Any,
) -> Iterator[EmulatedGpu]:
    """Inside the block every launch of a Triton kernel, `kernel[grid](…)`, or of a Cuda one takes CPU tensors and runs
    emulated; so does every CuTe DSL function that is compiled there with "--enable-tvm-ffi", where cutlass was
    imported before.

    arch       what kernels are compiled for: 'sm_80', 'sm_90a', 'sm_100a'
    written    tells of a tensor what has been written of the memory that it lies in; None: all of it
    triton     False leaves Triton alone, and does not import it: for blocks with CUDA C++ kernels only
    intercept  chooses what a launch of a Triton kernel runs, and hears of its report (triton_driver.py)
    settings   of every launch, those of Emulator; strict, the default, raises EmulationError at the first finding.
               checks: the default ones without 'equal_writes', since Triton has several warps write one value

    Raises ValueError where TRITON_INTERPRET was set when Triton was imported, and for settings out of range.
    """
    gpu = EmulatedGpu(arch, LaunchConfig(**{"checks": CHECKS, **settings}), written, intercept)
    with ExitStack() as frontends:
        if triton and find_spec("triton") is not None:
            frontends.enter_context(_triton_driver(gpu))
        if "cutlass" in sys.modules and find_spec("tvm_ffi") is not None:
            from fuzz.devices.emulator.frontends.cute_functions import Device, on_emulated_gpu

            frontends.enter_context(on_emulated_gpu(arch, Device(gpu.config, gpu.add, written)))
        _active.append(gpu)
        try:
            yield gpu
        finally:
            _active.remove(gpu)


@contextmanager
def _triton_driver(gpu: EmulatedGpu) -> Iterator[None]:
    """Triton's active driver is the emulated GPU's."""
    from triton import knobs
    from triton.language import standard
    from triton.runtime import driver
    from triton.runtime.interpreter import InterpretedFunction

    from fuzz.devices.emulator.frontends.triton_driver import EmulatedDriver, hooks_have_keys, until_ptx

    if isinstance(standard.zeros, InterpretedFunction):
        raise ValueError("TRITON_INTERPRET: was set when triton was imported, so kernels are interpreted; unset it")
    before, hook = driver._active, knobs.runtime.add_stages_inspection_hook
    driver.set_active(EmulatedDriver(gpu.arch, gpu.config, gpu.add, gpu.written, gpu.intercept))
    if hooks_have_keys():
        knobs.runtime.add_stages_inspection_hook = until_ptx(hook)
    try:
        yield
    finally:
        driver._active = before
        knobs.runtime.add_stages_inspection_hook = hook
