"""Fewer kernels to compile: problems changed so that sessions draw few kernels' head dims, each with one dtype.

Padded and packed calls share kernels, whose offset of a batch entry shows in padded ones alone: so both layouts have
the same dtype."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from msgspec.structs import replace

from fuzz.core.case import Case
from fuzz.core.target import DEAR
from oracles.native_sparse.problem import NativeSparse

FAMILIES = 50  # of `family`, about
EMULATED_DIMS = (32, 64, 128)
PADDED_DIMS = (8, 16, 24, 40, 48, 56)  # whose kernels are those of the next of EMULATED_DIMS
GPU_DIMS = (16, 32, 64, 96, 128, 256)


def with_fewer_kernels(problem: Any, dims: tuple[int, ...], padded: tuple[int, ...] = ()) -> Any:
    """The problem with the next of `dims`, whose place decides the dtype, and tiles of 64 or 128 queries. padded: head
    dims that stay, since kernels pad them to the next of `dims`."""
    dim = next((dim for dim in dims if problem.dim <= dim), dims[-1])
    tile = 64 if problem.q_tile % 128 else 128
    return replace(
        problem,
        dim=problem.dim if problem.dim in padded else dim,
        q_tile=tile,
        dtype="float16" if dims.index(dim) % 2 else "bfloat16",
    )


def family(case: Case, *, runs: bool, deterministic: bool) -> Hashable:
    """See Target.kernel_family. A case that makes lists alone compiles sixty kernels, those of all masks."""
    p = case.problem
    assert isinstance(p, NativeSparse)
    dim = next(dim for dim in EMULATED_DIMS if p.dim <= dim)
    return (dim, p.q_tile, p.layout, p.causal, deterministic) if runs else DEAR
