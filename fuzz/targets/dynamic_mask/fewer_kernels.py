"""The dtype with which a session draws its cases: one for each head dim, layout, and whether there is bias or softcap.

A call has two to five kernels, each of which takes one to four seconds to compile; dtypes are among their constants.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.targets.dynamic_mask.call import OPTIONS, by_a_flag
from fuzz.targets.kernel_constants import block_of, unaligned
from oracles.problem import AnyProblem

FAMILIES = 150  # of `family`, about


def with_fewer_kernels(problem: AnyProblem) -> AnyProblem:
    """The problem in that dtype."""
    odd = block_of(problem) + (problem.layout == "packed") + (problem.bias is not None) + (problem.softcap > 0)
    return replace(problem, dtype="float16" if odd % 2 else "bfloat16")


def family(case: Case) -> Hashable:
    """See Target.kernel_family. Where each sequence has a call of its own, its length decides whether its mask is
    aligned."""
    p, given = case.problem, OPTIONS.of(case)
    said = given["mask"] if given["mask"] in ("bool", "bits") or not by_a_flag(p) else "flag"
    bias = p.bias and p.bias.rows
    return block_of(p), p.dtype, p.layout, said, bias, p.softcap > 0, bool(unaligned(case)), given["sequences"]
