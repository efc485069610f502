"""A `learnable_sink` that counts, and is taken out of the answer again: what is left is the answer without one.

With a sink a row's sum of exponentials has one term more, exp(sink), and LSE with it, as softmax.py of FlashAttention-4
says ("one extra softmax column"). So LSE says the share of a row that its keys have, and O over it is the O of
the keys alone. The gradients of that are those without a sink too, and on the way LSE has a gradient.
"""

from __future__ import annotations

import torch
from msgspec import structs
from torch import Tensor

from oracles.problem import Problem
from oracles.reference.attention import reference

MOST_PAIRS = 1 << 20  # (query, key) pairs of a problem whose LSE is worked out for it


def counting_sink(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A sink for each query head, float32 (heads_q,): the least LSE of its rows. So no row's sink has more than half of
    it, and nothing is lost by taking it out. q, k, v: in the problem's layout."""
    lse = reference(structs.replace(problem, backward=False), *(x.detach() for x in (q, k, v))).lse
    assert lse is not None
    rows = lse.movedim(-2, 0).flatten(1) if problem.layout == "padded" else lse
    return rows.masked_fill(rows.isinf(), torch.inf).amin(-1).float()


def without_sink(o: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """O and LSE of the keys alone, differentiable.

    o, lse  (batch, heads_q, len_q, dim_v) and (batch, heads_q, len_q), or packed (total_q, heads_q, dim_v) and
            (heads_q, total_q), of rows that have keys
    sink    (heads_q,)
    """
    added = torch.exp(sink[:, None] - lse)  # share of the row
    kept = 1 - added
    beside = kept.mT if o.dim() == 3 else kept
    return (o.float() / beside[..., None]).to(o.dtype), lse + torch.log1p(-added)
