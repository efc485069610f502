"""Injection points: the steps of the kernels that a mutant replaces, and what mutants replace them with, by name.

The kernels take each step as a constexpr function, so a mutant is another set of steps and never a branch in the
normal path; steps of the host, which prepare launches, are plain functions. The custom ops carry only the set's name,
as a string; "" names the correct set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.sdpa.backward import before_head, finish_dk, first_query
from kernels.sdpa.bias_gradient import finish_dbias, sharing_until, sum_of_shared
from kernels.sdpa.config import block_d
from kernels.sdpa.forward import last_interior_key, statistics_offset
from kernels.sdpa.layout import Seen, as_it_is, mask_strides
from kernels.sdpa.registry import Registry
from kernels.sdpa.row_state import store_row_state
from kernels.sdpa.scores import add_bias, online_softmax, row_statistics, score_gradient
from kernels.sdpa.tiles import load_tile

_SMALLEST_FOLDED_SCALE = 1e-20


@triton.jit
def store_row_statistics(mLSE, offset, index_row, rLSE, len_q):
    """Writes a tile's LSE to row `offset + index_row`; rows beyond len_q belong to the next head."""
    tl.store(mLSE + offset + index_row, rLSE, mask=index_row < len_q)


@triton.jit
def kv_head_of(head, heads_q, heads_kv):
    """The KV head that a query head reads: consecutive query heads share one."""
    return head // (heads_q // heads_kv)


@triton.jit
def mask_tail_keys(rS, n, len_k):
    """-inf where a tile reaches beyond the last key."""
    return tl.where(n < len_k, rS, -float("inf"))


@triton.jit
def mask_causal(rS, m, n, len_q, len_k):
    """-inf where key n lies after query m, counted from the top left: whatever the lengths."""
    return tl.where(n <= m, rS, -float("inf"))


@triton.jit
def finish_dq(rdQ, scale):
    """dQ from dS K: the scale that forward applied to q·k."""
    return rdQ * scale


def unchanged(attention: Any) -> Any:
    """The operands (`plans.Attention`) that a pass is launched with."""
    return attention


def folds(mask_kind: str, scale: float) -> bool:
    """True if the scale is folded into the exponent: NOTE [score units] in scores.py."""
    return mask_kind != "float" and scale > _SMALLEST_FOLDED_SCALE


def state_heads(heads_q: int, heads_kv: int) -> int:
    """Heads whose rows have a state: LSE and delta belong to queries."""
    return heads_q


def dq_tiles(tiles_of_queries: int, tiles_of_keys: int) -> int:
    """Programs of one head that make dQ."""
    return tiles_of_queries


def lse_made(lse: Tensor) -> None:
    """A forward pass made this; autograd keeps it with its own call."""


def lse_kept(lse: Tensor) -> Tensor:
    """What a backward pass takes for LSE, of what its own call kept."""
    return lse


@dataclass(frozen=True)
class InjectionPoints:
    """One function for each replaceable step: those of the kernels, then those of the host. Defaults are correct."""

    store_row_statistics: Any = store_row_statistics
    kv_head_of: Any = kv_head_of
    mask_tail_keys: Any = mask_tail_keys
    mask_causal_forward: Any = mask_causal
    mask_causal_backward: Any = mask_causal
    finish_dq: Any = finish_dq
    add_bias: Any = add_bias
    last_interior_forward: Any = last_interior_key
    online_softmax: Any = online_softmax
    load_values: Any = load_tile
    row_statistics: Any = row_statistics
    statistics_offset: Any = statistics_offset
    store_row_state: Any = store_row_state
    score_gradient: Any = score_gradient
    first_query: Any = first_query
    before_head: Any = before_head
    finish_dk: Any = finish_dk
    sharing_until: Any = sharing_until
    sum_of_shared: Any = sum_of_shared
    finish_dbias: Any = finish_dbias

    operands: Callable[[Any], Any] = unchanged
    seen: Seen = as_it_is
    folds: Callable[[str, float], bool] = folds
    block: Callable[[int, int], int] = block_d
    mask_strides: Callable[[Tensor], tuple[int, ...]] = mask_strides
    state_heads: Callable[[int, int], int] = state_heads
    dq_tiles: Callable[[int, int], int] = dq_tiles
    lse_made: Callable[[Tensor], None] = lse_made
    lse_kept: Callable[[Tensor], Tensor] = lse_kept


_REGISTRY = Registry(InjectionPoints())
register_injection, find_injection = _REGISTRY.register, _REGISTRY.find
