"""The dtype with which a session draws its cases: one for each head dim, layout, and whether there is bias or softcap.

A call has two to five kernels, each of which takes one to four seconds to compile; dtypes are among their constants.
"""

from __future__ import annotations

from msgspec.structs import replace

from oracles.problem import AnyProblem

BLOCKS_D = (32, 64, 128, 256)  # kernels.dynamic_mask.config.BLOCKS_D, whose import would be Triton's too


def with_fewer_kernels(problem: AnyProblem) -> AnyProblem:
    """The problem in that dtype."""
    block = next(n for n, block in enumerate(BLOCKS_D) if block >= max(problem.dim, problem.dim_v))
    odd = block + (problem.layout == "packed") + (problem.bias is not None) + (problem.softcap > 0)
    return replace(problem, dtype="float16" if odd % 2 else "bfloat16")
