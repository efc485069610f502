"""The dtypes with which a session on the emulated GPU draws its cases: of each head dim and way to say a mask, one.

A kernel takes 0.7 s to compile, and a call has two to five. Their constants are the dtype, the padded head dim, the way
to say the mask, whether rows are 16-byte aligned, and the sign of the scale: with all of them free nearly every case
had kernels of its own. A Latin square leaves one dtype in three, so that every pair of constants still occurs.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.targets.kernel_constants import block_of, unaligned
from oracles.masks import Causal, Full
from oracles.problem import AnyProblem, Dtype

FAMILIES = 100  # of `family`, about
_DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")  # six of the sixteen, five, five: the dearest last


def dtype_of(problem: AnyProblem) -> Dtype:
    """The dtype that sessions draw a problem with."""
    return _DTYPES[(block_of(problem) + _said(problem)) % len(_DTYPES)]


def with_fewer_kernels(problem: AnyProblem) -> AnyProblem:
    """The problem in that dtype."""
    return replace(problem, dtype=dtype_of(problem))


def family(case: Case, said: str) -> Hashable:
    """See Target.kernel_family. said: the mask, as the case's options have it."""
    p = case.problem
    scale = 1.0 if p.scale is None else p.scale
    return block_of(p), p.dtype, _said(p), said, scale > 0, unaligned(case)


def _said(problem: AnyProblem) -> int:
    """How the call says the mask: by nothing, by a flag, as a bool tensor, as an additive one."""
    if problem.bias is not None:
        return 3
    if problem.ragged or problem.mask not in (Full(), Causal()):
        return 2
    return int(problem.mask == Causal())
