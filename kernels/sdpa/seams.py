"""Seams: the steps of the kernels that a planted bug may replace, and the registry of seam sets by name.

The kernels take each step as a constexpr function, so a planted bug is another seam set and never a branch in the
normal path. The custom ops carry only the set's name, as a string; "" names the correct set.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl


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
def mask_causal(rS, m, n):
    """-inf where key n lies after query m, counted from the top left."""
    return tl.where(n <= m, rS, -float("inf"))


@triton.jit
def finish_dq(rdQ, scale):
    """dQ from dS K: the scale that forward applied to q·k."""
    return rdQ * scale


@dataclass(frozen=True)
class Seams:
    """One function for each replaceable step; the defaults are correct."""

    store_row_statistics: Any = store_row_statistics
    kv_head_of: Any = kv_head_of
    mask_tail_keys: Any = mask_tail_keys
    mask_causal_forward: Any = mask_causal
    mask_causal_backward: Any = mask_causal
    finish_dq: Any = finish_dq


_REGISTRY: dict[str, Seams] = {"": Seams()}


def register_seams(name: str, seams: Seams) -> None:
    """Makes a seam set known to the custom ops. Raises ValueError where another set has that name."""
    if _REGISTRY.setdefault(name, seams) is not seams:
        raise ValueError(f"seams: the name {name!r} is taken; choose another")


def find_seams(name: str) -> Seams:
    """The seam set of that name. Raises ValueError where there is none."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise ValueError(f"seams: got {name!r}, need one of {sorted(_REGISTRY)} (import kernels.mutants)") from None
