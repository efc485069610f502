"""The two passes: from operands to the output, and from its gradient to those of the operands.

Branches come one after the other. Backward computes each branch's output once more, so that between the passes nothing
is kept but the operands and the selection.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.nsa.branches import BRANCHES, Branch
from kernels.nsa.launches import (
    combine,
    gate_weight_gradient,
    gate_weight_parts,
    key_gradient,
    means,
    query_gradient,
    split,
)
from kernels.nsa.operands import Operands, readable
from kernels.nsa.selection import Selection, nothing_selected, select


@dataclass(frozen=True, eq=False)
class Compressed:
    """Means of the blocks of K and of V, and what they are multiplied to: float32 (batch, blocks, heads_kv, dim)."""

    k_mean: Tensor
    v_mean: Tensor
    k: Tensor
    v: Tensor


def compressed(operands: Operands) -> Compressed:
    """The compressed keys and values."""
    s = operands.settings
    shape = (operands.batch, s.blocks, operands.heads_kv, operands.dim)
    found = []
    for x in (operands.k, operands.v):
        mean = torch.empty(shape, dtype=torch.float32, device=x.device)
        operands.launcher.triton(means(operands, x, mean, s.block))
        found.append(mean)
    k_mean, v_mean = found
    return Compressed(k_mean, v_mean, s.steps.project(k_mean, operands.w_k), s.steps.project(v_mean, operands.w_v))


def branches_of(operands: Operands, small: Compressed, selection: Selection) -> list[Branch]:
    """The branches, in their order."""
    dtype = operands.q.dtype
    k, v = (x.to(dtype).contiguous() for x in (small.k, small.v))
    if operands.packed:
        k, v = k.flatten(0, 1), v.flatten(0, 1)
    keys = [(k, v), (operands.k, operands.v), (operands.k, operands.v)]
    return [Branch(name, operands, selection, *pair) for name, pair in zip(BRANCHES, keys, strict=True)]


def forward_pass(operands: Operands, given: Selection | None) -> tuple[Tensor, Selection]:
    """(out like q but contiguous, selection). given: a selection to take instead of choosing one."""
    if not operands.rows:
        return torch.empty_like(operands.q), nothing_selected(operands) if given is None else given
    small = compressed(operands)
    selection = select(operands, small.k) if given is None else given
    parts = [branch.forward()[0] for branch in branches_of(operands, small, selection)]
    out = torch.empty(operands.q.shape, dtype=operands.q.dtype, device=operands.q.device)
    operands.launcher.triton(combine(operands, parts, out))
    return out, selection


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the operands, of their dtypes; None for a weight that there is none of."""

    q: Tensor
    k: Tensor
    v: Tensor
    w_k: Tensor | None
    w_v: Tensor | None
    w_gate: Tensor | None


def backward_pass(operands: Operands, selection: Selection, grad_out: Tensor) -> Gradients:
    """The gradients. Each branch's are float32, and so are their sums, which are rounded once.

    Without gates the branches are given dO itself, and a third of the sums is taken: dO / 3 would be rounded.
    """
    o, s = operands, operands.settings
    if not o.rows:
        return _zeros(o)
    grad_out = readable(grad_out)
    small = compressed(o)
    gated = o.w_gate is not None
    factor = 1.0 if gated else 1.0 / 3.0
    logits = _new((3, o.heads_q, o.rows), o.q, torch.float32) if gated else None
    found = []
    for number, branch in enumerate(branches_of(o, small, selection)):
        out, lse = branch.forward()
        part = grad_out
        if logits is not None:
            part = _new(o.q.shape, o.q)
            o.launcher.triton(split(o, number, out, grad_out, part, logits[number]))
        found.append(branch.backward(out, lse, part))
        del out, lse, part
    dq = _new(o.q.shape, o.q)
    o.launcher.triton(query_gradient(o, [of_q for of_q, _, _ in found], logits, dq, factor))
    answers: list[Tensor] = []
    weights: list[Tensor | None] = []
    for at, (x, mean, weight) in enumerate(((o.k, small.k_mean, o.w_k), (o.v, small.v_mean, o.w_v)), start=1):
        of_small = found[0][at].view(mean.shape) * factor
        of_mean, of_weight = s.steps.project_backward(of_small, mean, weight)
        dx = _new(x.shape, x)
        o.launcher.triton(key_gradient(o, [found[1][at], found[2][at]], of_mean.contiguous(), dx, factor))
        answers.append(dx)
        weights.append(of_weight)
    return Gradients(dq, answers[0], answers[1], weights[0], weights[1], _gate_weight(o, logits))


def _zeros(o: Operands) -> Gradients:
    weights = [None if x is None else torch.zeros_like(x) for x in (o.w_k, o.w_v, o.w_gate)]
    return Gradients(torch.zeros_like(o.q), torch.zeros_like(o.k), torch.zeros_like(o.v), *weights)


def _gate_weight(operands: Operands, logits: Tensor | None) -> Tensor | None:
    if logits is None or operands.w_gate is None:
        return None
    parts = gate_weight_parts(operands)
    operands.launcher.triton(gate_weight_gradient(operands, logits, parts))
    return parts.sum(0).to(operands.w_gate.dtype)


def _new(shape: torch.Size | tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=like.dtype if dtype is None else dtype, device=like.device)
