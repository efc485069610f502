"""Attention in two calls, over two sets of keys, put together by their LSEs.

So do caches in chunks, and ring attention. The answer is that of one call, and so are the gradients, but on the way
each call's LSE has a gradient of its own, which an O alone does not give it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fuzz.core.case import Case, Distribution

SPREAD: tuple[Distribution, ...] = ("normal", "large", "needle", "adversarial")


def exact(case: Case) -> bool:
    """True if the inputs may have an answer that is exact, which a sum by way of logarithms is not."""
    return case.inputs.distribution not in SPREAD


def merged(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """O and LSE of all keys, of those of the parts: (batch, heads_q, len_q, dim_v) and (batch, heads_q, len_q) each, or
    packed (total_q, heads_q, dim_v) and (heads_q, total_q). O has the dtype of the parts. A row without a key in a part
    has LSE -inf there, and O 0."""
    most = torch.stack([lse for _, lse in parts]).amax(0).detach()
    most = torch.where(most.isinf(), 0.0, most)
    weights = [torch.exp(lse - most) for _, lse in parts]
    total = torch.stack(weights).sum(0)
    there = torch.where(total == 0, 1.0, total)
    o = torch.stack([_beside(weight / there, o) * o for weight, (o, _) in zip(weights, parts, strict=True)]).sum(0)
    return o.to(parts[0][0].dtype), torch.where(total == 0, float("-inf"), most + torch.log(there))


def _beside(weight: Tensor, o: Tensor) -> Tensor:
    """One number per row, as the rows of O lie: packed LSE has its heads first."""
    return (weight.mT if o.dim() == 3 else weight)[..., None]


def lines(*, packed: bool = False) -> tuple[str, ...]:
    """`merged` as lines of a script, of `parts` to o and lse."""
    beside = "(w / there).mT" if packed else "(w / there)"
    return (
        "most = torch.maximum(parts[0][1], parts[1][1]).detach()",
        "most = torch.where(most.isinf(), 0.0, most)",
        "weights = [torch.exp(lse - most) for _, lse in parts]",
        "total = weights[0] + weights[1]",
        "there = torch.where(total == 0, 1.0, total)",
        f"o = sum({beside}[..., None] * o for w, (o, _) in zip(weights, parts)).to(q.dtype)",
        'lse = torch.where(total == 0, float("-inf"), most + torch.log(there))',
    )
