"""Constants that the bundled Triton kernels are compiled for, told of a case without the kernels, whose import would be
Triton's too."""

from __future__ import annotations

from fuzz.core.case import Case
from oracles.problem import AnyProblem

BLOCKS_D = (32, 64, 128, 256)  # those of kernels.sdpa.config and of kernels.dynamic_mask.config
_BYTES = 16


def block_of(problem: AnyProblem) -> int:
    """Number in BLOCKS_D of the block to which the kernels pad the head dims."""
    return next(n for n, block in enumerate(BLOCKS_D) if block >= max(problem.dim, problem.dim_v))


def unaligned(case: Case) -> frozenset[str]:
    """Names of the case's tensors whose rows are not runs of elements that begin at multiples of 16 bytes."""
    p = case.problem
    each = _BYTES // p.torch_dtype.itemsize
    found = set()
    for name, dim in {"q": p.dim, "k": p.dim, "v": p.dim_v, "do": p.dim_v}.items():
        store = getattr(case.inputs, name)
        if dim % each or store.pad % each or store.offset % each or not store.order.endswith("d"):
            found.add(name)
    return frozenset(found if p.backward else found - {"do"})
