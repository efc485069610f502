"""Injections into the kernels of a separate dQ, for mutants of kernels.nsa: its selected branch launches them.

They are here, by name, because kernels.blocksparse's builds find the injections of all mutants here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutlass import Constexpr, Float32, Int32, Int64, cute

from kernels.blocksparse.backward.transposed.turns import arrive_empty
from kernels.blocksparse.common.buffers import release
from kernels.blocksparse.spec.injection import Injections
from kernels.blocksparse.spec.variant import Injection
from kernels.mutants.blocksparse.registration import INJECTIONS


def _inject(name: str, steps: dict[str, Callable[..., Any]]) -> None:
    known = f"blocksparse!{name}"
    INJECTIONS[known] = Injections(backward=Injection(known, steps))


@cute.jit
def _other_row(tile: Int64, row: Int32) -> Int64:
    return tile + (row ^ 8)


@cute.jit
def _all_keys(mask_rows: Any, keys_left: Int32) -> None:
    pass


@cute.jit
def _kept(buffers: Any, step: Int32) -> None:
    pass


@cute.jit
def _released(buffers: Any, step: Int32) -> None:
    release(buffers, step)


@cute.jit
def _one(scale: Float32) -> Float32:
    return Float32(1.0)


@cute.jit
def _stage_kept(empty: cute.Pointer, step: Int32, stages: Constexpr) -> None:
    pass


@cute.jit
def _no_barrier(thread: Int32) -> None:
    pass


_inject("dq_statistics_exchanged", {"statistics_row": _other_row})
_inject("dq_tail_keys_not_masked", {"keep_listed_keys": _all_keys})
_inject("dq_keys_released_when_scored", {"release_scored": _released, "release_multiplied": _kept})
_inject("dq_not_scaled", {"dq_factor": _one})
_inject("queries_released_when_scored", {"release_scored_q": arrive_empty, "release_q": _stage_kept})
_inject("sums_added_before_they_are_there", {"await_sums": _no_barrier})
