"""The emulated GPU as users see it: load a compiled kernel, call it with CPU tensors, get a report."""

from __future__ import annotations

import ctypes
import math
import shutil
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.execute.clusters.grid import cluster_of
from fuzz.devices.emulator.execute.launch import execute
from fuzz.devices.emulator.host.cuda_runtime import Argument, HostObject, Launch, export
from fuzz.devices.emulator.host.tiled_tensor import MappedTensor, TiledTensor
from fuzz.devices.emulator.programs import Programs
from fuzz.devices.emulator.report.report import EmulationError, Report
from fuzz.devices.emulator.state.global_memory import Memory, Written


class Emulator(LaunchConfig):
    """A GPU to run kernels on: the settings of a launch (LaunchConfig), and what loads kernels to be run with them."""

    def load(self, compiled: Any) -> LoadedKernel:
        """A callable for a compiled CuTe function, or for a folder with its exported .o, .h and .ptx files."""
        if isinstance(compiled, str | Path):
            folder = Path(compiled)
            texts = sorted(folder.glob("*.ptx"))
            if len(texts) != 1:
                raise ValueError(f"{folder}: needs one .ptx file, has {len(texts)}")
            return LoadedKernel(self, folder, texts[0].read_text())
        folder, text = export(compiled)
        loaded = LoadedKernel(self, folder, text)
        weakref.finalize(loaded, shutil.rmtree, folder, True)
        return loaded

    def load_ptx(self, text: str) -> PtxModule:
        """The kernels of a PTX text, to be launched one by one with a grid and arguments."""
        return PtxModule(self, text)


class LoadedKernel:
    """A host function and its kernels. Call it with what the CuTe function takes: torch CPU tensors for pointers and
    tensors, numbers for scalars; the stream may be left out."""

    def __init__(self, emulator: LaunchConfig, folder: Path, text: str) -> None:
        self.emulator = emulator
        self.programs = Programs(text)
        self.host = HostObject(folder, self.params_of)

    def params_of(self, name: str) -> list[tuple[int, int]]:
        kernel = self.programs.module.kernels.get(name)
        if kernel is None:
            raise ValueError(f"the host function launches {name!r}, which the PTX does not have")
        return [(p.offset, p.size) for p in kernel.params]

    def __call__(self, *args: Any, emulator: LaunchConfig | None = None, only: Sequence[int] | None = None,
                 uninitialised: Sequence[str] = (),
                 written: Callable[[torch.Tensor], Written | None] | None = None,
                 instead: PtxModule | None = None,
                 axes: Mapping[str, Sequence[str]] | None = None) -> Report:  # fmt: skip
        """Runs the host function and everything that it launches; returns what was found, or raises EmulationError.

        emulator       another one than it was loaded with
        only           linear indices of the CTAs to run of each launch (default: all)
        uninitialised  names of tensor arguments whose contents count as never written
        written        tells of a tensor what has been written of the memory that it lies in; None: all of it
        instead        a module whose kernels run in place of this one's: changed PTX, same names and parameters
        axes           names of the last dimensions of tensor arguments, for reports: {"semaphores": ("b", "h", "m")}
        """
        emulator = emulator or self.emulator
        memory = Memory(axes)
        parameters = [a for a in self.host.interface.arguments if a.kind != "stream"]
        if len(args) == len(parameters) + 1 and len(self.host.interface.arguments) == len(args):
            args = tuple(x for x, a in zip(args, self.host.interface.arguments, strict=True) if a.kind != "stream")
        if len(args) != len(parameters):
            names = ", ".join(a.name for a in parameters)
            raise ValueError(f"the kernel takes {len(parameters)} arguments ({names}), got {len(args)}")
        known = {a.name for a in parameters}
        for name in uninitialised:
            if name not in known:
                raise ValueError(f"uninitialised: no argument is called {name!r}")
        given = iter(args)
        values = []
        for a in self.host.interface.arguments:
            if a.kind == "stream":
                values.append(ctypes.c_void_p(0))
                continue
            x = next(given)
            kept: Written | bool = a.name not in uninitialised
            if kept and written is not None and isinstance(x, torch.Tensor):
                kept = written(x) or True
            values.append(_value(a, x, memory, kept))
        programs = instead.programs if instead else self.programs
        return run(emulator, programs, self.host.call(values), memory, only)


class PtxModule:
    """The kernels of a PTX text. kept: as `Programs` has it."""

    def __init__(self, emulator: LaunchConfig, text: str, kept: bool = True) -> None:
        self.emulator = emulator
        self.programs = Programs(text, kept)

    def launch(self, name: str | None, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *,
               shared: int = 0, cluster: Sequence[int] | None = None, emulator: LaunchConfig | None = None,
               only: Sequence[int] | None = None) -> Report:  # fmt: skip
        """Launches kernel `name` (None: the only one). args: tensors for pointers, ints and floats
        for scalars, bytes for structs, TiledTensor or MappedTensor for tensor maps. cluster: CTAs of a cluster; None:
        what the kernel says, or one."""
        name = name or next(iter(self.programs.module.kernels))
        kernel = self.programs.kernel(name)
        if len(args) != len(kernel.params):
            raise ValueError(f"kernel {name} takes {len(kernel.params)} arguments, got {len(args)}")
        memory = Memory()
        block_of_params = b""
        for i, (x, p) in enumerate(zip(args, kernel.params, strict=True)):
            block_of_params = block_of_params.ljust(p.offset, b"\0")
            if isinstance(x, torch.Tensor):
                block_of_params += memory.add(f"argument {i}", x).to_bytes(8, "little")
            elif isinstance(x, TiledTensor | MappedTensor):
                block_of_params += x.encode(memory.add(f"argument {i}", x.tensor))
            elif isinstance(x, float):
                block_of_params += bytes(ctypes.c_float(x) if p.size == 4 else ctypes.c_double(x))
            elif isinstance(x, bytes):
                block_of_params += x
            else:
                block_of_params += (int(x) % (1 << 8 * p.size)).to_bytes(p.size, "little")
        sizes = [tuple([*v, 1, 1, 1][:3]) for v in (grid, block)]
        together = tuple([*cluster, 1, 1, 1][:3]) if cluster is not None else None
        launch = Launch(name, sizes[0], sizes[1], shared, block_of_params, together)  # type: ignore[arg-type]
        return run(emulator or self.emulator, self.programs, [launch], memory, only)


def _value(a: Argument, x: Any, memory: Memory, written: Written | bool) -> Any:
    """The ctypes value that the host function gets for argument `a`."""
    if a.kind == "pointer":
        if isinstance(x, torch.Tensor):
            return ctypes.c_void_p(memory.add(a.name, x, written))
        if x is None or x == 0:
            return ctypes.c_void_p(0)
        raise ValueError(f"{a.name}: wants a CPU tensor or None, got {type(x).__name__}")
    if a.kind == "scalar":
        return a.ctype(x)
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{a.name}: wants a CPU tensor, got {type(x).__name__}")
    value = a.ctype()
    value.data = memory.add(a.name, x, written)
    shapes = list(x.shape)
    strides = list(x.stride())
    if a.strides == x.dim() - 1 and 1 in strides:  # the contiguous dimension's stride is static
        strides.pop(len(strides) - 1 - strides[::-1].index(1))
    if a.shapes not in (0, len(shapes)) or a.strides not in (0, len(strides)):
        raise ValueError(
            f"{a.name}: has {x.dim()} dimensions; the kernel has {a.shapes} dynamic shapes, {a.strides} strides"
        )
    if a.shapes:
        value.dynamic_shapes[:] = shapes
    if a.strides:
        value.dynamic_strides[:] = strides
    return value


def run(
    config: LaunchConfig,
    programs: Programs,
    launches: list[Launch],
    memory: Memory,
    only: Sequence[int] | None = None,
    watch: Callable[[Report], None] | None = None,
) -> Report:
    """Runs launches one after the other, up to the first that does not finish. Raises EmulationError for a finding
    where `config` is strict; `watch` has seen the report before."""
    report = Report()
    start = time.perf_counter()
    for launch in launches:
        report.kernel = launch.kernel
        kernel = programs.kernel(launch.kernel)
        cluster, explicit = cluster_of(kernel, launch)
        form = launch.kernel, math.prod(cluster) > 1, config.contraction
        program, translation = programs.get(*form), programs.translation(*form)
        execute(config, program, translation, launch, memory, report, only, cluster, explicit)
        report.launches += 1
        if report.status != "finished":
            break
    report.seconds = time.perf_counter() - start
    if watch is not None:
        watch(report)
    if config.strict and not report.ok:
        raise EmulationError(report)
    return report
