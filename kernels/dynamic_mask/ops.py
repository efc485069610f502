"""The custom operators attnfuzz::dynamic_mask_forward and dynamic_mask_backward, their shapes, their autograd.

Tensors have the form that `attention.Attention` names; `api` brings them into it. Outputs and scratch come from
torch.empty, called in Python at each call, and every element of them is written: a CUDA graph can hold both passes.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.dynamic_mask.attention import Attention
from kernels.dynamic_mask.injection import find_injection
from kernels.dynamic_mask.plans import (
    backward_launches,
    empty_gradients,
    empty_outputs,
    finished,
    forward_launches,
)


@torch.library.custom_op("attnfuzz::dynamic_mask_forward", mutates_args=())
def dynamic_mask_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    max_q: int,
    max_k: int,
    causal: int,
    scale: float,
    softcap: float,
    num_splits: int,
    deterministic: bool,
    injection: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, tiles): see `kernels.dynamic_mask.api.dynamic_mask_attention`. num_splits and deterministic are
    backward's."""
    attention = Attention(query, key, value, mask, bias, cu_q, cu_k, max_q, max_k, causal, scale, softcap, injection)
    outputs = empty_outputs(attention)
    for launch in forward_launches(attention, *outputs):
        launch.run()
    return outputs


@dynamic_mask_forward.register_fake
def _(query, key, value, mask, bias, cu_q, cu_k, max_q, max_k, causal, scale, softcap, *_):
    return empty_outputs(Attention(query, key, value, mask, bias, cu_q, cu_k, max_q, max_k, causal, scale, softcap))


@torch.library.custom_op("attnfuzz::dynamic_mask_backward", mutates_args=())
def dynamic_mask_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    out: Tensor,
    lse: Tensor,
    max_q: int,
    max_k: int,
    causal: int,
    scale: float,
    softcap: float,
    num_splits: int,
    deterministic: bool,
    want_bias: bool,
    injection: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(dQ, dK, dV, dBias, tiles); dBias has no elements and one dimension where it is not wanted. tiles (batch,
    heads_kv, programs of a head, 2) int32: the tiles that were visited and skipped on the way to dK and dV."""
    attention = Attention(query, key, value, mask, bias, cu_q, cu_k, max_q, max_k, causal, scale, softcap, injection)
    grads = empty_gradients(attention, want_bias, num_splits, deterministic)
    for launch in backward_launches(attention, grad_out, grad_lse, out, lse, grads):
        launch.run()
    dq, dk, dv, dbias = finished(attention, grads)
    return dq, dk, dv, query.new_empty(0) if dbias is None else dbias, grads.tiles


@dynamic_mask_backward.register_fake
def _(
    grad_out,
    grad_lse,
    query,
    key,
    value,
    mask,
    bias,
    cu_q,
    cu_k,
    out,
    lse,
    max_q,
    max_k,
    causal,
    scale,
    softcap,
    num_splits,
    deterministic,
    want_bias,
    injection,
):
    attention = Attention(query, key, value, mask, bias, cu_q, cu_k, max_q, max_k, causal, scale, softcap)
    grads = empty_gradients(attention, want_bias, num_splits, deterministic)
    dq, dk, dv, dbias = finished(attention, grads)
    return dq, dk, dv, query.new_empty(0) if dbias is None else dbias, grads.tiles


def _save_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.max_q, ctx.max_k, ctx.causal, ctx.scale, ctx.softcap, ctx.splits, ctx.fixed, ctx.injection = inputs
    out, lse, tiles = output
    ctx.save_for_backward(*tensors, out, lse)
    ctx.mark_non_differentiable(tiles)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, _: Tensor | None) -> tuple:
    *tensors, out, lse = ctx.saved_tensors
    want_bias = ctx.needs_input_grad[4]
    dq, dk, dv, dbias, _ = dynamic_mask_backward(
        torch.zeros_like(out) if grad_out is None else grad_out,
        grad_lse,
        *tensors,
        out,
        lse,
        ctx.max_q,
        ctx.max_k,
        ctx.causal,
        ctx.scale,
        ctx.softcap,
        ctx.splits,
        ctx.fixed,
        want_bias,
        ctx.injection,
    )
    answered = find_injection(ctx.injection).bias_is_answered(want_bias)
    return dq, dk, dv, None, dbias if answered else None, *[None] * 10


dynamic_mask_forward.register_autograd(_backward, setup_context=_save_for_backward)
