"""A flash attention in PyTorch as one autograd node, whose LSE has a gradient; it rounds where FUSED says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class HalfPrecisionAttention(torch.autograd.Function):
    """apply(q, k, v, keep, scale) -> O, LSE of (batch, heads, length, dim) in half precision, with as many KV heads as
    query heads; keep: bool, broadcastable to (batch, heads, len_q, len_k)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        s = (q.float() @ k.float().mT * scale).masked_fill(~keep, -torch.inf)
        top = s.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        weights = torch.exp(s - top)
        total = weights.sum(-1, keepdim=True)
        o = torch.where(total > 0, weights.to(q.dtype).float() @ v.float() / total, 0.0).to(q.dtype)
        lse = (top + total.log()).squeeze(-1)
        ctx.save_for_backward(q, k, v, s, o, lse)
        ctx.scale = scale
        return o, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, s, o, lse = ctx.saved_tensors
        do, grad_lse = grads[0].float(), grads[1]
        p = torch.exp(s - lse.nan_to_num(neginf=0.0)[..., None])
        delta = (o.float() * do).sum(-1) - grad_lse
        ds = (p * (do @ v.float().mT - delta[..., None])).to(q.dtype).float()
        dq, dk, dv = ds @ k.float() * ctx.scale, ds.mT @ q.float() * ctx.scale, p.to(q.dtype).float().mT @ do
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None
