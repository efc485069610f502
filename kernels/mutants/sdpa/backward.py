"""Mutants of the dense kernel's backward pass: dS, scales, groups of query heads, the rows' state, the gradient of
a mask."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.mutants import steps
from kernels.mutants.sdpa.registration import register_mutant
from kernels.sdpa.tiles import round_to, widen


@triton.jit
def _after_the_diagonal(n_start, TILE_M: tl.constexpr, CAUSAL: tl.constexpr):
    first = 0
    if CAUSAL:
        first = (n_start // TILE_M + 1) * TILE_M
    return first


register_mutant(
    "diagonal_tile_skipped",
    "dK and dV start after the tile of queries on the diagonal: causal gradients miss it, O and dQ are right.",
    "Meta's NSA, a causal tile bound of i instead of i + 1 tiles; FlashAttention-4 bba578d4",
    first_query=_after_the_diagonal,
)


register_mutant(
    "delta_missing",
    "dS = P dP, without delta: dV is right, dQ and dK are wrong.",
    "invented, after FlashAttention-4 4460ebbc: the kernel reads delta before it is there",
    score_gradient=steps.without_delta,
)


@triton.jit
def _dk_not_scaled(rdK, scale):
    return rdK


register_mutant(
    "dk_not_scaled",
    "dK lacks the scale that dQ has: wrong unless the scale is 1.",
    "FlagGems SDPA backward: dk *= scale and dq *= ln 2, each on a line of its own",
    finish_dk=_dk_not_scaled,
)


@triton.jit
def _updates_lost(rdK, rdV, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    return rdK * 0.0, rdV * 0.0


register_mutant(
    "group_updates_lost",
    "dK and dV keep what the last query head of a group adds: wrong where query heads share a KV head.",
    "flash-dmattn 4fe748e, caa4335: several query heads store to the same dK and dV",
    before_head=_updates_lost,
)


@triton.jit
def _rounded_between_heads(rdK, rdV, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    return widen(round_to(rdK, DTYPE, INTERPRETED)), widen(round_to(rdV, DTYPE, INTERPRETED))


register_mutant(
    "group_sums_rounded",
    "Sums over a group's heads are rounded to the inputs' dtype after each of them: right, but for lost digits.",
    "Meta's NSA: gradients of three branches added in place in bfloat16, later in float32",
    before_head=_rounded_between_heads,
)


@triton.jit
def _only_inside(mRow, rX, inside):
    tl.store(mRow, rX, mask=inside)


register_mutant(
    "row_state_tail_unwritten",
    "The rows' state beyond len_q stays as the memory was: right while that is finite, NaN in dK and dV where not.",
    "FlashAttention-4's note on a varlen preprocess bug: visible with dirty, reused memory only",
    store_row_state=_only_inside,
)


register_mutant(
    "row_state_of_kv_heads",
    "LSE and delta are prepared for as many heads as there are KV heads: those of the others are what memory held.",
    "flash-dmattn d734df9: the backward preprocess takes the KV heads for its offsets",
    state_heads=lambda heads_q, heads_kv: heads_kv,
)


register_mutant(
    "dq_tiles_of_keys",
    "dQ has as many programs as there are tiles of keys, where these are fewer: later rows are not written.",
    "FlagGems issue 3395: dQ tiles numbered by BLOCK_M2 in a grid sized by BLOCK_N1",
    dq_tiles=min,
)


register_mutant(
    "dbias_not_summed",
    "The gradient of a mask that is broadcast over rows or columns is that of one row or column in 64.",
    "flash-dmattn 9181f70, a5b4cb7, ca66b6c: the gradient of a broadcast bias, reduced over wrong axes or not at all",
    sum_of_shared=steps.not_summed,
)


@triton.jit
def _one_sequence(first, size, AXIS: tl.constexpr):
    last = size
    if AXIS == "batch":
        last = first + 1
    return last


register_mutant(
    "dbias_of_one_sequence",
    "The gradient of a mask that all sequences share is the first one's.",
    "flash-dmattn 9181f70, a5b4cb7, ca66b6c: the gradient of a bias that a batch shares",
    sharing_until=_one_sequence,
)


@triton.jit
def _one_head(first, size, AXIS: tl.constexpr):
    last = size
    if AXIS == "head":
        last = first + 1
    return last


register_mutant(
    "dbias_of_one_head",
    "The gradient of a mask that all heads share is the first one's.",
    "flash-dmattn 9181f70, a5b4cb7, ca66b6c: the gradient of a bias that heads share",
    sharing_until=_one_head,
)


@triton.jit
def _dbias_scaled(rdMask, scale):
    return rdMask * scale


register_mutant(
    "dbias_scaled",
    "The gradient of a mask is scaled as dQ and dK are.",
    "flash-dmattn: dBias is dS, unscaled, beside two gradients that are scaled",
    finish_dbias=_dbias_scaled,
)

_LAST: list[Tensor] = []


def _remember(lse: Tensor) -> None:
    _LAST[:] = [lse]


def _of_the_last_call(lse: Tensor) -> Tensor:
    same = _LAST and _LAST[0].shape == lse.shape and _LAST[0].device == lse.device
    return _LAST[0] if same else lse


register_mutant(
    "lse_of_the_last_call",
    "Backward takes the LSE of the last forward pass of that shape: wrong with two forwards before two backwards.",
    "FlagGems SDPA: a global GLOBAL_ATTENTION_M carried M to the backward pass",
    lse_made=_remember,
    lse_kept=_of_the_last_call,
)
