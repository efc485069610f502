"""Acceptance criteria of other projects' tests, as data, applied to the outputs that our oracles judge.

They serve comparison (`attnfuzz mutation-score`) and never decide a verdict. Each is written from the project's tests,
which its `source` names; where these leave something open, the stricter choice is made here, so that no criterion is
shown as weaker than it is. None compares LSE, looks at guard bands, or runs anything twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from oracles.gradients import gradients
from oracles.outputs import Outputs
from oracles.problem import Problem, bias_view, mask_tile, sequence_view
from oracles.reference.attention import no_tf32, reference

OUTPUTS = ("o",)
GRADIENTS = ("dq", "dk", "dv")
SMALL = 0.05  # FlagGems draws its inputs from [-SMALL, SMALL]


@dataclass(frozen=True)
class Question:
    """A problem with its inputs, in the problem's layout; `do` is None without backward."""

    problem: Problem
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    do: Tensor | None = None

    @cached_property
    def right(self) -> Outputs:
        """Outputs of our reference, rounded to the problem's dtype as the references of those tests are."""
        found = reference(self.problem, self.q, self.k, self.v, bias=self.bias, do=self.do)
        return Outputs(**{name: x.to(self.problem.torch_dtype) for name, x in found.items()})

    @cached_property
    def unfused(self) -> Outputs:
        """Outputs of an unfused run in the problem's own dtype, every intermediate rounded to it."""
        return unfused_attention(self)

    def live(self, name: str, tensor: Tensor) -> Tensor:
        """The elements of a tensor that belong to a sequence, without padding: fp32, one axis."""
        views = [sequence_view(self.problem, name, tensor, b) for b in range(self.problem.batch)]
        return torch.cat([view.float().reshape(-1) for view in views])


@dataclass(frozen=True)
class Criterion:
    """One project's criterion.

    inputs   'case': judged on the case's own numbers; 'small': on inputs from [-SMALL, SMALL], as their tests draw them
    accepts  (question, name of the tensor, the answer) -> whether their test would pass on that tensor
    """

    name: str
    source: str
    meaning: str
    inputs: Literal["case", "small"]
    accepts: Callable[[Question, str, Tensor], bool]

    def passes(self, question: Question, outputs: Outputs) -> bool:
        """True if their tests would take these answers: O and, with backward, dQ, dK, dV."""
        names = OUTPUTS + GRADIENTS * (question.do is not None)
        got = dict(outputs.items())
        if not all(isinstance(got.get(n), Tensor) and got[n].shape == getattr(question.right, n).shape for n in names):
            return False
        return all(self.accepts(question, name, got[name]) for name in names)


def unfused_attention(question: Question) -> Outputs:
    """O and, given do, dQ, dK, dV of scores = q (k * scale)^T, softmax, product, each rounded to the inputs' dtype.

    As FlashAttention's `attention_ref(upcast=False, reorder_ops=True)`, but with zeros, not NaN, where a row has no
    keys.
    """
    p = question.problem
    q, k, v = (x.detach().clone().requires_grad_(question.do is not None) for x in (question.q, question.k, question.v))
    o = torch.zeros_like(question.right.o)
    with torch.enable_grad(), no_tf32():
        for b in range(p.batch):
            if p.lengths_q[b] and p.lengths_k[b]:
                one, two, three = (sequence_view(p, name, x, b) for name, x in (("q", q), ("k", k), ("v", v)))
                bias = None if question.bias is None else bias_view(p, question.bias, b)
                sequence_view(p, "o", o, b).copy_(_unfused_sequence(p, b, one, two, three, bias))
        if question.do is None or not o.requires_grad:
            zeros = (
                {}
                if question.do is None
                else {f"d{n}": torch.zeros_like(x) for n, x in zip("qkv", (q, k, v), strict=True)}
            )
            return Outputs(o.detach(), **zeros)
        dq, dk, dv = gradients(o, (q, k, v), question.do.to(o.dtype), unused=True)
    return Outputs(o.detach(), None, dq, dk, dv)


def _unfused_sequence(p: Problem, batch: int, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n_q, n_k = q.shape[1], k.shape[1]
    k, v = (x.repeat_interleave(p.group, 0) for x in (k, v))
    scores = q @ (k * p.scale_value).transpose(-1, -2)
    if p.softcap:
        scores = torch.tanh(scores / p.softcap) * p.softcap
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    tiles = [mask_tile(p, batch, h, (0, n_q), (0, n_k), q.device) for h in range(p.heads_q)]
    keep = torch.stack(tiles)
    some = keep.any(-1, keepdim=True)
    probs = torch.softmax(scores.masked_fill(~keep & some, float("-inf")), -1).masked_fill(~keep, 0.0)
    return probs.to(v.dtype) @ v


def _flash_attention(question: Question, name: str, got: Tensor) -> bool:
    right, unfused = (
        question.live(name, getattr(question.right, name)),
        question.live(name, getattr(question.unfused, name)),
    )
    if not right.numel():
        return True
    low = getattr(question.right, name)
    atol = 2 * question.live(name, low + 0.3 - 0.3 - low).abs().max()
    if name != "o" and question.problem.softcap:
        atol = atol + 3e-4
    rtol = 3 if question.problem.softcap else 2
    return bool((question.live(name, got) - right).abs().max() <= rtol * (unfused - right).abs().max() + atol)


_FLAG_GEMS_RTOL = {"float16": 1e-3, "bfloat16": 0.016, "float32": 1.3e-6}


def _flag_gems(question: Question, name: str, got: Tensor) -> bool:
    found, right = question.live(name, got), question.live(name, getattr(question.right, name))
    return torch.allclose(found, right, rtol=_FLAG_GEMS_RTOL[question.problem.dtype], atol=1e-4)


def _nsa(question: Question, name: str, got: Tensor) -> bool:
    error = (question.live(name, got) - question.live(name, getattr(question.right, name))).abs()
    most, mean = (0.1, 0.01) if name == "o" else (0.5, 0.05)
    return not error.numel() or bool(error.max() < most and error.mean() < mean)


_DMATTN = {"o": {"bfloat16": 0.01, "float16": 5e-3, "float32": 1e-3}}
_DMATTN_GRADIENTS = {"bfloat16": 0.1, "float16": 0.05, "float32": 1e-3}


def _dmattn(question: Question, name: str, got: Tensor) -> bool:
    found, right = question.live(name, got), question.live(name, getattr(question.right, name))
    if not right.numel():
        return True
    found = found.nan_to_num(0.0, 1e6, -1e6)
    tolerance = _DMATTN.get(name, _DMATTN_GRADIENTS)[question.problem.dtype]
    return bool(torch.isclose(found, right, rtol=tolerance, atol=tolerance).float().mean() >= 0.95)


CRITERIA = {
    criterion.name: criterion
    for criterion in (
        Criterion(
            "flash-attention",
            "FlashAttention-4, tests/cute/test_flash_attn.py at 0251105a",
            "largest error <= 2 (3 with softcap) times the largest error of a plain run in the same dtype, plus twice "
            "the rounding of ref + 0.3 - 0.3; + 3e-4 on gradients with softcap",
            "case",
            _flash_attention,
        ),
        Criterion(
            "flag-gems",
            "FlagGems, tests of scaled_dot_product_attention (gems_assert_close); its backward test is switched off "
            "there and counted here",
            "every element within 1e-4 + rtol * |ref|, rtol 1e-3 for fp16, 0.016 for bf16; inputs from [-0.05, 0.05]",
            "small",
            _flag_gems,
        ),
        Criterion(
            "nsa",
            "native sparse attention in FlashAttention's fork, test_sparse_attn_nsa_forward and _backward",
            "O: largest error < 0.1 and mean error < 0.01; gradients: < 0.5 and < 0.05",
            "case",
            _nsa,
        ),
        Criterion(
            "flash-dmattn",
            "flash-dmattn, benchmarks/{forward,backward}_equivalence.py",
            "95 % of the elements within rtol = atol = 0.01 (bf16) or 5e-3 (fp16) for O, 0.1 or 0.05 for gradients; "
            "NaN counts as 0",
            "case",
            _dmattn,
        ),
    )
}
