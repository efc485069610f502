"""Compiled functions, one per process, variant, arch and injection, and calling them with little overhead.

A compiled function is a C function of one array of addresses, one per argument in the order of spec/signature.py, then
the stream, then its int32 result. Packing the values into one buffer per thread makes a call cost microseconds on the
host. Where functions come from can be replaced (`use_source`), for example by artifacts that were compiled elsewhere.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kernels.blocksparse.spec.signature import ARGUMENTS, ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant, build_name

Source = Callable[[Variant, str, Injection], Any]
# Launches on tensors that are not on a CUDA device: (variant, values of its signature, injection).
Elsewhere = Callable[[Variant, Sequence["torch.Tensor | int | float"], Injection], None]

_NUMBERS = (int, float)
_FORMATS = {"int32": "i4x", "int64": "q", "float32": "f4x"}


def compile_source(variant: Variant, arch: str, injection: Injection) -> Any:
    """The default source: compile here and now."""
    from kernels.blocksparse.compile.build import build

    return build(variant, arch, injection)


def artifact_source(folder: str | Path) -> Source:
    """Loads what `compile.export` wrote into `folder`; FileNotFoundError for a build that is not there."""

    def load(variant: Variant, arch: str, injection: Injection) -> Any:
        from cutlass import cute

        name = build_name(variant, arch, injection)
        path = Path(folder) / f"{name}.o"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such build; export it with kernels.blocksparse.compile.build.export")
        return cute.runtime.load_module(str(path))[name]

    return load


_source: Source = compile_source
_elsewhere: Elsewhere | None = None
_functions: dict[tuple[Variant, str, Injection], Function] = {}
_lock = threading.Lock()


def launch_elsewhere(call: Elsewhere | None) -> None:
    """The launcher for tensors of other devices than CUDA's, an emulated GPU for example; None: there is none."""
    global _elsewhere
    _elsewhere = call


@contextmanager
def use_source(source: Source) -> Iterator[None]:
    """Take compiled functions from `source` inside the with block; those of other sources are forgotten around it."""
    global _source
    with _lock:
        before, _source = _source, source
        kept = dict(_functions)
        _functions.clear()
    try:
        yield
    finally:
        with _lock:
            _source = before
            _functions.clear()
            _functions.update(kept)


def function(variant: Variant, arch: str, injection: Injection = NO_INJECTION) -> Function:
    """The compiled function of a variant, built or loaded once per process."""
    key = (variant, arch, injection)
    loaded = _functions.get(key)
    if loaded is None:
        with _lock:
            loaded = _functions.get(key)
            if loaded is None:
                loaded = _functions[key] = Function(_source(variant, arch, injection), variant)
    return loaded


class Function:
    """A compiled function that is called with plain numbers: addresses, integers and floats, and a stream's handle."""

    def __init__(self, compiled: Any, variant: Variant) -> None:
        self.compiled = compiled
        signature = ARGUMENTS[variant.kind]
        self._struct = struct.Struct("<" + "".join(_FORMATS.get(kind, "Q") for _, kind in signature) + "Q")
        self._count = len(signature) + 1
        self._executor: Any = None
        self._local = threading.local()

    def __call__(self, *values: int | float) -> None:
        """Launch with the signature's values and, last, the stream's handle. Raises RuntimeError with CUDA's code."""
        local = self._local
        if not hasattr(local, "packed"):
            self._prepare(local)
        self._struct.pack_into(local.values, 0, *values)
        self._executor.capi_func(local.packed)
        if local.result.value:
            raise RuntimeError(f"launching the block-sparse kernel failed with CUDA error {local.result.value}")

    def load(self) -> None:
        """Load it into the current device now; the first call does so otherwise, at a cost of up to a second."""
        if self._executor is None:
            self._executor = self.compiled.to(None)

    def _prepare(self, local: threading.local) -> None:
        self.load()
        local.values = ctypes.create_string_buffer(8 * self._count)
        local.result = ctypes.c_int32(0)
        start = ctypes.addressof(local.values)
        addresses = [start + 8 * i for i in range(self._count)] + [ctypes.addressof(local.result)]
        local.packed = (ctypes.c_void_p * len(addresses))(*addresses)


@lru_cache
def arch_of(device: torch.device) -> str:
    """The arch to build for on a CUDA device. Raises ValueError where these kernels have none."""
    return arch_for(*torch.cuda.get_device_capability(device))


def arch_for(major: int, minor: int) -> str:
    """The arch to build for at a compute capability. Raises ValueError where these kernels have none."""
    arch = {8: "sm_80", 9: "sm_90a", 12: "sm_120a"}.get(major)
    if major == 10:
        arch = {0: "sm_100a", 3: "sm_103a"}.get(minor)
    if arch is None:
        raise ValueError(f"compute capability {major}.{minor}: the kernels need 8.x, 9.0, 10.0, 10.3 or 12.x")
    return arch


def launch(
    variant: Variant,
    device: torch.device,
    values: Mapping[str, torch.Tensor | int | float],
    injection: Injection = NO_INJECTION,
) -> None:
    """Call a variant's function on `device` and its current stream. values: by the names of its signature; tensors
    stand for their addresses.

    Raises ValueError for values that are missing or unknown, and for tensors that are not on a CUDA device, unless
    `launch_elsewhere` set a launcher for them.
    """
    in_order = ordered(variant.kind, values)
    if device.type != "cuda":
        if _elsewhere is None:
            raise ValueError(f"q: needs a CUDA device, got one on {device}")
        _elsewhere(variant, in_order, injection)
        return
    # isinstance of Tensor is slow
    numbers = [value if type(value) in _NUMBERS else value.data_ptr() for value in in_order]  # type: ignore[union-attr]
    index = device.index if device.index is not None else torch.cuda.current_device()
    stream = torch.cuda.current_stream(index).cuda_stream
    if index == torch.cuda.current_device():
        function(variant, arch_of(torch.device("cuda", index)), injection)(*numbers, stream)  # type: ignore[arg-type]
    else:
        with torch.cuda.device(index):
            function(variant, arch_of(torch.device("cuda", index)), injection)(*numbers, stream)  # type: ignore[arg-type]
