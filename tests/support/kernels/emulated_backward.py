"""Backward problems on the emulated GPU, with a number of resident CTAs; anything that its checks find fails."""

from __future__ import annotations

import backward_problems
from backward_problems import Problem
from torch import Tensor

from fuzz.compiling import obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.launch.forward import EMULATED, Values
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Variant

ARCHS = {"mma": "sm_80", "wgmma": "sm_90a", "tcgen05": "sm_100a", None: "sm_80"}


def emulated(problem: Problem, resident: int, warps: str) -> dict[str, Tensor]:
    """The gradients, with so many resident CTAs, persistent ones too, dispatched in another order than theirs. Where
    adds are atomic their order is not a finding."""
    checks = ALL_CHECKS if problem.spec.deterministic else ALL_CHECKS - {"unordered_adds"}
    emulator = Emulator(checks=checks, resident_ctas=resident, warp_schedule=warps, dispatch="permuted", seed=1)

    def launch(variant: Variant, values: Values) -> None:
        if values.get("resident") == EMULATED:
            values = {**values, "resident": resident}
        function = emulator.load(obtain(build_of(variant, ARCHS[problem.spec.products], NO_INJECTION)).folder)
        report = function(*ordered(variant.kind, values))
        assert (report.status, report.findings) == ("finished", [])

    return backward_problems.run(problem, launch)[0]
