"""Runs the block-sparse kernels of a problem, on a GPU or on the emulated one; compiled kernels are kept."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import backward_problems
import torch
from backward_problems import Problem

from fuzz.devices.emulator import Emulator, Report
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.launch.backward import injection_of
from kernels.blocksparse.launch.forward import Values
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Injection, Variant

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

built = lru_cache(maxsize=None)(build)
_loaded: dict[tuple[Variant, Injection], Any] = {}


def gradients(
    problem: Problem, emulator: Emulator | None = None, arch: str = "sm_80", injection: Injection = NO_INJECTION
) -> tuple[dict[str, torch.Tensor], list[Report]]:
    """The three kernels' results; `reports` of those that ran, up to the first that did not finish."""
    emulator = replace(emulator or Emulator(resident_ctas=4), strict=False)
    reports: list[Report] = []

    def launch(variant: Variant, values: Values) -> None:
        if not reports or reports[-1].status == "finished":
            kernel = emulator.load(built(variant, arch, injection_of(injection, variant.kind)))
            reports.append(kernel(*ordered(variant.kind, values)))

    out, _ = backward_problems.run(problem, launch)
    return out, reports


def run_forward(p, injection=NO_INJECTION):
    """Launch the problem's kernel; on the emulated GPU anything that its checks find fails."""
    if DEVICE == "cuda":
        if injection is NO_INJECTION:
            p.run()
        else:
            from kernels.blocksparse.compile import runtime

            runtime.launch(p.variant, p.q.device, p.values(), injection)
        torch.cuda.synchronize()
        return
    key = p.variant, injection
    if key not in _loaded:
        _loaded[key] = Emulator(resident_ctas=2).load(built(p.variant, "sm_80", injection))
    values = p.values()
    if values:
        _loaded[key](*ordered(p.variant.kind, values))
