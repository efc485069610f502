"""Runs the host function of an exported CuTe DSL object without CUDA, and hears what it launches.

`compiled.export_to_c(...)` writes an object file whose host function calls eight functions of the CUDA runtime.
llvmlite loads the object with Python callbacks in their place; the launch callback receives the configuration and the
parameter block exactly as a driver would. Signatures come from the C header that is exported beside the object.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import llvmlite.binding as llvm

from fuzz.devices.emulator.state.intrinsics import target_machine


@dataclass(frozen=True)
class Launch:
    """One kernel launch: the configuration, and where the host function left the address of each parameter. cluster:
    CTAs of a cluster, None where the launch does not say."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    params: bytes
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Argument:
    """A parameter of the host function: 'pointer', 'scalar' (with its C type), 'stream' or 'tensor' (with its C
    layout).
    """

    name: str
    kind: str
    ctype: Any = None
    shapes: int = 0
    strides: int = 0


@dataclass(frozen=True)
class Interface:
    """Content of the exported header: the prefix of the symbols, the host function's symbol and its arguments."""

    prefix: str
    function: str
    arguments: tuple[Argument, ...]


SCALARS = {f"{s}int{w}_t": getattr(ctypes, f"c_{s}int{w}") for s in ("", "u") for w in (8, 16, 32, 64)} | {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
SHARED_LIMIT = 227 << 10  # bytes of shared memory that a CTA may have, of an H200
PROCESSORS = 132
CLUSTER_ATTRIBUTE = 4  # cudaLaunchAttributeClusterDimension


def read_header(path: Path) -> Interface:
    """The interface described by an exported header. Raises ValueError where it is not one of CuTe DSL's."""
    text = path.read_text()
    wrapper = re.search(r"cute_dsl_(\w+)_wrapper\(([^)]*)\)\s*\{(.*?)\n\}", text, re.S)
    call = re.search(r"\n\s*(_mlir_\w+)\(args, \d+\);", wrapper.group(3)) if wrapper else None
    if wrapper is None or call is None:
        raise ValueError(f"{path}: not a header that CuTe DSL exported: no wrapper function")
    prefix = wrapper.group(1)
    structs = {
        m.group(3): (m.group(1), m.group(2))
        for m in re.finditer(r"typedef struct \{\s*void \*data;([^}]*?)()\}\s*(\w+);", text)
    }
    arguments = []
    for declaration in wrapper.group(2).split(",")[1:]:
        m = re.fullmatch(r"\s*(\w+)\s*(\*?)\s*(\w+)\s*", declaration)
        if m is None:
            raise ValueError(f"{path}: cannot read the argument {declaration!r}")
        kind, star, name = m.groups()
        if kind == "cudaStream_t":
            arguments.append(Argument(name, "stream"))
        elif kind == "void" and star:
            arguments.append(Argument(name, "pointer"))
        elif kind in structs:
            fields = re.findall(r"(\w+) (dynamic_shapes|dynamic_strides)\[(\d+)\]", structs[kind][0])
            sizes = {what: (SCALARS[ctype], int(n)) for ctype, what, n in fields}
            layout = type(kind, (ctypes.Structure,), {"_fields_": [("data", ctypes.c_void_p)] + [
                (what, ctype * n) for what, (ctype, n) in sizes.items()]})  # fmt: skip
            shapes, strides = (sizes.get(f"dynamic_{x}", (None, 0))[1] for x in ("shapes", "strides"))
            arguments.append(Argument(name, "tensor", layout, shapes, strides))
        elif kind in SCALARS and not star:
            arguments.append(Argument(name, "scalar", SCALARS[kind]))
        else:
            raise ValueError(f"{path}: argument {name!r} has the type {kind!r}, which the emulator cannot pass")
    return Interface(prefix, call.group(1), tuple(arguments))


class Target(Protocol):
    """The host object that runs now, as the stand-ins see it."""

    shared_limit: int
    processors: int
    kernels: list[str]
    params_of: Callable[[str], list[tuple[int, int]]]

    def launched(self, launch: Launch) -> None:
        """Takes down a launch."""


class _Runtime:
    """The stand-ins for the CUDA runtime. One per process, because symbols are; the current host object sets
    `target`.
    """

    def __init__(self) -> None:
        self.target: Target | None = None
        self.error: BaseException | None = None
        self.keep: list[Any] = []
        for name, count in (
            ("_cudaGetDevice", 1), ("_cudaDeviceGetAttribute", 3), ("_cuKernelGetAttribute", 4),
            ("_cudaFuncSetAttribute", 3), ("_cudaKernelSetAttributeForDevice", 4), ("_cudaLibraryLoadData", 8),
            ("_cudaLibraryGetKernel", 3), ("_cudaLaunchKernelEx", 3), ("_cudaLibraryUnload", 1),
            ("_cudaSetDevice", 1), ("cuda_dialect_init_library_once", 4), ("cuda_dialect_unload_library_once", 2),
            ("CuteDSLRT_TVMFFISetRaisedCudaError", 2),
        ):  # fmt: skip
            self.bind(name, count, getattr(self, name.removeprefix("_")))

    def bind(self, name: str, count: int, function: Callable[..., int]) -> None:
        def guarded(*args: int | None) -> int:
            try:
                return function(*(a or 0 for a in args))
            except BaseException as error:
                self.error = self.error or error
                return 999

        callback = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)(guarded)
        self.keep.append(callback)
        llvm.add_symbol(name, ctypes.cast(callback, ctypes.c_void_p).value)

    @staticmethod
    def put(address: int, value: int) -> int:
        ctypes.c_int32.from_address(address).value = value
        return 0

    def cudaGetDevice(self, device: int) -> int:
        return self.put(device, 0)

    def cudaDeviceGetAttribute(self, value: int, attribute: int, device: int) -> int:
        assert self.target is not None
        known = {97: self.target.shared_limit, 16: self.target.processors}  # opt-in shared memory, multiprocessors
        return self.put(value, known.get(attribute, 0))

    def cuKernelGetAttribute(self, value: int, attribute: int, kernel: int, device: int) -> int:
        return self.put(value, 0)

    def cudaFuncSetAttribute(self, function: int, attribute: int, value: int) -> int:
        return 0

    def cudaKernelSetAttributeForDevice(self, kernel: int, attribute: int, value: int, device: int) -> int:
        return 0

    def cudaLibraryLoadData(self, library: int, *rest: int) -> int:
        ctypes.c_void_p.from_address(library).value = 1
        return 0

    def cudaLibraryUnload(self, library: int) -> int:
        return 0

    def cudaSetDevice(self, device: int) -> int:
        return 0

    def cuda_dialect_init_library_once(self, library: int, init: int, load: int, raise_error: int) -> int:
        """Loads the library at the first call: `init(library)`, then `load(library, device)`."""
        if ctypes.c_uint64.from_address(library).value:
            return 0
        loaded = ctypes.c_uint64(0)
        for address, rest in ((init, ()), (load, (0,))):
            types = [ctypes.c_void_p, *[ctypes.c_int] * len(rest)]
            error = ctypes.CFUNCTYPE(ctypes.c_int, *types)(address)(ctypes.addressof(loaded), *rest)
            if error:
                return error
        ctypes.c_uint64.from_address(library).value = loaded.value
        return 0

    def cuda_dialect_unload_library_once(self, library: int, raise_error: int) -> int:
        return 0

    def CuteDSLRT_TVMFFISetRaisedCudaError(self, error: int, text: int) -> int:
        raise RuntimeError(f"the host function returned CUDA error {error}")

    def cudaLibraryGetKernel(self, kernel: int, library: int, name: int) -> int:
        assert self.target is not None
        self.target.kernels.append(ctypes.string_at(name).decode())
        ctypes.c_void_p.from_address(kernel).value = len(self.target.kernels)
        return 0

    def cudaLaunchKernelEx(self, config: int, kernel: int, params: int) -> int:
        assert self.target is not None
        sizes = (ctypes.c_uint32 * 6).from_address(config)
        shared = ctypes.c_uint64.from_address(config + 24).value
        cluster = None
        attributes = ctypes.c_uint64.from_address(config + 40).value
        for i in range(ctypes.c_uint32.from_address(config + 48).value):
            at = attributes + 72 * i
            if ctypes.c_uint32.from_address(at).value == CLUSTER_ATTRIBUTE:
                x, y, z = (ctypes.c_uint32 * 3).from_address(at + 8)
                cluster = (x, y, z) if x and y and z else None
        name = self.target.kernels[kernel - 1]
        block = b""
        for i, (offset, size) in enumerate(self.target.params_of(name)):
            block = block.ljust(offset, b"\0")
            block += ctypes.string_at(ctypes.c_void_p.from_address(params + 8 * i).value or 0, size)
        self.target.launched(
            Launch(name, (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5]), shared, block, cluster)
        )
        return 0


_runtime: _Runtime | None = None


def runtime() -> _Runtime:
    """The stand-ins, made when they are first wanted."""
    global _runtime
    _runtime = _runtime or _Runtime()
    return _runtime


class HostObject:
    """An exported object, loaded: `call` runs its host function and returns the launches that it asked for, in
    order.
    """

    def __init__(self, folder: Path, params_of: Callable[[str], list[tuple[int, int]]]) -> None:
        objects, headers = sorted(folder.glob("*.o")), sorted(folder.glob("*.h"))
        if len(objects) != 1 or len(headers) != 1:
            raise ValueError(f"{folder}: needs one .o and one .h file, has {len(objects)} and {len(headers)}")
        self.interface = read_header(headers[0])
        self.params_of = params_of
        self.kernels: list[str] = []
        self.launches: list[Launch] = []
        self.shared_limit, self.processors = SHARED_LIMIT, PROCESSORS
        runtime()
        machine = target_machine("large")
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.ObjectFileRef.from_path(str(objects[0])))
        self.engine.finalize_object()
        library, error, device = ctypes.c_void_p(0), ctypes.c_int32(0), ctypes.c_int32(0)
        self.library = ctypes.pointer(library)
        self.invoke(f"_mlir_{self.interface.prefix}_cuda_init", [self.library, error])
        self.invoke(f"_mlir_{self.interface.prefix}_cuda_load_to_device", [self.library, device, error])

    def launched(self, launch: Launch) -> None:
        self.launches.append(launch)

    def invoke(self, symbol: str, values: list[Any]) -> None:
        """Calls void f(void **args, int32 n); re-raises what a callback raised."""
        assert _runtime is not None
        address = self.engine.get_function_address(symbol)
        if not address:
            raise ValueError(f"the object has no function {symbol}")
        args = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        _runtime.target, _runtime.error = self, None
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)(address)(ctypes.addressof(args), len(values))
        _runtime.target = None
        if _runtime.error is not None:
            raise _runtime.error

    def call(self, values: list[Any]) -> list[Launch]:
        """Runs the host function on ctypes values, one per argument. Raises RuntimeError when it reports an error."""
        self.launches = []
        result = ctypes.c_int32(0)
        self.invoke(self.interface.function, [*values, result])
        if result.value:
            raise RuntimeError(f"the host function returned CUDA error {result.value}")
        return self.launches


def export(compiled: Any) -> tuple[Path, str]:
    """(folder, PTX) of a compiled CuTe function; the folder is temporary and belongs to the caller.

    Raises ValueError when it was compiled without its PTX being kept (options="--keep-ptx" or CUTE_DSL_KEEP_PTX=1).
    """
    text = compiled.artifacts.PTX if compiled.artifacts is not None else None
    if not text:
        raise ValueError('compiled: its PTX was not kept; compile with options="--keep-ptx" or CUTE_DSL_KEEP_PTX=1')
    folder = Path(tempfile.mkdtemp(prefix="attnfuzz-emulator-"))
    try:
        compiled.export_to_c(file_path=str(folder), file_name="kernel", function_prefix="kernel")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, text if isinstance(text, str) else text.decode()
