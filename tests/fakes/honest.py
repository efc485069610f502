"""Attention in plain PyTorch, and `fake`, which declares a spoiled copy of it as a target. The base of all fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fuzz.targets import target
from oracles.numerics import EXACT

Result: TypeAlias = tuple[Tensor, Tensor]


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float, bias: Tensor | None
) -> Result:
    """O (batch, heads_q, len_q, dim_v) in q's dtype, LSE (batch, heads_q, len_q) in fp32; computed in fp32.

    mask bool, True = keep. What no row or no key uses (padding) may hold anything, NaN too, so it is zeroed first.
    """
    if k.shape[2] == 0:  # one key that nobody may see
        k, v, mask = (
            torch.nn.functional.pad(x, pad) for x, pad in ((k, (0, 0, 0, 1)), (v, (0, 0, 0, 1)), (mask, (0, 1)))
        )
        bias = None if bias is None or bias.shape[3] == 1 else torch.nn.functional.pad(bias, (0, 1))
    rows, keys = mask.any(-1)[..., None], mask.any(-2)[..., None]
    group = q.shape[1] // k.shape[1]
    q_used = q.float().masked_fill(~rows, 0)
    k_used, v_used = (x.float().repeat_interleave(group, 1).masked_fill(~keys, 0) for x in (k, v))
    scores = q_used @ k_used.transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.float()
    scores = scores.masked_fill(~mask, float("-inf"))
    top = scores.detach().amax(-1, keepdim=True).masked_fill(~rows, 0)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    o = (weights @ v_used) / total.masked_fill(~rows, 1)
    o = torch.where(rows, o, 0).to(q.dtype)
    return o, (top + total.log()).squeeze(-1).detach()


def fake(name: str, **declared: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares a function with `attention`'s positional arguments as the target `fake.<name>`."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(q, k, v, mask, scale, softcap, bias):
            return function(q, k, v, mask, scale, softcap, bias)

        run.__doc__, run.__qualname__ = function.__doc__, function.__qualname__
        target(f"fake.{name}", device="host", numerics=EXACT, **declared)(run)
        return function

    return declare


fake("honest")(attention)
