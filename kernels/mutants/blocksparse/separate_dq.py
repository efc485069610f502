"""Injections into the dQ kernel of kernels.blocksparse, for mutants of kernels.nsa: its selected branch launches it."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.forward.hopper.pipeline import release
from kernels.blocksparse.spec.injection import Injections
from kernels.blocksparse.spec.variant import Injection
from kernels.mutants.blocksparse.registration import INJECTIONS


def _inject(name: str, **steps: Any) -> None:
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


_inject("dq_statistics_exchanged", statistics_row=_other_row)
_inject("dq_tail_keys_not_masked", keep_listed_keys=_all_keys)
_inject("dq_keys_released_when_scored", release_scored=_released, release_multiplied=_kept)
_inject("dq_not_scaled", dq_factor=_one)
