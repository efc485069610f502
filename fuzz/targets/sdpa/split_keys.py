"""Attention in two calls, over the first and the last keys, put together by their LSEs.

So do caches in chunks, and ring attention. The answer is that of one call, and so are the gradients, but on the way
each call's LSE has a gradient of its own, which an O alone does not give it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fuzz.core.case import Case, Distribution
from oracles.problem import Problem

SPREAD: tuple[Distribution, ...] = ("normal", "large", "needle", "adversarial")
LINES = (
    "parts = [call(part) for part in (slice(0, k.shape[2] // 2), slice(k.shape[2] // 2, None))]",
    "most = torch.maximum(parts[0][1], parts[1][1]).detach()",
    "most = torch.where(most.isinf(), 0.0, most)",
    "weights = [torch.exp(lse - most) for _, lse in parts]",
    "total = weights[0] + weights[1]",
    "there = torch.where(total == 0, 1.0, total)",
    "o = sum((w / there)[..., None] * o for w, (o, _) in zip(weights, parts))",
    'lse = torch.where(total == 0, float("-inf"), most + torch.log(there))',
)


def takes(problem: Problem) -> bool:
    """True if the keys of a problem can be split: its mask is no flag's, and LSE and its gradient are exact enough.

    In half precision what lies between the two calls is rounded: O of each, and its gradient.
    """
    return problem.dtype == "float32" and problem.backward and problem.len_k > 1


def exact(case: Case) -> bool:
    """True if the inputs may have an answer that is exact, which a sum by way of logarithms is not."""
    return case.inputs.distribution not in SPREAD


def parts_of(k: Tensor, v: Tensor, mask: Tensor | None) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """k, v (batch, heads_kv, len_k, dim) and attn_mask, whose last axis is len_k or 1, of both halves of the keys."""
    half = k.shape[2] // 2
    return [
        (k[:, :, part], v[:, :, part], mask if mask is None or mask.shape[-1] == 1 else mask[..., part])
        for part in (slice(0, half), slice(half, None))
    ]


def merged(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """O and LSE of all keys, of those of the parts: (batch, heads_q, len_q, dim_v) and (batch, heads_q, len_q) each. A
    row without a key in a part has LSE -inf there, and O 0."""
    most = torch.stack([lse for _, lse in parts]).amax(0).detach()
    most = torch.where(most.isinf(), 0.0, most)
    weights = [torch.exp(lse - most) for _, lse in parts]
    total = torch.stack(weights).sum(0)
    there = torch.where(total == 0, 1.0, total)
    o = torch.stack([(weight / there)[..., None] * o for weight, (o, _) in zip(weights, parts, strict=True)]).sum(0)
    return o, torch.where(total == 0, float("-inf"), most + torch.log(there))


def text(kernel: str, mask: Sequence[str], said: Sequence[str]) -> tuple[str, ...]:
    """`merged` of two calls of `kernel`, as lines of a script. mask: 'attn_mask=…', or nothing."""
    given = [f"attn_mask=split({mask[0].partition('=')[2]}, part)"] if mask else []
    arguments = ", ".join(["q", "k[:, :, part]", "v[:, :, part]", *given, *said, "return_lse=True"])
    splits = ("split = lambda mask, part: mask if mask.shape[-1] == 1 else mask[..., part]",) if mask else ()
    return (*splits, f"call = lambda part: {kernel}({arguments})", *LINES)
