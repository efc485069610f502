"""The dynamic mask itself: which keys a value projection says are worth seeing, as a bias and a mask of top W.

    bias = exp(A · softplus(V_flat · dt_proj^T)), V_flat (batch, len_k, heads_kv · dim_v)

Of each row the W keys with the largest bias among those that causality allows are kept.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dynamic_mask.bits import pack_mask
from kernels.dynamic_mask.config import WORD

_ROWS_BYTES = 1 << 28  # of the ranks of one slice of rows


def value_bias(value: Tensor, dt_proj: Tensor, A: Tensor) -> Tensor:
    """The bias of every row, (batch, heads_kv, 1, len_k) of value's dtype, differentiable in all three.

    value    (batch, heads_kv, len_k, dim_v)
    dt_proj  (heads_kv, heads_kv · dim_v)
    A        (heads_kv)
    """
    flat = value.transpose(1, 2).flatten(2)
    scores = A.float() * F.softplus((flat @ dt_proj.to(flat.dtype).T).float())
    return torch.exp(scores).transpose(1, 2)[:, :, None].to(value.dtype)


def top_mask(
    bias: Tensor,
    window: int,
    len_q: int,
    *,
    causal: Literal["top_left", "bottom_right"] | None = None,
    packed: bool = False,
) -> Tensor:
    """The mask of the `window` largest entries of each row's allowed keys, ties at the lower index; all of them where
    fewer are allowed. Not differentiable.

    bias     (batch, heads, 1, len_k), the same for every row
    returns  bool (batch, heads, len_q, len_k), one row where it is not causal; or its words, see `pack_mask`

    Keys are ranked once, so that no two are equal; a row's threshold is the rank of its window-th key. Rows are made in
    slices: memory beside the mask is bounded. Never synchronises.
    """
    if window < 0:
        raise ValueError(f"window: got {window}, need the number of keys of a row")
    batch, heads, rows, len_k = bias.shape
    if rows != 1:
        raise ValueError(f"bias: got {rows} rows, need 1: the same for every row")
    order = bias.detach().float().argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order, dtype=torch.int32)
    rank.scatter_(-1, order, torch.arange(len_k, dtype=torch.int32, device=bias.device).expand_as(order))
    if causal is None:
        mask = rank < window
        return pack_mask(mask) if packed else mask
    shift = len_k - len_q if causal == "bottom_right" else 0
    columns = -(-len_k // WORD) if packed else len_k
    dtype = torch.int32 if packed else torch.bool
    mask = torch.empty((batch, heads, len_q, columns), dtype=dtype, device=bias.device)
    key = torch.arange(len_k, dtype=torch.int32, device=bias.device)
    step = max(1, _ROWS_BYTES // max(4 * batch * heads * len_k, 1))
    for first in range(0, len_q, step):
        row = torch.arange(first, min(first + step, len_q), dtype=torch.int32, device=bias.device)[:, None]
        part = _top(rank, key <= row + shift, window)
        mask[:, :, first : first + step] = pack_mask(part) if packed else part
    return mask


def _top(rank: Tensor, allowed: Tensor, window: int) -> Tensor:
    """bool (batch, heads, rows, len_k): of rank (batch, heads, 1, len_k) the `window` least that are allowed (rows,
    len_k)."""
    len_k = rank.shape[-1]
    seen = torch.where(allowed, rank, len_k)
    if not 0 < window < len_k:
        return (seen < len_k) & (window > 0)
    last = seen.kthvalue(window, dim=-1, keepdim=True).values
    return seen <= last.clamp(max=len_k - 1)


def dynamic_mask(
    value: Tensor,
    dt_proj: Tensor,
    A: Tensor,
    window: int,
    len_q: int | None = None,
    *,
    causal: Literal["top_left", "bottom_right"] | None = "top_left",
    packed: bool = False,
) -> tuple[Tensor, Tensor]:
    """(bias, mask) for `dynamic_mask_attention`; len_q is len_k by default. See `value_bias` and `top_mask`."""
    bias = value_bias(value, dt_proj, A)
    len_q = value.shape[2] if len_q is None else len_q
    return bias, top_mask(bias, window, len_q, causal=causal, packed=packed)
