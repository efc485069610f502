"""The right answer: attention and its gradients by plain PyTorch autograd from the token predicate.

fp64 on the inputs' own device (fp32 without TF32 on a GPU when asked), rows without keys handled by a safe softmax, and
memory bounded by cutting query rows: each part's expression is differentiated on its own and the gradients of K, V and
the bias are summed. Nothing is shared with a kernel but the Problem: this file knows no tile, no block list, no online
softmax.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from oracles.gradients import gradients
from oracles.outputs import Outputs
from oracles.problem import Problem, bias_by_query, shapes
from oracles.reference.chunks import Chunk, split

CHUNK_BYTES = {"cpu": 64 << 20}  # what a CPU's caches like; elsewhere fewer, larger parts
CHUNK_BYTES_ELSEWHERE = 512 << 20
PAIR_TENSORS = 9  # of the size of the scores alive at once, forward and backward


def reference(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    do: Tensor | None = None,
    precision: torch.dtype = torch.float64,
    chunk_bytes: int | None = None,
) -> Outputs:
    """O, LSE and, given `do`, dQ, dK, dV, dBias of `problem`.

    q, k, v, bias, do  in the layout of `shapes(problem)`, any float dtype, any strides; padding may hold anything, NaN
    too
    precision          dtype of the computation and of the answers: float64, or float32 (TF32 is switched off)
    chunk_bytes        about what the intermediate tensors may take; a small problem is computed in one go
    returns            contiguous tensors on the inputs' device; O = 0, LSE = -inf, dQ = 0 in padding and in rows
                       without keys, dK = dV = 0 in padding. dbias is None unless the bias wants a gradient.
    Raises ValueError when a bias is missing or given against what the problem says, or a shape is not the problem's.
    """
    _check(problem, q=q, k=k, v=v, bias=bias, do=do)
    room = chunk_bytes or CHUNK_BYTES.get(q.device.type, CHUNK_BYTES_ELSEWHERE)
    chunks = list(split(problem, PAIR_TENSORS * precision.itemsize, room))
    with torch.enable_grad(), no_tf32():
        if len(chunks) == 1 and chunks[0].whole:
            found = _answers(chunks[0], q, k, v, bias, do, precision)
            return Outputs(**{name: chunks[0].shaped(name, x).contiguous() for name, x in found.items()})
        whole = _blank(problem, q.device, precision, backward=do is not None)
        for chunk in chunks:
            for name, values in _answers(chunk, q, k, v, bias, do, precision).items():
                if name == "dbias":
                    chunk.bias(whole[name]).add_(values)
                elif name == "lse":
                    chunk.put(name, whole[name], values)
                else:
                    chunk.add(name, whole[name], values)
    return Outputs(**whole)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    *,
    scale: float,
    softcap: float = 0.0,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The formula itself, differentiable: O (batch, heads_q, len_q, dim_v) and LSE (batch, heads_q, len_q).

    q (batch, heads_q, len_q, dim), k (batch, heads_kv, len_k, dim), v (…, dim_v); len_k at least 1. `keep` is bool and
    broadcasts to (batch, heads_q, len_q, len_k), as does `bias`, which may also have heads_kv heads. The row maximum is
    a constant to autograd: softmax does not depend on it.
    """
    batch, heads_q, len_q, dim = q.shape
    heads_kv, len_k = k.shape[1], k.shape[2]
    folded = (batch, heads_kv, heads_q // heads_kv * len_q)
    scores = (q.reshape(*folded, dim) @ k.transpose(-2, -1)).view(batch, heads_q, len_q, len_k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias_by_query(bias, heads_q)
    if keep is not None:
        scores = torch.where(keep, scores, -math.inf)
    top = scores.detach().amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    probs = weights / torch.where(total == 0, 1.0, total)
    o = (probs.view(*folded, len_k) @ v).view(batch, heads_q, len_q, v.shape[-1])
    return o, (top + torch.log(total.detach())).squeeze(-1)


class Attention(torch.autograd.Function):
    """`reference` as a differentiable function of q, k, v, bias, for gradcheck: Attention.apply(problem, options, q, k,
    v, bias)."""

    @staticmethod
    def forward(ctx, problem: Problem, options: dict, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        ctx.problem, ctx.options = problem, options
        ctx.save_for_backward(q, k, v, bias)
        return reference(problem, q, k, v, bias=bias, **options).o

    @staticmethod
    def backward(ctx, do: Tensor):  # type: ignore[override]
        q, k, v, bias = ctx.saved_tensors
        found = reference(ctx.problem, q, k, v, bias=bias, do=do, **ctx.options)
        return None, None, found.dq, found.dk, found.dv, found.dbias


@contextmanager
def no_tf32() -> Iterator[None]:
    """fp32 products are fp32 inside, whatever the program has chosen outside, by torch's old switch or by its new ones.

    The two refuse to be mixed: the old one raises once a new one was set, and only then are the new ones used here.
    """
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    precisions = [backend.fp32_precision for backend in backends]
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:
        old = None
    if old == "highest":
        yield
        return
    try:
        if old is None:
            for backend in backends:
                backend.fp32_precision = "ieee"
        else:
            torch.set_float32_matmul_precision("highest")
        yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old)
        for backend, precision in zip(backends, precisions, strict=True):
            backend.fp32_precision = precision


def _answers(
    chunk: Chunk, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, do: Tensor | None, precision: torch.dtype
) -> dict[str, Tensor]:
    """A part's answers in the part's shapes."""
    problem = chunk.problem
    inputs = {name: chunk.take(name, x.detach(), precision) for name, x in (("q", q), ("k", k), ("v", v))}
    if bias is not None:
        inputs["bias"] = chunk.bias(bias.detach()).to(precision)
    names = [name for name in inputs if name != "bias" or (problem.bias is not None and problem.bias.grad)]
    if do is not None:
        for name in names:
            inputs[name].requires_grad_()
    keep = chunk.keep(q.device)
    o, lse = attention(
        inputs["q"],
        inputs["k"],
        inputs["v"],
        keep,
        scale=problem.scale_value,
        softcap=problem.softcap,
        bias=inputs.get("bias"),
    )
    found = {"o": o.detach(), "lse": lse}
    if do is not None:
        grads = gradients(o, [inputs[name] for name in names], chunk.take("do", do, precision))
        found |= {f"d{name}": grad for name, grad in zip(names, grads, strict=True)}
    return found


def _blank(problem: Problem, device: torch.device, precision: torch.dtype, *, backward: bool) -> dict[str, Tensor]:
    """The answers of a problem without a single kept pair; parts are added to them."""
    names = ["o", "lse"] + (["dq", "dk", "dv"] if backward else [])
    if backward and problem.bias is not None and problem.bias.grad:
        names.append("dbias")
    sizes = shapes(problem)
    fill = {"lse": -math.inf}
    return {n: torch.full(sizes[n], fill.get(n, 0.0), dtype=precision, device=device) for n in names}


def _check(problem: Problem, **given: Tensor | None) -> None:
    sizes = shapes(problem)
    if (problem.bias is None) != (given["bias"] is None):
        raise ValueError(
            f"bias: the problem has {'no' if problem.bias is None else 'a'} bias, the tensors do not agree"
        )
    for name, tensor in given.items():
        if tensor is not None and tuple(tensor.shape) != sizes[name]:
            raise ValueError(f"{name}: needs shape {sizes[name]}, got {tuple(tensor.shape)}")
