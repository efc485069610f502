"""A small flash attention in PyTorch, written from the papers and not from the oracle: the good kernel of these tests.

Online softmax over tiles of keys with a running maximum, P and dS rounded to the input dtype, delta from the stored O.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.outputs import Outputs
from oracles.problem import Problem, dense_mask


def flash(
    problem: Problem, q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, tile: int = 32, scale: float = 0.0
) -> Outputs:
    """All answers of a padded problem without bias and softcap. A `scale` replaces the problem's (a fault)."""
    p, dtype = problem, problem.torch_dtype
    scale = scale or p.scale_value
    keep = dense_mask(p).expand(p.batch, p.heads_q, p.len_q, p.len_k)
    wide_k, wide_v = (x.float().repeat_interleave(p.group, 1) for x in (k, v))
    fq, fdo = q.float(), do.float()
    top = torch.full((*q.shape[:3], 1), -torch.inf)
    total, o = torch.zeros_like(top), torch.zeros(*q.shape[:3], p.dim_v)
    for n in range(0, p.len_k, tile):
        at = slice(n, n + tile)
        scores = (fq @ wide_k[:, :, at].mT * scale).masked_fill(~keep[..., at], -torch.inf)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        shift = torch.where(higher.isinf(), 0.0, higher)
        weights, shrink = torch.exp(scores - shift), torch.exp(top - shift)
        total = total * shrink + weights.sum(-1, keepdim=True)
        o = o * shrink + weights.to(dtype).float() @ wide_v[:, :, at]
        top = higher
    o = torch.where(total > 0, o / total, 0.0).to(dtype)
    lse = (top + total.log()).squeeze(-1)
    delta = (o.float() * fdo).sum(-1, keepdim=True)
    dq, dk, dv = (torch.zeros(x.shape) for x in (fq, wide_k, wide_v))
    for n in range(0, p.len_k, tile):
        at = slice(n, n + tile)
        scores = fq @ wide_k[:, :, at].mT * scale
        probs = torch.where(keep[..., at], torch.exp(scores - lse[..., None]), 0.0)
        ds = (probs * (fdo @ wide_v[:, :, at].mT - delta)).to(dtype).float()
        dv[:, :, at] = probs.to(dtype).float().mT @ fdo
        dk[:, :, at] = ds.mT @ fq * scale
        dq += ds @ wide_k[:, :, at] * scale
    dk, dv = (x.unflatten(1, (p.heads_kv, p.group)).sum(2) for x in (dk, dv))
    return Outputs(o, lse, *(x.to(dtype) for x in (dq, dk, dv)))
