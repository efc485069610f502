"""The custom operators attnfuzz::native_sparse_forward and native_sparse_backward, their shapes, their autograd.

Outputs and scratch come from torch.empty, called in Python at each call, and nothing is asked of the device: a CUDA
graph can hold both passes. An absent tensor is None among the arguments, and a tensor without elements among answers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.nsa.operands import Operands, readable_operands, settings_of
from kernels.nsa.plans import backward_pass, forward_pass
from kernels.nsa.selection import Selection


@torch.library.custom_op("attnfuzz::native_sparse_forward", mutates_args=())
def native_sparse_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_k: Tensor | None,
    w_v: Tensor | None,
    w_gate: Tensor | None,
    cu: Tensor | None,
    blocks: Tensor | None,
    groups: Tensor | None,
    numbers: Sequence[int],
    scale: float,
    deterministic: bool,
    injection: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, blocks, groups): see `kernels.nsa.api.native_sparse_answer`. numbers: `Settings.numbers`. blocks, groups: a
    frozen selection, or None. deterministic is backward's."""
    settings = settings_of(numbers, scale, deterministic, injection)
    given = None if blocks is None else Selection(blocks, groups)
    operands = readable_operands(Operands(q, k, v, w_k, w_v, w_gate, cu, settings))
    out, found = forward_pass(operands, given)
    if given is not None:
        found = Selection(found.blocks.clone(), None if found.groups is None else found.groups.clone())
    return out, found.blocks, found.blocks.new_empty(0) if found.groups is None else found.groups


@native_sparse_forward.register_fake
def _(q, k, v, w_k, w_v, w_gate, cu, blocks, groups, numbers, scale, deterministic, injection):
    settings = settings_of(numbers, scale, deterministic, "")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if blocks is not None:
        found = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (blocks, groups) if x is not None]
        return out, found[0], found[1] if groups is not None else found[0].new_empty(0)
    batch = q.shape[0] if cu is None else cu.shape[0] - 1
    shape = (batch, q.shape[-2], settings.tiles)
    chosen = q.new_empty((*shape, min(settings.chosen, settings.blocks)), dtype=torch.int32)
    if not settings.grouped:
        return out, chosen, chosen.new_empty(0)
    return out, chosen, chosen.new_empty((*shape, settings.groups))


@torch.library.custom_op("attnfuzz::native_sparse_backward", mutates_args=())
def native_sparse_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_k: Tensor | None,
    w_v: Tensor | None,
    w_gate: Tensor | None,
    cu: Tensor | None,
    blocks: Tensor,
    groups: Tensor,
    numbers: Sequence[int],
    scale: float,
    deterministic: bool,
    injection: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(dQ, dK, dV, dW_k, dW_v, dW_gate), contiguous; groups has no elements and one dimension where all are seen."""
    settings = settings_of(numbers, scale, deterministic, injection)
    selection = Selection(blocks, groups if groups.dim() == 4 else None)
    operands = readable_operands(Operands(q, k, v, w_k, w_v, w_gate, cu, settings))
    grads = backward_pass(operands, selection, grad_out)
    w_k, w_v, w_gate = (q.new_empty(0) if x is None else x for x in (grads.w_k, grads.w_v, grads.w_gate))
    return grads.q, grads.k, grads.v, w_k, w_v, w_gate


@native_sparse_backward.register_fake
def _(grad_out, q, k, v, w_k, w_v, w_gate, cu, blocks, groups, numbers, scale, deterministic, injection):
    grads = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    weights = [
        q.new_empty(0) if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for x in (w_k, w_v, w_gate)
    ]
    return *grads, *weights


def _save_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, w_k, w_v, w_gate, cu, _, _, ctx.numbers, ctx.scale, ctx.deterministic, ctx.injection = inputs
    _, blocks, groups = output
    ctx.save_for_backward(q, k, v, w_k, w_v, w_gate, cu, blocks, groups)
    ctx.mark_non_differentiable(blocks, groups)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, *_: Tensor | None) -> tuple:
    q, *others = ctx.saved_tensors
    if grad_out is None:
        grad_out = torch.zeros_like(q)
    settings = (ctx.numbers, ctx.scale, ctx.deterministic, ctx.injection)
    grads = native_sparse_backward(grad_out, q, *others, *settings)
    weights = [None if x is None else grad for x, grad in zip(others[2:5], grads[3:], strict=True)]
    return *grads[:3], *weights, *[None] * 7


native_sparse_forward.register_autograd(_backward, setup_context=_save_for_backward)
