"""Runs the host function of a CuTe DSL function that was compiled for TVM-FFI, and hears what it launches.

TVM-FFI is the calling convention of `options="--enable-tvm-ffi"`: the host function takes tagged values and tensors as
DLPack describes them, and looks at shapes, dtypes and devices itself. Tensors are given to it as those of a GPU, at the
addresses that they have in the emulated memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch
import tvm_ffi

from fuzz.devices.emulator.host import cuda_runtime
from fuzz.devices.emulator.host.cuda_runtime import Launch
from fuzz.devices.emulator.state.intrinsics import target_machine

CUDA = 2  # kDLCUDA
_RAISES = ("TVMFFIEnvGetStream", "TVMFFIErrorSetRaisedFromCStr", "TVMFFIErrorSetRaisedFromCStrParts")
# offsets in a DLTensor, in bytes
_DATA, _DEVICE, _OFFSET = 0, 8, 40


class OnGpu:
    """A CPU tensor that says by DLPack that it is on GPU 0; at `address`, or at its own."""

    def __init__(self, tensor: torch.Tensor, address: int | None = None) -> None:
        self.tensor, self.address = tensor, address

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.tensor.detach().__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        at = pointer(capsule, b"dltensor")
        ctypes.c_int32.from_address(at + _DEVICE).value = CUDA
        if self.address is not None:
            ctypes.c_uint64.from_address(at + _DATA).value = self.address
            ctypes.c_uint64.from_address(at + _OFFSET).value = 0
        return capsule


class TvmFfiObject:
    """An object file that exports a function called `name` by TVM-FFI, loaded. params_of: place and size of each
    parameter of a kernel by its name."""

    def __init__(self, path: Path, name: str, params_of: Callable[[str], list[tuple[int, int]]]) -> None:
        self.params_of = params_of
        self.kernels: list[str] = []
        self.launches: list[Launch] = []
        self.shared_limit, self.processors = cuda_runtime.SHARED_LIMIT, cuda_runtime.PROCESSORS
        self.runtime = cuda_runtime.runtime()
        library: Any = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
        for symbol in _RAISES:
            llvm.add_symbol(symbol, ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value)
        self.raised = library.TVMFFIErrorSetRaisedFromCStr
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine("large"))
        self.engine.add_object_file(llvm.ObjectFileRef.from_path(str(path)))
        self.engine.finalize_object()
        address = self.engine.get_function_address(f"__tvm_ffi_{name}")
        if not address:
            raise ValueError(f"{path}: exports no function {name} by TVM-FFI")
        self.function = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=self.engine)

    def launched(self, launch: Launch) -> None:
        """The runtime calls this for each launch."""
        self.launches.append(launch)

    def call(self, arguments: tuple[Any, ...]) -> list[Launch]:
        """The launches that the host function asks for, in order. Raises what it raises."""
        self.launches = []
        self.runtime.target, self.runtime.error = self, None
        # a host function may fail without saying why; TVM-FFI then takes the error that was raised last
        self.raised(b"RuntimeError", b"the host function failed")
        try:
            self.function(*arguments)
        except Exception:
            if self.runtime.error is None:
                raise
        finally:
            self.runtime.target = None
        if self.runtime.error is not None:
            raise self.runtime.error
        return self.launches
