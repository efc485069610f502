"""Tensors whose rows kernels address element by element."""

from __future__ import annotations

from fuzz.core.case import Case
from oracles.problem import AnyProblem

_BYTES = 16
NAMES = ("q", "k", "v", "do")


def unaligned(case: Case) -> frozenset[str]:
    """Names of the case's tensors whose rows are not runs of elements that begin at multiples of 16 bytes."""
    p, inputs = case.problem, case.inputs
    each = _BYTES // p.torch_dtype.itemsize
    found = {name for name, dim in zip(NAMES, _dims(p), strict=True) if dim % each}
    for name in NAMES:
        store = getattr(inputs, name)
        if not store.order.endswith("d") or store.pad % each or store.offset % each:
            found.add(name)
    return frozenset(found if p.backward else found - {"do"})


def _dims(p: AnyProblem) -> tuple[int, int, int, int]:
    return (p.dim, p.dim, p.dim_v, p.dim_v)
