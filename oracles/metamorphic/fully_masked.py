"""Tokens that the mask hides from every row: keys that no row sees, rows that see no key, padding; and what only later
rows see. From the token predicate alone; for problems small enough to hold it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.problem import Problem, mask_tile, sequence_view, shapes


def fully_masked(p: Problem, device: torch.device) -> dict[str, Tensor]:
    """bool masks for q, k, v, do without their last axis: True where no pair is kept, padding included."""
    return _hidden(p, [(0, n) for n in p.lengths_q], device, rows_hidden=False)


def hidden_from_earlier_rows(p: Problem, cuts: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """bool masks as `fully_masked`: True for rows from cuts[b] of sequence b on, and for keys that only those rows see.

    Padding is not part of it.
    """
    return _hidden(p, [(0, cut) for cut in cuts], device, rows_hidden=True)


def _hidden(
    p: Problem, seeing: Sequence[tuple[int, int]], device: torch.device, rows_hidden: bool
) -> dict[str, Tensor]:
    """`seeing`: the rows whose sight counts. rows_hidden: whether the other rows are hidden, or those without keys."""
    sizes = shapes(p)
    padding = not rows_hidden
    found = {n: torch.full(sizes[n][:-1], padding, dtype=torch.bool, device=device) for n in ("q", "k", "v", "do")}
    for b, rows in enumerate(seeing):
        n_q, n_k = p.lengths_q[b], p.lengths_k[b]
        views = {n: sequence_view(p, n, x[..., None], b)[..., 0] for n, x in found.items()}
        kept = torch.stack([mask_tile(p, b, h, rows, (0, n_k), device) for h in range(p.heads_q)])
        seen = kept.any(1).view(p.heads_kv, p.group, n_k).any(1)
        views["k"][:] = views["v"][:] = ~seen
        if rows_hidden:
            views["q"][:] = views["do"][:] = torch.arange(n_q, device=device) >= rows[1]
        else:
            views["q"][:] = views["do"][:] = ~kept.any(2)
    return found
