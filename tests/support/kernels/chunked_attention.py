"""An online-softmax kernel in fp32 with chunks of keys, forward and backward, whose faults are one key each."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from oracles.outputs import Outputs
from oracles.problem import Problem, dense_mask

CHUNK = 512
Fault = Callable[[Tensor], Tensor]  # what the kernel makes of the token mask (rows, keys)


def attention(p: Problem, q: Tensor, k: Tensor, v: Tensor, do: Tensor, fault: Fault, backward: Fault) -> Outputs:
    """One sequence, as many KV heads as query heads. `fault` is in the forward pass, `backward` in the other."""
    kept = dense_mask(p)[0, 0]
    o, lse = _forward(p, q, k, v, fault(kept.clone()))
    o = o.to(q.dtype)
    dq, dk, dv = _backward(p, q, k, v, o, lse, do, backward(kept.clone()))
    return Outputs(o, lse, *(x.to(q.dtype) for x in (dq, dk, dv)))


def _forward(p: Problem, q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.full(q.shape[:-1], -math.inf)
    total, o = torch.zeros_like(top), torch.zeros(*q.shape[:-1], v.shape[-1])
    for start in range(0, kept.shape[1], CHUNK):
        scores = _scores(p, q, k, kept, start)
        new = torch.maximum(top, scores.amax(-1))
        weights = torch.exp(scores - new[..., None])
        old = torch.exp(top - new).nan_to_num(0.0)
        total = total * old + weights.sum(-1)
        o = o * old[..., None] + weights.to(q.dtype).float() @ _chunk(v, start)
        top = new
    return o / total[..., None], top + torch.log(total)


def _backward(
    p: Problem, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    delta = (o.float() * do.float()).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros(q.shape), [], []
    for start in range(0, kept.shape[1], CHUNK):
        weights = torch.exp(_scores(p, q, k, kept, start) - lse[..., None])
        ds = (weights * (do.float() @ _chunk(v, start).mT - delta)).to(q.dtype).float()
        dq += ds @ _chunk(k, start)
        dk.append(ds.mT @ q.float())
        dv.append(weights.to(q.dtype).float().mT @ do.float())
    keys = k.shape[-2]
    dk, dv = (torch.cat(x, -2)[..., :keys, :] for x in (dk, dv))
    return dq * p.scale_value, dk * p.scale_value, dv


def _chunk(x: Tensor, start: int) -> Tensor:
    """CHUNK rows; zeros beyond the end, as a guarded load gives."""
    part = x[..., start : start + CHUNK, :].float()
    return torch.nn.functional.pad(part, (0, 0, 0, CHUNK - part.shape[-2]))


def _scores(p: Problem, q: Tensor, k: Tensor, kept: Tensor, start: int) -> Tensor:
    part = kept[:, start : start + CHUNK]
    part = torch.nn.functional.pad(part, (0, CHUNK - part.shape[1]))
    return (q.float() @ _chunk(k, start).mT * p.scale_value).masked_fill(~part, -math.inf)
