"""Runs the block-sparse kernels of a problem, on a GPU or on the emulated one; compiled kernels are kept."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import backward_problems
import torch
from backward_problems import Problem

from fuzz.compiling import obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import Emulator, Report
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.launch.forward import Values
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HOPPER = CUDA and torch.cuda.get_device_capability()[0] == 9
BLACKWELL = CUDA and torch.cuda.get_device_capability()[0] == 10


def ptx_of(variant: Variant, arch: str) -> str:
    """PTX of a kernel, compiled unless the artifact cache has it."""
    return obtain(build_of(variant, arch, NO_INJECTION)).ptx.read_text()


@cache
def loaded(variant: Variant, arch: str = "sm_80", injection: Injection = NO_INJECTION) -> Any:
    """A kernel on the emulated GPU. The artifact cache, which processes share, has those without injected faults."""
    compiled: Path | Any
    if injection.replacements:
        compiled = build(variant, arch, injection)
    else:
        compiled = obtain(build_of(variant, arch, NO_INJECTION)).folder
    return Emulator(resident_ctas=2).load(compiled)


def gradients(
    problem: Problem,
    emulator: Emulator | None = None,
    arch: str = "sm_80",
    injection: Injection = NO_INJECTION,
    anew: str = "",
) -> tuple[dict[str, torch.Tensor], list[Report]]:
    """The three kernels' results; `reports` of those that ran, up to the first that did not finish. anew: the kind of a
    kernel that is traced once more, with functions that a test has replaced."""
    emulator = replace(emulator or Emulator(resident_ctas=4), strict=False)
    reports: list[Report] = []

    def launch(variant: Variant, values: Values) -> None:
        if not reports or reports[-1].status == "finished":
            if variant.kind == anew:
                kernel = emulator.load(build(variant, arch))
            else:
                kernel = loaded(variant, arch, injection.part(variant.kind))
            reports.append(kernel(*ordered(variant.kind, values), emulator=emulator))

    out, _ = backward_problems.run(problem, launch)
    return out, reports


def run_forward(p, injection=NO_INJECTION, arch="sm_80", **persistent):
    """Launch the problem's kernel, for CPU tensors on the emulated GPU, which is then of `arch`, and anything that its
    checks find fails.

    persistent   resident and tile counter of CTAs that take several tiles, as `Problem.values` takes them
    """
    if p.q.is_cuda:
        if injection is NO_INJECTION and not persistent:
            p.run()
        else:
            from kernels.blocksparse.compile import runtime

            runtime.launch(p.variant, p.q.device, p.values(**persistent), injection)
        torch.cuda.synchronize()
        return
    values = p.values(**persistent)
    if values:
        loaded(p.variant, arch, injection)(*ordered(p.variant.kind, values))
