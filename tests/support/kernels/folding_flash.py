"""A flash attention in PyTorch that puts scale * log2(e) on K, or normalises O by its LSE, as published kernels do."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oracles.numerics import Numerics
from oracles.outputs import Outputs
from oracles.problem import Problem, dense_mask

TILE = 32


def folding_flash(
    p: Problem, numerics: Numerics, q: Tensor, k: Tensor, v: Tensor, do: Tensor, lost: int = 0
) -> Outputs:
    """All answers of a padded problem with as many KV heads as query heads, no bias, no softcap. lost: keys at the end
    that neither pass sees (a fault)."""
    keep = dense_mask(p).expand(p.batch, p.heads_q, p.len_q, p.len_k).clone()
    keep[..., p.len_k - lost :] = False
    factor = p.scale_value * math.log2(math.e)
    folded = k.float() * factor
    if numerics.folded == "input":
        folded = folded.to(p.torch_dtype).float()

    def scores(tile: slice, fold: bool) -> Tensor:
        """In units of log2."""
        raw = q.float() @ (folded if fold else k.float())[..., tile, :].mT
        return (raw if fold else raw * factor).masked_fill(~keep[..., tile], -math.inf)

    o, lse = _forward(p, numerics, lambda tile: scores(tile, numerics.scaled == "k"), v)
    o = o.to(p.torch_dtype)
    delta = (o.float() * do.float()).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros(q.shape), torch.zeros(k.shape), torch.zeros(v.shape)
    for tile in _tiles(p):
        probs = torch.exp2(scores(tile, numerics.folds_k) - lse.nan_to_num(neginf=0.0))
        ds = (probs * (do.float() @ v.float()[..., tile, :].mT - delta)).to(p.torch_dtype).float()
        dv[..., tile, :] = probs.to(p.torch_dtype).float().mT @ do.float()
        dk[..., tile, :] = ds.mT @ q.float() * p.scale_value
        dq += ds @ (folded[..., tile, :] * math.log(2) if numerics.folds_k else k.float()[..., tile, :] * p.scale_value)
    return Outputs(o, (lse * math.log(2)).squeeze(-1), *(x.to(p.torch_dtype) for x in (dq, dk, dv)))


def _forward(p: Problem, numerics: Numerics, scores, v: Tensor) -> tuple[Tensor, Tensor]:
    """O in fp32 and LSE in units of log2 (batch, heads, len_q, 1)."""
    shape = (p.batch, p.heads_q, p.len_q, 1)
    top, lse, total = torch.full(shape, -math.inf), torch.full(shape, -math.inf), torch.zeros(shape)
    o = torch.zeros(*shape[:3], p.dim_v)
    for tile in _tiles(p):
        s, values = scores(tile), v.float()[..., tile, :]
        if numerics.renormalised == "tiles":
            new = torch.logaddexp2(lse, torch.logsumexp(s * math.log(2), -1, keepdim=True) / math.log(2))
            safe = new.nan_to_num(neginf=0.0)
            o = o * torch.exp2(lse - safe) + torch.exp2(s - safe).to(p.torch_dtype).float() @ values
            lse = new
            continue
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        safe = new.nan_to_num(neginf=0.0)
        weights, shrink = torch.exp2(s - safe), torch.exp2(top - safe)
        total = total * shrink + weights.sum(-1, keepdim=True)
        o = o * shrink + weights.to(p.torch_dtype).float() @ values
        top = new
    if numerics.renormalised == "tiles":
        return o, lse
    if numerics.renormalised == "end":
        lse = top + torch.log2(total)
        return o * torch.exp2(top - lse).nan_to_num(0.0), lse
    return torch.where(total > 0, o / total, 0.0), top + torch.log2(total)


def _tiles(p: Problem) -> list[slice]:
    return [slice(start, start + TILE) for start in range(0, p.len_k, TILE)]
