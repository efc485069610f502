"""Runs the emulator's micro-kernels on a GPU and writes what it answers to ci/results/ptx_<arch>.npz and .json.

    python ci/emulator_vs_gpu.py            on a machine with an NVIDIA GPU and its driver; needs numpy and llvmlite
    only python ci/emulator_vs_gpu.py --compare  then also runs the emulator and prints where they differ

The driver compiles the PTX itself, so no toolkit is needed. A form that the GPU's driver refuses is listed with its
message. tests/fuzz/devices/emulator/test_micro_kernels.py holds the emulator to the committed results.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.devices.emulator import micro_kernels

KEPT = 256  # threads of each form whose answers are kept word for word; the rest is in the fingerprint


class Gpu:
    """The first GPU, through the driver's C interface."""

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

    def call(self, name: str, *args: object) -> None:
        code = getattr(self.cuda, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def memory(self, size: int) -> ctypes.c_uint64:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(max(size, 16)))
        return at

    def run(self, kernel: micro_kernels.MicroKernel) -> np.ndarray:
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
        args = (ctypes.c_void_p * len(places))(*[ctypes.addressof(p) for p in places])
        block = min(kernel.threads, micro_kernels.THREADS)
        self.call("cuLaunchKernel", function, kernel.threads // block, 1, 1, block, 1, 1, 0, None, args, None)
        self.call("cuCtxSynchronize")
        self.call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), places[-1], ctypes.c_size_t(out.nbytes))
        for p in places:
            self.call("cuMemFree_v2", p)
        self.call("cuModuleUnload", module)
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    gpu = Gpu()
    start = time.time()
    kept: dict[str, np.ndarray] = {}
    forms: dict[str, object] = {}
    differ = 0
    for kernel in micro_kernels.all_kernels():
        try:
            answer = gpu.run(kernel)
        except RuntimeError as error:
            forms[kernel.form] = {"refused": str(error)}
            if "ILLEGAL" in str(error) or "LAUNCH" in str(error) or "MISALIGNED" in str(error):
                raise  # the context is lost
            continue
        forms[kernel.form] = micro_kernels.digest(answer)
        kept[kernel.form] = answer[:KEPT]
        if options.compare:
            ours = micro_kernels.emulate(kernel)
            wrong = np.argwhere((ours != answer).any(1))[:, 0]
            if len(wrong):
                differ += kernel.exact
                i = int(wrong[0])
                given = [f"{int(x[i].reshape(-1)[0]):#x}" for x in kernel.inputs]
                print(f"{'' if kernel.exact else '(approximate) '}{kernel.form}: {len(wrong)} of {len(answer)} differ; "
                      f"{given} gives {[hex(v) for v in answer[i]]}, emulated {[hex(v) for v in ours[i]]}")  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"ptx_{gpu.arch}"
    np.savez_compressed(path.with_suffix(".npz"), **kept)
    about = {"gpu": gpu.name, "arch": gpu.arch, "seconds": round(time.time() - start, 1), "forms": forms}
    path.with_suffix(".json").write_text(json.dumps(about, indent=0, sort_keys=True) + "\n")
    refused = sum(isinstance(v, dict) for v in forms.values())
    print(
        f"{gpu.name}: {len(forms)} forms, {refused} refused, {path}.npz {path.with_suffix('.npz').stat().st_size} bytes"
    )
    if options.compare:
        print(f"{differ} exact forms differ")


if __name__ == "__main__":
    main()
