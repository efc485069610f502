"""The question if this machine has a CUDA device, asked without PyTorch."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

_COUNT = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
    print(count.value)
"""


def cuda_present() -> bool:
    """True if a CUDA device is there, and this PyTorch can use it. A process of its own asks the driver: one that has
    asked cannot be forked into processes that use it, as a session's workers are, and PyTorch asks where NVML gives no
    answer."""
    import torch

    return torch.version.cuda is not None and _answer()


@functools.cache
def ask() -> subprocess.Popen[bytes] | None:
    """Asks the driver, and does not wait for the answer: a process calls it before its imports, which take longer. None
    where CUDA_VISIBLE_DEVICES hides all devices."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    command = [sys.executable, "-I", "-S", "-c", _COUNT]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


@functools.cache
def _answer() -> bool:
    asked = ask()
    return asked is not None and asked.communicate(timeout=60)[0].strip() not in (b"", b"0")
