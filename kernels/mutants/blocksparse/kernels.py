"""Mutants of the numbers that the kernels of `kernels.blocksparse` compute, and of whose rows they take them from.
Each is compiled for each variant that it is looked for in."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernels.blocksparse.backward.tile_iterator import Block, Counts, Lists, Order
from kernels.mutants.blocksparse.registration import register_mutant


def _log2(value: Float32) -> Any:
    return cute.math.log2(value, fastmath=True)  # type: ignore[attr-defined]


# Forward


@cute.jit
def _kv_head_modulo(head: Int32, heads_q: Int32, heads_kv: Int32) -> Int32:
    return head % heads_kv


register_mutant(
    "kv_head_modulo",
    "Forward: query heads take KV heads round-robin instead of in groups.",
    "FlagGems 33e4cda7: kv_head_id = off_hz % kv_numhead",
    forward={"kv_head_of": _kv_head_modulo},
)


@cute.jit
def _lse_in_log2(reference: Float32, total: Float32) -> Float32:
    return reference + _log2(total)


register_mutant(
    "lse_in_log2",
    "LSE is the logarithm to base 2: O is right, LSE and all gradients are wrong.",
    "FlagGems SDPA keeps M = m + log2(l); invented that another kernel reads it",
    forward={"lse_of": _lse_in_log2},
)


@cute.jit
def _lse_without_reference(reference: Float32, total: Float32) -> Float32:
    return _log2(total) * Float32(0.6931471805599453)


register_mutant(
    "lse_without_maximum",
    "LSE is the logarithm of the sum alone, without the maximum that the sum is relative to.",
    "invented, after what FlashAttention's tests leave out: LSE is compared nowhere in its main matrix",
    forward={"lse_of": _lse_without_reference},
)


@cute.jit
def _always_inverted(total: Float32) -> Float32:
    return cute.arch.rcp_approx(total)


register_mutant(
    "empty_rows_divided_by_zero",
    "O of rows without keys is 0 / 0.",
    "NVIDIA cudnn-frontend issue 676: NaN on padded rows and rows without keys",
    forward={"inverse_of": _always_inverted},
)


@cute.jit
def _as_it_is(reference: Float32) -> Float32:
    return reference


register_mutant(
    "nothing_seen_yet_is_nan",
    "A row whose first step of keys is masked whole is NaN: -inf is subtracted from -inf.",
    "NVIDIA cudnn-frontend issue 676; FlashAttention-4's reference, whose gradients of such rows are NaN",
    forward={"finite": _as_it_is},
)


@cute.jit
def _words_kept(mask_rows) -> None:
    pass


register_mutant(
    "mask_carried_over",
    "Where a full block crosses the end of the keys, it is masked by the words of the block before it.",
    "flash-dmattn: any_active_next starts with the value of the tile before",
    forward={"allow_all": _words_kept},
)

# Backward


def _slope_of_one(capped: Any) -> Any:
    return capped * 0.0 + 1.0


register_mutant(
    "softcap_slope_missing",
    "Gradients under a soft cap lack the slope of tanh.",
    "FlashAttention-4 14f3627d, 9192248e: the formula of the soft cap's backward pass, and when it is used",
    backward={"slope_of": _slope_of_one},
)


def _slope_not_squared(capped: Any) -> Any:
    return 1.0 - capped


register_mutant(
    "softcap_slope_not_squared",
    "The slope of tanh is taken for 1 - tanh.",
    "FlashAttention-4 14f3627d: the formula of the soft cap's backward pass",
    backward={"slope_of": _slope_not_squared},
)


@cute.jit
def _delta_added(delta: Float32) -> Any:
    return delta


register_mutant(
    "delta_added",
    "dS = P (dP + delta): dV is right, dQ and dK are wrong.",
    "invented, after the sign of dPsum in FlashAttention's backward pass",
    backward={"start_of": _delta_added},
)


@cute.jit
def _one(scale: Float32) -> Float32:
    return Float32(1.0)


register_mutant(
    "dk_not_scaled",
    "dK lacks the scale that dQ has: wrong unless the scale is 1.",
    "FlagGems SDPA backward: dk *= scale and dq *= ln 2, each on a line of its own",
    backward={"dk_factor": _one},
)


@cute.jit
def _of_one_head(lists: Lists, batch: Int32, n_block: Int32, first_head: Int32, group: Int32) -> Int32:
    partials, _ = lists.partial.row(batch, first_head, n_block)
    fulls, _ = lists.full.row(batch, first_head, n_block)
    return partials + fulls


register_mutant(
    "first_head_of_a_group_alone",
    "dK and dV get what the first query head of a group adds; the others' share is lost, and their dQ too.",
    "flash-dmattn 4fe748e, caa4335: updates of query heads that share a KV head are lost",
    backward={"entries": _of_one_head},
)


@cute.jit
def _of_kv_heads(order: Order, counts: Counts, batch: Int32, block: Block) -> cute.Pointer:
    head = batch * counts.heads_kv + block.head // counts.group
    return order.semaphores + (Int64(head) * counts.m_blocks + block.m_block)


register_mutant(
    "semaphore_of_kv_heads",
    "Query heads that share a KV head share semaphores: releases are counted together, and most locks never come up.",
    "FlashAttention-4 20cda05e: the semaphores' layout in the first deterministic backward pass",
    backward={"semaphore": _of_kv_heads},
)


@cute.jit
def _first_step(step: Int32, step_m: cutlass.Constexpr) -> Int32:
    return Int32(0)


register_mutant(
    "mask_of_the_first_step",
    "Where a block of queries is worked through in two steps, the second is masked as the first.",
    "FlashAttention-4 bba578d4: a wrong mask where a tile of queries ends",
    backward={"row_of_step": _first_step},
)
