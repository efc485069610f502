"""The emulated GPU: runs compiled CuTe DSL kernels (their host function and their PTX) on a CPU. See README.md."""

from fuzz.devices.emulator.emulator import Emulator, LoadedKernel, PtxModule
from fuzz.devices.emulator.report import Deadlock, EmulationError, Finding, Report

__all__ = ["Deadlock", "EmulationError", "Emulator", "Finding", "LoadedKernel", "PtxModule", "Report"]
