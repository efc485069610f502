"""Mutants of `kernels.dynamic_mask`: each replaces one step, written as it was written in a project, or as it might be.

Importing this file registers those of machine.py too.
"""

import triton
import triton.language as tl

from kernels.dynamic_mask.tiles import BITS, plane_pointers
from kernels.mutants import steps
from kernels.mutants.dynamic_mask import machine  # noqa: F401
from kernels.mutants.dynamic_mask.registration import MUTANTS, register_mutant

__all__ = ["MUTANTS"]


@triton.jit
def _carried_over(rMask, before):
    return (tl.max(tl.max((rMask != 0).to(tl.int32), 1), 0) != 0) & before


register_mutant(
    "flag_carried_over",
    "The flag of a tile without a key is carried over: all later ones that a program looks at are skipped too.",
    "flash-dmattn 801e816: any_active_next began as any_active instead of false",
    any_key_forward=_carried_over,
    any_key_backward=_carried_over,
)

register_mutant(
    "flag_carried_over_in_backward",
    "The same in backward alone: O is right, gradients lack what later tiles add.",
    "flash-dmattn 801e816: any_active_next began as any_active instead of false",
    any_key_backward=_carried_over,
)


@triton.jit
def _of_the_first_warp(rMask, before):
    rows = tl.max((rMask != 0).to(tl.int32), 1)
    return tl.sum(tl.where(tl.arange(0, rows.shape[0]) < rows.shape[0] // 4, rows, 0), 0) != 0


register_mutant(
    "flag_of_the_first_warp",
    "Whether a tile has a key is said by the rows of its first warp alone: a tile of few keys is skipped.",
    "flash-dmattn 801e816: any_active of each thread, before __syncthreads_or",
    any_key_forward=_of_the_first_warp,
    any_key_backward=_of_the_first_warp,
)


@triton.jit
def _always(rMask, before):
    return tl.max(tl.max((rMask != 0).to(tl.int32), 1), 0) >= 0


register_mutant(
    "never_skips",
    "Forward visits every tile: all answers are right, and empty tiles cost as much as others.",
    "invented, after masks whose empty tiles are found, and multiplied all the same",
    any_key_forward=_always,
)


register_mutant(
    "dq_scaled_twice",
    "dQ is multiplied by the scale twice: wrong unless the scale is 0 or 1.",
    "flash-dmattn 4291d01, c49dead: dQ from a K that is scaled already, and scaled again",
    finish_dq=steps.scaled_twice,
)


@triton.jit
def _last_head(head_kv, heads_q, heads_kv):
    group = heads_q // heads_kv
    return head_kv * group + group - 1, group // group


register_mutant(
    "group_updates_lost",
    "dK and dV are those of the last query head of a group: wrong where query heads share a KV head.",
    "flash-dmattn 4fe748e, caa4335: several query heads store to the same dK and dV",
    heads_of=_last_head,
)

register_mutant(
    "row_state_of_kv_heads",
    "LSE and delta are prepared for as many heads as there are KV heads: those of the others are what memory held.",
    "flash-dmattn d734df9: the backward preprocess takes the KV heads for its offsets",
    state_heads=lambda heads_q, heads_kv: heads_kv,
)


@triton.jit
def _first_batch(first, batches, bias_batches):
    return first, first + tl.minimum(batches - first, 1)


register_mutant(
    "dbias_of_one_sequence",
    "The gradient of a bias that all sequences share is the first one's.",
    "flash-dmattn 9181f70, a5b4cb7, ca66b6c: the gradient of a bias that a batch shares",
    shared_batches=_first_batch,
)


@triton.jit
def _first_head(first, bias_share):
    return first * bias_share, first * bias_share + 1


register_mutant(
    "dbias_of_one_head",
    "The gradient of a bias that query heads share is that of the first of them.",
    "flash-dmattn 9181f70, a5b4cb7, ca66b6c: head groups of a bias, not accumulated",
    shared_heads=_first_head,
)


register_mutant(
    "dbias_not_summed",
    "The gradient of a bias that is broadcast over rows or columns is that of one row or column in 64.",
    "flash-dmattn 9181f70, a5b4cb7, ca66b6c: the gradient of a broadcast bias, reduced over wrong axes or not at all",
    sum_of_shared=steps.not_summed,
)


register_mutant(
    "dbias_of_one_row_not_summed",
    "The gradient of a bias with one row is that of the first sequence and KV head of those that share it.",
    "flash-dmattn 1cca349: dimensions reused from the query",
    shared_sum=lambda sums, shape: sums[: shape[0], : shape[1], None],
)

register_mutant(
    "dbias_of_one_part",
    "Of the programs that share a tile of keys only the first one's sums are taken.",
    "invented, after the sums of split tiles",
    sum_of_parts=lambda parts: parts[0],
)

register_mutant(
    "mask_strides_kept",
    "A mask's dimensions of size 1 keep their strides: other sequences, heads or rows read beside it.",
    "flash-dmattn 9181f70: sizes reused from q; FlashAttention-4 04e6ee1f: broadcast dimensions and their stride 0",
    mask_strides=lambda mask: tuple(mask.stride()),
)


@triton.jit
def _unpredicated(
    mask,
    place,
    m_start,
    n_start,
    MASK: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    m = m_start + tl.arange(0, TILE_M)[:, None]
    if MASK == "bits":
        column = n_start // BITS + tl.arange(0, TILE_N // BITS)[None, :]
    else:
        column = n_start + tl.arange(0, TILE_N)[None, :]
    mTile = plane_pointers(mask, place, m, column, TILE_N, False)
    return tl.load(mTile, mask=(m < place[2]) & (column * 0 + n_start < place[3]), other=0)


register_mutant(
    "mask_tail_read",
    "A mask's last tile of keys is read whole, though no answer shows it: beyond the last row lies another tensor.",
    "flash-dmattn 8a3bb04, e6168c0, c3b93bc, 1cca349: vectorised copies past the edge, neither predicated nor cleared",
    load_mask=_unpredicated,
)


register_mutant(
    "delta_missing",
    "dS = P dP, without delta: dV is right, dQ, dK and dBias are wrong.",
    "invented, after FlashAttention-4 4460ebbc: the kernel reads delta before it is there",
    score_gradient=steps.without_delta,
)


register_mutant(
    "kv_head_modulo",
    "Query heads take KV heads round-robin instead of in groups: wrong wherever 1 < heads_kv < heads_q.",
    "FlagGems 33e4cda7: kv_head_id = off_hz % kv_numhead",
    kv_head_of=steps.kv_head_modulo,
)


register_mutant(
    "unmasked_row_statistics",
    "LSE is stored without the row mask: rows beyond a sequence land in the next head's, or the next sequence's.",
    "FlagGems pull request on SDPA backward, August 2025: tl.store(m_ptrs, m_i)",
    store_lse=steps.lse_unmasked,
)

register_mutant(
    "dbias_without_a_bias",
    "Backward answers with a gradient of a bias that there is none of.",
    "flash-dmattn 6b855d2: a gradient of the bias is returned where the bias is None",
    bias_is_answered=lambda wanted: True,
)

register_mutant(
    "lse_gradient_dropped",
    "The gradient of LSE is not added: wrong where O and LSE of several calls are put together.",
    "invented, after the survivors of one-line changes in sessions that gave LSE no gradient",
    lse_gradient=lambda grad_lse: None,
)
