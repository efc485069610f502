"""A GPU through the C interface of its driver: runs micro-kernels and encodes tensor maps. No toolkit is needed."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np

from fuzz.devices.emulator import tensor_map as tm
from fuzz.devices.emulator.conformance.kernel import THREADS, MicroKernel
from fuzz.devices.emulator.tensor_map import TensorMap

# element types as cuTensorMapEncodeTiled numbers them, by their codes in the PTX ISA
_DRIVERS_ELEMENTS = {tm.F64: 8, tm.BF16: 9, tm.F32_FTZ: 10}
SAFE = ("cuModuleLoadDataEx", "cuModuleGetFunction", "cuTensorMapEncodeTiled")  # that leave the context usable


class ContextLostError(RuntimeError):
    """After this the process cannot use the GPU any more."""


class Gpu:
    """The first GPU."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, device)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(major), 75, device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
        self.name, self.arch = name.value.decode(), f"sm_{major.value}{minor.value}"
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.place = self.memory(256).value  # for maps that no kernel uses

    def call(self, name: str, *args: object) -> None:
        """Raises RuntimeError with the driver's name of the error, ContextLostError where it ends the context."""
        code = getattr(self.cuda, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            error = RuntimeError if name in SAFE else ContextLostError
            raise error(f"{name}: {(text.value or b'?').decode()}")

    def memory(self, size: int) -> ctypes.c_uint64:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(max(size, 16)))
        return at

    def run(self, kernel: MicroKernel) -> np.ndarray:
        """The kernel's answer: uint32 (threads, words). Raises RuntimeError with the driver's message."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(2000)
        options = (ctypes.c_int * 2)(5, 6)  # where errors are written, how much fits
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 2000)
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), kernel.text.encode() + b"\0", 2, options, values)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.value.decode(errors='replace').strip()[:300]}") from None
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        out = np.zeros((kernel.threads, kernel.words), dtype=np.uint32)
        places = []
        for x in [*kernel.inputs, out]:
            places.append(self.memory(x.nbytes))
            given = np.ascontiguousarray(x)
            self.call("cuMemcpyHtoD_v2", places[-1], given.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.nbytes))
        maps = [self._encoded(a.map, places[a.input].value) for a in kernel.maps]
        given_args = [*(m.ctypes.data for m in maps), *(ctypes.addressof(p) for p in places)]
        args = (ctypes.c_void_p * len(given_args))(*given_args)
        block = min(kernel.threads, THREADS)
        self.call("cuLaunchKernel", function, kernel.threads // block, 1, 1, block, 1, 1, 0, None, args, None)
        self.call("cuCtxSynchronize")
        self.call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), places[-1], ctypes.c_size_t(out.nbytes))
        for p in places:
            self.call("cuMemFree_v2", p)
        self.call("cuModuleUnload", module)
        return out

    def encode(self, m: TensorMap) -> bytes:
        """The map as the driver encodes it, its address zero. Raises RuntimeError where the driver refuses it."""
        return bytes(8) + self._encoded(m, self.place).tobytes()[8:]

    def _encoded(self, m: TensorMap, base: int) -> np.ndarray:
        """The 128 bytes of a map of memory at `base`, at a multiple of 64."""
        room = np.zeros(tm.SIZE + 64, np.uint8)
        data = room[-room.ctypes.data % 64 :][: tm.SIZE]
        m = replace(m, address=base + m.address, element_strides=m.element_strides or (1,) * len(m.sizes))
        wide, narrow = (m.sizes, m.strides), (m.box, m.element_strides)
        lists = [np.array([*x, 0], np.uint64) for x in wide] + [np.array([*x, 0], np.uint32) for x in narrow]
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in lists]
        self.call("cuTensorMapEncodeTiled", ctypes.c_void_p(data.ctypes.data),
                  _DRIVERS_ELEMENTS.get(m.element, m.element), len(m.sizes), ctypes.c_void_p(m.address), *pointers,
                  m.interleave, m.swizzle, m.promotion, m.fill)  # fmt: skip
        return data
