"""The emulated GPU as a device of kernels.blocksparse: launches on CPU tensors, from the same artifacts as a GPU's.

What the emulator finds (a deadlock, a race, an access out of bounds) ends the run with a DeviceError, which the judge
turns into a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fuzz.compiling import Build, obtain
from fuzz.core.target import DeviceError
from fuzz.devices.cuda import build_of
from fuzz.devices.emulated_verdict import UNFINISHED, verdict_of
from fuzz.devices.emulator import Emulator, LoadedKernel, PtxModule, Report
from fuzz.devices.emulator.decode.decoder import Unimplemented
from fuzz.devices.emulator.report.save import save
from fuzz.devices.unwritten import of_runs
from kernels.blocksparse.spec.variant import Injection, Variant, arch_for_products

if TYPE_CHECKING:
    from fuzz.devices.emulator.report.timeline import Timeline

AXES = {"semaphores": ("part", "b", "h", "m")}  # names of dimensions in reports


class EmulatedDevice:
    """Launches for `kernels.blocksparse.compile.runtime.launch_elsewhere`.

    arch      what the kernels are compiled for, but those whose products are another's
    emulator  of each launch; may be replaced between runs (another schedule, another number of resident CTAs)
    blind     a launch that ends counts as a good one, whatever was seen: what a GPU would give back
    instead   by the key of a build: PTX that runs in place of what was compiled (fuzz/score/machine)
    budget    the most micro-operations of a launch, where there is such a limit
    watch     is called with every report
    """

    def __init__(self, arch: str, emulator: Emulator) -> None:
        self.arch, self.emulator = arch, emulator
        self.launched: list[str] = []
        self.blind = False
        self.instead: dict[str, PtxModule] = {}
        self.budget: int | None = None
        self.watch: Callable[[Build, Report], None] | None = None
        self._loaded: dict[str, LoadedKernel] = {}
        self._unwritten = of_runs()
        self._only: tuple[int, ...] | None = None
        self._trace, self._runs = "", 0
        self._timelines: list[Timeline] = []

    def load(self, build: Build) -> LoadedKernel:
        """The kernel of a build, compiled now where the cache has none. Raises CompileError."""
        if build.key not in self._loaded:
            self._loaded[build.key] = self.emulator.load(obtain(build).folder)
        return self._loaded[build.key]

    def begin(self, emulator: Emulator, only: tuple[int, ...] = ()) -> None:
        """The launches that follow are another run, on `emulator`; of some CTAs of each grid only, if so."""
        self._only = only or None
        self.emulator = replace(emulator, trace=True) if self._trace else emulator
        self.launched.clear()
        self._timelines = []
        self._runs += 1

    def trace_to(self, path: str) -> None:
        """The timelines of the next run go to `path`; those of a later run, when it ends in a finding. "": no more."""
        self._trace, self._runs = path, 0

    def _keep_trace(self, name: str, report: Report) -> None:
        self._timelines += [replace(line, kernel=name) for line in report.timelines]
        if self._trace and (self._runs == 1 or not report.ok):
            save(self._timelines, Path(self._trace))

    def __call__(self, variant: Variant, values: Sequence[Tensor | int | float], injection: Injection) -> None:
        """One launch. Raises DeviceError for whatever the emulator finds."""
        arch = arch_for_products(variant.products, self.arch)
        build = build_of(variant, arch, injection)
        kernel = self.load(build)
        emulator = replace(self.emulator, budget=self.budget) if self.budget else self.emulator
        instead = self.instead.get(build.key)
        try:
            report = kernel(
                *values, emulator=emulator, written=self._unwritten, only=self._only, instead=instead, axes=AXES
            )
        except Unimplemented as error:
            raise DeviceError("reject", (), {"emulator": f"the emulator does not know it yet: {error}"}) from error
        if self.watch is not None:
            self.watch(build, report)
        self.launched.append(f"{variant.name} {arch}")
        self._keep_trace(variant.name, report)
        if not report.ok and not (self.blind and report.status not in UNFINISHED):
            raise DeviceError(*verdict_of(variant.kind, report))


class _Reporting(EmulatedDevice):
    """A device whose launches end whatever is found. reports: those of all launches, in order."""

    def __init__(self, arch: str, emulator: Emulator) -> None:
        super().__init__(arch, emulator)
        self.blind = True
        self.reports: list[Report] = []
        self.watch = lambda build, report: self.reports.append(report)

    def __call__(self, variant: Variant, values: Sequence[Tensor | int | float], injection: Injection) -> None:
        try:
            super().__call__(variant, values, injection)
        except DeviceError as error:
            if error.outcome == "reject":
                raise


@contextmanager
def on_emulated_gpu(arch: str, **settings: Any) -> Iterator[_Reporting]:
    """Block in which kernels.blocksparse takes CPU tensors; its value has `reports`, one for each launch.

    arch      what the kernels are compiled for;  settings  of every launch, those of Emulator
    Raises DeviceError for an instruction that is not emulated.
    """
    from kernels.blocksparse.compile import runtime

    device, before = _Reporting(arch, Emulator(strict=False, **settings)), runtime._elsewhere
    runtime.launch_elsewhere(device)
    try:
        yield device
    finally:
        runtime.launch_elsewhere(before)
