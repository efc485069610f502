"""Hopper's transposed backward kernel on the emulated GPU, for its tests: variants, runs and what they must say."""

from dataclasses import replace
from functools import cache

import backward_problems
from backward_problems import Spec, errors, make

from fuzz.compiling import obtain
from fuzz.devices.cuda import build_of
from fuzz.devices.emulator import Emulator
from fuzz.devices.emulator.config import ALL_CHECKS
from kernels.blocksparse.backward.tiling import choose_tiling
from kernels.blocksparse.compile.build import build
from kernels.blocksparse.spec.signature import ordered
from kernels.blocksparse.spec.variant import NO_INJECTION, Variant

ARCH = "sm_90a"
WITH_RUNS = (("runs", 1),)


def variant(dim=64, mask="none", **options):
    return Variant(
        **{"kind": "backward", "dtype": "bfloat16", "dim_padded": dim, "mask": mask, "products": "wgmma", **options}
    )


@cache
def loaded(of, injection=NO_INJECTION):
    compiled = build(of, ARCH, injection) if injection.replacements else obtain(build_of(of, ARCH, NO_INJECTION)).folder
    return Emulator(strict=False, checks=ALL_CHECKS).load(compiled)


def run(spec: Spec, injection=NO_INJECTION, compiled=loaded, blocks=None, **emulated):
    """(problem, gradients, reports), with other block lists if given. Where adds are not ordered, their order is no
    finding. As many persistent CTAs are launched as are resident."""
    problem = make(replace(spec, products="wgmma", tile_n=128))
    problem = problem if blocks is None else replace(problem, blocks=blocks)
    checks = ALL_CHECKS if spec.deterministic else ALL_CHECKS - {"unordered_adds"}
    emulated = {"resident_ctas": 3, **emulated}
    emulator = Emulator(strict=False, checks=checks, **emulated)
    reports = []

    def launch(of, values):
        assert of.kind == "preprocess" or choose_tiling(of, ARCH).transposed
        if of.kind == "backward":
            values = {**values, "resident": emulated["resident_ctas"]}
        if not reports or reports[-1].status == "finished":
            reports.append(compiled(of, injection.part(of.kind))(*ordered(of.kind, values), emulator=emulator))

    out, _ = backward_problems.run(problem, launch)
    return problem, out, reports


def checked(spec: Spec, **options):
    """(gradients, reports) of a run in which nothing was found."""
    problem, out, reports = run(spec, **options)
    assert [(r.status, r.findings) for r in reports] == [("finished", [])] * len(reports), "\n".join(map(str, reports))
    found = errors(problem, out)
    assert max(found.values()) <= 1, found
    return out, reports


def check(spec: Spec, **options):
    return checked(spec, **options)[0]


def products_of(report, shape: str) -> int:
    """How many products of a shape, such as "m64n80k16", the kernel has issued."""
    [(source, executed)] = report.executions
    return sum(int(n) for x, n in zip(source, executed, strict=True) if shape in x.text)
