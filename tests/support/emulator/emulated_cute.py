"""CuTe DSL functions on the emulated GPU, in a process of its own. Prints a JSON object: what each scenario saw."""

import json
import sys

import cutlass
import torch
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

from fuzz.devices.emulator import EmulationError, emulated

THREADS = 128


@cute.kernel
def axpy_kernel(x: cute.Tensor, y: cute.Tensor, a: cutlass.Float32, n: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * THREADS + thread
    if at < n:
        y[at] = a * x[at] + y[at]  # the store of the finding


@cute.jit
def axpy(x: cute.Tensor, y: cute.Tensor, a: cutlass.Float32, n: cutlass.Int32):
    axpy_kernel(x, y, a, n).launch(grid=[(n + THREADS - 1) // THREADS, 1, 1], block=[THREADS, 1, 1])


def compiled(x: torch.Tensor, y: torch.Tensor):
    """The function for vectors of any length."""
    given = [from_dlpack(t, enable_tvm_ffi=True).mark_layout_dynamic() for t in (x, y)]
    return cute.compile(axpy, *given, 2.0, len(x), options="--enable-tvm-ffi")


def main() -> None:
    seen = {}
    x, y = torch.randn(300), torch.randn(300)
    want = 2 * x + y
    with emulated("sm_90a", triton=False) as gpu:
        function = compiled(x, y)
        function(x, y, 2.0, 300)
        seen["axpy"] = {"equal": torch.equal(y, want), "ok": gpu.ok, "launches": len(gpu.reports)}
        shorter = torch.randn(40)
        try:
            function(torch.zeros(64), shorter, 1.0, 41)
        except EmulationError as error:
            seen["out of bounds"] = str(error)
        try:
            function(torch.zeros(64), "no tensor", 1.0, 41)
        except Exception as error:
            seen["wrong argument"] = [type(error).__name__, str(error)]
    try:
        function(x, y, 2.0, 300)
    except RuntimeError as error:
        seen["outside of the block"] = str(error)
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
