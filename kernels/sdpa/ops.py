"""The custom operators attnfuzz::sdpa_forward, sdpa_backward and sdpa_bias_gradient, their shapes, their autograd.

All tensors are 4-D here; `api` brings them into that form. Outputs and scratch come from torch.empty, called in Python
at each call, and every element of them is written.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.sdpa.injection import find_injection
from kernels.sdpa.plans import (
    Attention,
    backward_launches,
    bias_gradient_launches,
    empty_row_state,
    forward_launches,
)


@torch.library.custom_op("attnfuzz::sdpa_forward", mutates_args=())
def sdpa_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
    injection: str,
) -> tuple[Tensor, Tensor]:
    """(out, lse): see `kernels.sdpa.api.scaled_dot_product_attention`; attn_mask is 4-D, each size 1 or full."""
    attention = Attention(query, key, value, attn_mask, is_causal, scale, injection)
    out, lse = empty_outputs(query, value)
    for launch in forward_launches(attention, out, lse):
        launch.run()
    return out, lse


@sdpa_forward.register_fake
def _(query, key, value, attn_mask, is_causal, scale, injection):
    return empty_outputs(query, value)


def empty_outputs(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse), uninitialised."""
    out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    return out, torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)


@torch.library.custom_op("attnfuzz::sdpa_backward", mutates_args=())
def sdpa_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
    injection: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dQ, dK, dV, state); state, see NOTE [row state] in row_state.py, is what `sdpa_bias_gradient` goes on from."""
    attention = Attention(query, key, value, attn_mask, is_causal, scale, injection)
    *grads, state = empty_gradients(query, key, value)
    for launch in backward_launches(attention, grad_out, grad_lse, out, lse, state, grads):
        launch.run()
    return grads[0], grads[1], grads[2], state


@sdpa_backward.register_fake
def _(grad_out, grad_lse, query, key, value, attn_mask, out, lse, is_causal, scale, injection):
    return empty_gradients(query, key, value)


def empty_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dQ, dK, dV, state), uninitialised."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    return dq, dk, dv, empty_row_state(query)


@torch.library.custom_op("attnfuzz::sdpa_bias_gradient", mutates_args=())
def sdpa_bias_gradient(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    state: Tensor,
    scale: float,
    injection: str,
) -> Tensor:
    """The gradient of a float attn_mask, in its own shape and dtype."""
    attention = Attention(query, key, value, bias, False, scale, injection)
    grad_bias = empty_bias_gradient(bias)
    for launch in bias_gradient_launches(attention, grad_out, state, grad_bias):
        launch.run()
    return grad_bias


@sdpa_bias_gradient.register_fake
def _(grad_out, query, key, value, bias, state, scale, injection):
    return empty_bias_gradient(bias)


def empty_bias_gradient(bias: Tensor) -> Tensor:
    """dBias, uninitialised."""
    return torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)


def _save_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    query, key, value, attn_mask, ctx.is_causal, ctx.scale, ctx.injection = inputs
    ctx.save_for_backward(query, key, value, attn_mask, *output)
    find_injection(ctx.injection).lse_made(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple:
    query, key, value, attn_mask, out, lse = ctx.saved_tensors
    lse = find_injection(ctx.injection).lse_kept(lse)
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    dq, dk, dv, state = sdpa_backward(
        grad_out, grad_lse, query, key, value, attn_mask, out, lse, ctx.is_causal, ctx.scale, ctx.injection
    )
    grad_mask = None
    if ctx.needs_input_grad[3]:
        grad_mask = sdpa_bias_gradient(grad_out, query, key, value, attn_mask, state, ctx.scale, ctx.injection)
    return dq, dk, dv, grad_mask, None, None, None


sdpa_forward.register_autograd(_backward, setup_context=_save_for_backward)
