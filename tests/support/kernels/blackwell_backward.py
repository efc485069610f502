"""The backward kernels by tcgen05 on the emulated GPU, with all of its checks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import backward_problems
from backward_problems import Spec, errors, make

from fuzz.compiling import obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION

ARCH = "sm_100a"


@cache
def loaded(of, injection=NO_INJECTION):
    """A kernel for the emulated GPU, with all checks."""
    compiled = build(of, ARCH, injection) if injection.replacements else obtain(build_of(of, ARCH, NO_INJECTION)).folder
    return Emulator(strict=False, checks=ALL_CHECKS).load(compiled)


def run(spec: Spec, injection=NO_INJECTION, prepare=lambda problem: None, tile_n=128, **emulated):
    """(problem, gradients, reports). Where adds are not ordered, their order is no finding. prepare: sets operands;
    tile_n: 256 for pairs of CTAs."""
    problem = make(replace(spec, products="tcgen05", tile_m=128, tile_n=tile_n))
    prepare(problem)
    checks = ALL_CHECKS if spec.deterministic else ALL_CHECKS - {"unordered_adds"}
    emulator = Emulator(strict=False, checks=checks, **{"resident_ctas": 2, **emulated})
    reports = []

    def launch(of, values):
        if not reports or reports[-1].status == "finished":
            reports.append(loaded(of, injection.part(of.kind))(*ordered(of.kind, values), emulator=emulator))

    out, _ = backward_problems.run(problem, launch)
    return problem, out, reports


def check(spec: Spec, **emulated):
    """The gradients, which are right; the emulated GPU finds nothing."""
    problem, out, reports = run(spec, **emulated)
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * len(reports), "\n".join(map(str, reports))
    found = errors(problem, out)
    assert max(found.values()) <= 1, found
    return out
