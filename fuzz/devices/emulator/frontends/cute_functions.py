"""CuTe DSL functions on the emulated GPU: what `cute.compile` returns takes CPU tensors and runs emulated.

Covers functions that are compiled for TVM-FFI (options="--enable-tvm-ffi"), as FlashAttention-4's are. Others go to
`Emulator.load`.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tvm_ffi
from cutlass.cute import runtime
from cutlass.cutlass_dsl import CuTeDSL
from cutlass.cutlass_dsl.tvm_ffi_provider import (
    TVMFFIJitCompiledFunction,
    TVMFFIJitCompiledFunctionBase,
    TVMFFIJitCompiledFunctionWithKwargs,
)

from fuzz.devices.emulator.api import run
from fuzz.devices.emulator.config import LaunchConfig
from fuzz.devices.emulator.host.tvm_ffi_object import OnGpu, TvmFfiObject
from fuzz.devices.emulator.programs import Programs
from fuzz.devices.emulator.report.report import Report
from fuzz.devices.emulator.state.global_memory import Memory, Written

FUNCTION = "kernel"  # the name under which functions are exported


@dataclass(frozen=True)
class Device:
    """How functions run now.

    config   settings of every launch
    watch    hears the report of each
    written  what has been written of a tensor's memory; None: all
    extent   the memory around a tensor that kernels may access too, itself a tensor; None: no more than the tensor
    """

    config: LaunchConfig
    watch: Callable[[Report], None]
    written: Callable[[torch.Tensor], Written | None] | None = None
    extent: Callable[[torch.Tensor], torch.Tensor] | None = None


_device: Device | None = None
_failure: Exception | None = None  # what the latest call raised


@contextmanager
def on_emulated_gpu(arch: str, device: Device) -> Iterator[None]:
    """Functions that are compiled inside the block are compiled for `arch`; those that are called there, and were
    compiled in such a block, run emulated."""
    global _device
    before, settings = _device, CuTeDSL._get_dsl().envar
    kept = {name: getattr(settings, name) for name in ("arch", "keep_ptx", "dump_dir", "lineinfo")}
    functions: Any = TVMFFIJitCompiledFunctionBase
    create = functions._create_tvm_ffi_function
    callers: list[Any] = [TVMFFIJitCompiledFunction, TVMFFIJitCompiledFunctionWithKwargs]
    calls = [one.__call__ for one in callers]
    folder = tempfile.mkdtemp(prefix="attnfuzz-cute-")
    settings.arch, settings.keep_ptx, settings.dump_dir, settings.lineinfo = arch, True, folder, True
    functions._create_tvm_ffi_function = _emulated_function
    for one, call in zip(callers, calls, strict=True):
        one.__call__ = _raising_the_failure(call)
    _device = device
    try:
        with cpu_tensors_as_on_gpu():
            yield
    finally:
        _device = before
        for one, call in zip(callers, calls, strict=True):
            one.__call__ = call
        functions._create_tvm_ffi_function = create
        for name, value in kept.items():
            setattr(settings, name, value)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def cpu_tensors_as_on_gpu() -> Iterator[None]:
    """Inside the block `from_dlpack` takes CPU tensors for those of GPU 0, so that functions can be compiled for them
    without one."""
    tensors: Any = runtime._Tensor
    convert = tensors.__init__
    tensors.__init__ = _converted(convert)
    try:
        yield
    finally:
        tensors.__init__ = convert


def _raising_the_failure(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a compiled function. TVM-FFI makes a RuntimeError of what passes through it: the exception itself is
    raised instead."""

    def called(self: Any, *args: Any, **options: Any) -> Any:
        global _failure
        _failure = None
        try:
            return call(self, *args, **options)
        except Exception:
            if _failure is None:  # raised before the call came to EmulatedFunction
                raise
        failure, _failure = _failure, None  # an exception holds the tensors of its frames
        raise failure

    return called


def _converted(convert: Callable[..., None]) -> Callable[..., None]:
    """`from_dlpack`'s constructor, to which CPU tensors are those of a GPU: TVM-FFI asks for some."""

    def init(self: Any, tensor: Any, *args: Any, **options: Any) -> None:
        convert(self, OnGpu(tensor) if isinstance(tensor, torch.Tensor) else tensor, *args, **options)

    return init


def _emulated_function(compiled: Any) -> tvm_ffi.Function:
    """In place of the function that launches on a GPU: one that runs emulated."""
    folder = Path(tempfile.mkdtemp(prefix="attnfuzz-cute-"))
    compiled.export_to_c(str(folder / "host.o"), function_name=FUNCTION)
    text = compiled.artifacts.PTX
    function = EmulatedFunction(folder / "host.o", FUNCTION, text if isinstance(text, str) else text.decode())
    weakref.finalize(function, shutil.rmtree, folder, True)
    return tvm_ffi.convert(function.__call__)


class EmulatedFunction:
    """A compiled function: an object file that exports its host function as `name` by TVM-FFI; its kernels' PTX."""

    def __init__(self, path: Path, name: str, text: str) -> None:
        self.programs = Programs(text)
        self.host = TvmFfiObject(path, name, self._params_of)

    def _params_of(self, name: str) -> list[tuple[int, int]]:
        return [(param.offset, param.size) for param in self.programs.module.kernels[name].params]

    def __call__(self, *arguments: Any) -> None:
        """Runs what the host function launches for these arguments. Raises EmulationError for a finding."""
        global _failure
        try:
            self._run(arguments)
        except Exception as error:
            _failure = error
            raise

    def _run(self, arguments: tuple[Any, ...]) -> None:
        if _device is None:
            raise RuntimeError("this function was compiled for the emulated GPU: call it inside of `emulated`")
        memory = Memory()
        given = tuple(_argument(memory, f"argument {i}", x) for i, x in enumerate(arguments))
        run(_device.config, self.programs, self.host.call(given), memory, watch=_device.watch)


def _argument(memory: Memory, name: str, x: Any) -> Any:
    """An argument for the host function: tensors become part of `memory`, also those in tuples."""
    if isinstance(x, torch.Tensor | tvm_ffi.Tensor):
        tensor = x.detach() if isinstance(x, torch.Tensor) else torch.from_dlpack(x)
        assert _device is not None
        whole = _device.extent(tensor) if _device.extent is not None else tensor
        written = _device.written(whole) if _device.written is not None else None
        return OnGpu(tensor, memory.add(name, whole, written or True) + tensor.data_ptr() - whole.data_ptr())
    if isinstance(x, tvm_ffi.Array | tuple | list):
        return tuple(_argument(memory, f"{name}[{i}]", one) for i, one in enumerate(x))
    return x
