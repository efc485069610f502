"""Mutants of the dQ kernel of kernels.blocksparse, which the backward pass of the selected branch launches on Hopper.

Only a Hopper GPU shows them through `kernels.nsa`; tests launch the kernel by itself on the emulated GPU.
"""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.forward.hopper.pipeline import release
from kernels.blocksparse.spec.variant import Injection
from kernels.mutants.nsa.registration import register_mutant


@cute.jit
def _other_row(tile: Int64, row: Int32) -> Int64:
    return tile + (row ^ 8)


register_mutant(
    "dq_statistics_exchanged",
    "Separate dQ of the selected branch, on Hopper: the two rows that a thread has of a product get each other's LSE "
    "and delta.",
    "FlashAttention-4 b3f1b6a5: a wrong index of LSE and delta",
    attention_backward=Injection("nsa!dq_statistics_exchanged", {"statistics_row": _other_row}),
)


@cute.jit
def _all_keys(mask_rows: Any, keys_left: Int32) -> None:
    pass


register_mutant(
    "dq_tail_keys_not_masked",
    "Separate dQ of the selected branch, on Hopper: keys past the end, which are zeros, count with score 0: no number "
    "where all other scores are very low.",
    "HSTU block masks: a KV tile that is cut off at the end was called full",
    attention_backward=Injection("nsa!dq_tail_keys_not_masked", {"keep_listed_keys": _all_keys}),
)


@cute.jit
def _kept(buffers: Any, step: Int32) -> None:
    pass


@cute.jit
def _released(buffers: Any, step: Int32) -> None:
    release(buffers, step)


register_mutant(
    "dq_keys_released_when_scored",
    "Separate dQ of the selected branch, on Hopper: a stage of K is loaded anew when the scores are there, while dQ's "
    "product is still to read it.",
    "invented, after FlashAttention-3's pipelines, in which each stage is read by one product",
    attention_backward=Injection(
        "nsa!dq_keys_released_when_scored", {"release_scored": _released, "release_multiplied": _kept}
    ),
)


@cute.jit
def _one(scale: Float32) -> Float32:
    return Float32(1.0)


register_mutant(
    "dq_not_scaled",
    "Separate dQ of the selected branch, on Hopper: dQ lacks the scale that dK has.",
    "FlagGems SDPA backward: dk *= scale and dq *= ln 2, each on a line of its own",
    attention_backward=Injection("nsa!dq_not_scaled", {"dq_factor": _one}),
)
