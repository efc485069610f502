"""The dtype with which a session draws its cases: one for each head dim, layout, and whether there is bias or softcap.

A call has two to five kernels, each of which takes one to four seconds to compile; dtypes are among their constants.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.targets.dynamic_mask.call import OPTIONS, by_a_flag
from fuzz.targets.unaligned import unaligned
from oracles.problem import AnyProblem

FAMILIES = 150  # of `family`, about
BLOCKS_D = (32, 64, 128, 256)  # kernels.dynamic_mask.config.BLOCKS_D, whose import would be Triton's too


def with_fewer_kernels(problem: AnyProblem) -> AnyProblem:
    """The problem in that dtype."""
    odd = _block(problem) + (problem.layout == "packed") + (problem.bias is not None) + (problem.softcap > 0)
    return replace(problem, dtype="float16" if odd % 2 else "bfloat16")


def family(case: Case) -> Hashable:
    """See Target.kernel_family. Of the mask and the bias: which tensor says them. A call for each sequence has a kernel
    for each way in which lengths divide strides."""
    p, given = case.problem, OPTIONS.of(case)
    said = given["mask"] if given["mask"] in ("bool", "bits") or not by_a_flag(p) else "flag"
    bias = p.bias and p.bias.rows
    return _block(p), p.dtype, p.layout, said, bias, p.softcap > 0, bool(unaligned(case)), given["sequences"]


def _block(problem: AnyProblem) -> int:
    return next(n for n, block in enumerate(BLOCKS_D) if block >= max(problem.dim, problem.dim_v))
