"""The emulated GPU: runs compiled GPU kernels (their host function and their PTX) on a CPU. Begin with README.md.

Names are loaded when they are first used: numba and llvmlite cost a second that a process without a kernel need not
pay.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.devices.emulator.api import Emulator, LoadedKernel, PtxModule
    from fuzz.devices.emulator.decode.decoder import Unimplemented
    from fuzz.devices.emulator.execute.interpreter import ready
    from fuzz.devices.emulator.frontends.cuda_source import Cuda
    from fuzz.devices.emulator.frontends.emulated import EmulatedGpu, emulated
    from fuzz.devices.emulator.frontends.nvrtc import CudaCompileError
    from fuzz.devices.emulator.host.tiled_tensor import TiledTensor
    from fuzz.devices.emulator.report.deadlock import Deadlock
    from fuzz.devices.emulator.report.report import EmulationError, Finding, Report

_HOME = {
    "Emulator": "api",
    "LoadedKernel": "api",
    "PtxModule": "api",
    "Unimplemented": "decode.decoder",
    "Cuda": "frontends.cuda_source",
    "CudaCompileError": "frontends.nvrtc",
    "EmulatedGpu": "frontends.emulated",
    "emulated": "frontends.emulated",
    "ready": "execute.interpreter",
    "Deadlock": "report.deadlock",
    "EmulationError": "report.report",
    "Finding": "report.report",
    "Report": "report.report",
    "TiledTensor": "host.tiled_tensor",
}
__all__ = [
    "Cuda",
    "CudaCompileError",
    "Deadlock",
    "EmulatedGpu",
    "EmulationError",
    "Emulator",
    "Finding",
    "LoadedKernel",
    "PtxModule",
    "Report",
    "TiledTensor",
    "Unimplemented",
    "emulated",
    "ready",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
