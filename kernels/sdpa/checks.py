"""What the public call accepts: each refusal is a ValueError that names the argument, what it got and what it needs."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sdpa.config import MAX_DIM

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Call:
    """A checked call in the operators' form: 4-D tensors, a 4-D mask with each size 1 or full, a scale."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    is_causal: bool
    scale: float
    leading: tuple[int, ...]


def check_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Call:
    """Checks the arguments of `scaled_dot_product_attention` and brings them into the operators' form.

    Views only, except where more than one leading dimension cannot be merged into one batch without a copy.
    """
    _check_tensors(query, key, value)
    _check_heads(query, key, value, enable_gqa)
    if dropout_p != 0.0:
        raise ValueError(f"dropout_p: got {dropout_p}, need 0: dropout is not supported")
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask: got a mask together with is_causal=True, need one of the two")
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    elif not math.isfinite(scale):
        raise ValueError(f"scale: got {scale}, need a finite number")

    leading = _broadcast_leading(query, key, value)
    query, key, value = (_flatten(x.expand(*leading, *x.shape[-3:]) if x.dim() > 2 else x) for x in (query, key, value))
    if attn_mask is not None:
        full = (*leading, query.shape[1], query.shape[2], key.shape[2])
        attn_mask = _flatten_mask(attn_mask, full, query)
    return Call(query, key, value, attn_mask, is_causal, float(scale), leading)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.dtype not in DTYPES:
        raise ValueError(f"query: got {query.dtype}, need one of {', '.join(map(str, DTYPES))}")
    if query.dim() < 2:
        raise ValueError(f"query: got {query.dim()} dimensions, need (..., heads_q, len_q, dim)")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise ValueError(
                f"{name}: got {tensor.dtype} on {tensor.device}, need query's {query.dtype} on {query.device}"
            )
        if tensor.dim() != query.dim():
            raise ValueError(f"{name}: got {tensor.dim()} dimensions, need query's {query.dim()}")
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key: got dim {key.shape[-1]}, need query's {query.shape[-1]}")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(f"value: got len_k {value.shape[-2]}, need key's {key.shape[-2]}")
    for name, tensor in (("query", query), ("value", value)):
        if not 1 <= tensor.shape[-1] <= MAX_DIM:
            raise ValueError(f"{name}: got head dim {tensor.shape[-1]}, need 1 to {MAX_DIM}")


def _check_heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    if query.dim() == 2:
        return
    heads_q, heads_kv = query.shape[-3], key.shape[-3]
    if value.shape[-3] != heads_kv:
        raise ValueError(f"value: got {value.shape[-3]} heads, need key's {heads_kv}")
    if heads_q != heads_kv and not enable_gqa:
        raise ValueError(f"key: got {heads_kv} heads, need query's {heads_q}, or enable_gqa=True")
    if heads_q != heads_kv and (heads_kv == 0 or heads_q % heads_kv):
        raise ValueError(f"key: got {heads_kv} heads, need a divisor of query's {heads_q}")


def _broadcast_leading(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3]))
    except RuntimeError:
        shapes = [tuple(x.shape[:-3]) for x in (query, key, value)]
        raise ValueError(f"query, key, value: got leading sizes {shapes}, need sizes that broadcast") from None


def _flatten(tensor: Tensor) -> Tensor:
    """(..., heads, length, dim) as (batch, heads, length, dim)."""
    if tensor.dim() < 4:
        return tensor[(None,) * (4 - tensor.dim())]
    if tensor.dim() == 4:
        return tensor
    return tensor.flatten(0, tensor.dim() - 4)


def _flatten_mask(attn_mask: Tensor, full: tuple[int, ...], query: Tensor) -> Tensor:
    """The mask as 4-D with each size 1 or full; full is (*leading, heads_q, len_q, len_k)."""
    if attn_mask.dtype != torch.bool and attn_mask.dtype not in DTYPES:
        raise ValueError(f"attn_mask: got {attn_mask.dtype}, need bool or one of {', '.join(map(str, DTYPES))}")
    if attn_mask.device != query.device:
        raise ValueError(f"attn_mask: got device {attn_mask.device}, need query's {query.device}")
    shape = tuple(attn_mask.shape)
    aligned = (1,) * (len(full) - len(shape)) + shape
    if len(aligned) > max(len(full), 4) or any(
        size not in (1, wanted) for size, wanted in zip(aligned[-len(full) :], full, strict=True)
    ):
        raise ValueError(f"attn_mask: got shape {shape}, need one that broadcasts to {full}")
    attn_mask = attn_mask.reshape(aligned) if aligned != shape else attn_mask
    leading = len(full) - 3
    if leading > 1:
        if any(size != 1 for size in aligned[:leading]):
            attn_mask = attn_mask.expand(*full[:leading], *aligned[leading:])
        attn_mask = attn_mask.flatten(0, leading - 1)
    return attn_mask
