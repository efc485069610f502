"""Devices of the bundled block-sparse kernels: a GPU, or one that is emulated; and what connects the kernels to it."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from dataclasses import replace
from typing import Any

import torch

from fuzz.core.target import Device
from fuzz.targets.blocksparse.block_lists import default_variant

# What is compiled where there is no GPU, to be emulated or only to be compiled; $ATTNFUZZ_ARCH for another.
ARCHS: dict[Device, str] = {"emulator": "sm_100a", "host": "sm_100a"}
SLOTS = 4  # resident CTAs of the emulated GPU, where the variant does not say
# The values of the option `warps`, as stored cases have them, and the emulator's names for these schedules. Its option
# `resident_ctas` is `slots` there.
WARP_SCHEDULES = {"in_order": "in_order", "random": "random", "starve_oldest": "oldest_last", "one_first": "greedy"}


def arch_without_gpu(device: Device) -> str:
    """What kernels are compiled for on a machine without a GPU."""
    return os.environ.get("ATTNFUZZ_ARCH") or ARCHS[device]


@functools.cache
def arch_with_gpu() -> str:
    """What kernels are compiled for on this machine's GPU.

    Asked of nvidia-smi: who plans a session opens no device. Raises ValueError where the kernels have no arch for it.
    """
    from fuzz.process.tool import find
    from fuzz.runner.gpu import identity
    from kernels.blocksparse.compile.runtime import arch_for, arch_of

    smi = find("nvidia-smi")
    if smi is not None and not torch.cuda.is_initialized():
        asked = [smi, "-i", identity("cuda:0"), "--query-gpu=compute_cap", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
        if re.fullmatch(r"\d+\.\d+", said):
            major, minor = said.split(".")
            return arch_for(int(major), int(minor))
    return arch_of(torch.device("cuda", torch.cuda.current_device()))


@functools.cache
def emulator_there() -> bool:
    """True if the emulated GPU can be used: what it is made of is installed."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("numba", "llvmlite", "fuzz.devices.emulator.api"))


@functools.cache
def toolchain_there() -> bool:
    """True if the kernels can be compiled."""
    from importlib.util import find_spec

    return find_spec("cutlass") is not None


def connect(device: Device) -> object:
    """Connection of the kernels to the artifact cache, on a GPU or the emulated one. Each call for the emulated one
    makes it the launcher again: a test, or a context, may have set another one.

    What is returned has to be kept, as this module does for a GPU: a context that nobody holds is left.
    """
    from kernels.blocksparse.compile import runtime

    if device == "emulator":
        _emulator_ready()
        runtime.launch_elsewhere(emulated())
        return None
    return _artifacts_for_gpu()


@functools.cache
def _emulator_ready() -> None:
    from fuzz.devices.emulator import ready

    ready()


@functools.cache
def _artifacts_for_gpu() -> object:
    from fuzz.devices.cuda import source
    from kernels.blocksparse.compile import runtime

    entered = runtime.use_source(source)
    entered.__enter__()
    return entered


@functools.cache
def emulated():
    """The emulated GPU that the kernels of this process are launched on."""
    from fuzz.devices.emulated import EmulatedDevice

    return EmulatedDevice(arch_without_gpu("emulator"), emulator_of(default_variant()))


def emulator_of(options: dict[str, Any], repeat: int = 0):
    """The emulated GPU of a variant; from the second repeat on with its warps, and the CTAs' dispatch, at random. Where
    the same bits are promised, the order of every add has to be fixed; with products by tcgen05, every fence and wait
    that the PTX ISA asks for has to be there. The first run looks for races of a warp's lanes too, whose order no
    schedule changes."""
    from fuzz.devices.emulator import Emulator
    from fuzz.devices.emulator.config import AS_WRITTEN, DEFAULT_CHECKS

    checks = DEFAULT_CHECKS | {"unordered_adds"} if options.get("deterministic") else DEFAULT_CHECKS
    if options.get("products") == "tcgen05":
        checks |= {"tensor_fences", "tensor_waits"}
    if not repeat:
        checks |= {"lanes"}
    schedule, seed = WARP_SCHEDULES[str(options.get("warps", "in_order"))], int(options.get("seed", 1))
    resident = int(options.get("slots", SLOTS))
    contraction = str(options.get("contraction", AS_WRITTEN))
    made = Emulator(
        resident_ctas=resident,
        warp_schedule=schedule,
        seed=seed,
        strict=False,
        checks=checks,
        contraction=contraction,
    )
    return replace(made, warp_schedule="random", seed=seed + repeat, dispatch="permuted") if repeat else made
