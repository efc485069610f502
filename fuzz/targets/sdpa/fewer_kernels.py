"""The dtypes with which a session on the emulated GPU draws its cases: of each head dim and way to say a mask, one.

A kernel takes 0.7 s to compile, and a call has two to five. Their constants are the dtype, the padded head dim, the way
to say the mask, whether rows are 16-byte aligned, and the sign of the scale: with all of them free nearly every case
had kernels of its own. A Latin square leaves one dtype in three, so that every pair of constants still occurs.
"""

from __future__ import annotations

from msgspec.structs import replace

from oracles.masks import Causal, Full
from oracles.problem import AnyProblem, Dtype

BLOCKS_D = (32, 64, 128, 256)  # kernels.sdpa.config.BLOCKS_D, whose import would be Triton's too
_DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")  # six of the sixteen, five, five: the dearest last


def dtype_of(problem: AnyProblem) -> Dtype:
    """The dtype that sessions draw a problem with."""
    block = next(n for n, block in enumerate(BLOCKS_D) if block >= max(problem.dim, problem.dim_v))
    return _DTYPES[(block + _said(problem)) % len(_DTYPES)]


def with_fewer_kernels(problem: AnyProblem) -> AnyProblem:
    """The problem in that dtype."""
    return replace(problem, dtype=dtype_of(problem))


def _said(problem: AnyProblem) -> int:
    """How the call says the mask: by nothing, by a flag, as a bool tensor, as an additive one."""
    if problem.bias is not None:
        return 3
    if problem.ragged or problem.mask not in (Full(), Causal()):
        return 2
    return int(problem.mask == Causal())
