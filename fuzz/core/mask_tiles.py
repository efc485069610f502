"""The mask of one sequence and head in tiles of tokens, each with its share of kept pairs: for pictures."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oracles.masks import keep
from oracles.problem import AnyProblem

SAMPLE = 32


@dataclass(frozen=True)
class MaskTiles:
    """shares[i][j]: share of kept pairs, 0 to 1, of the step_q queries from i * step_q on and the step_k keys from
    j * step_k on; rows, cols: tokens in all."""

    rows: int
    cols: int
    step_q: int
    step_k: int
    shares: tuple[tuple[float, ...], ...]

    @property
    def sampled(self) -> bool:
        """True if tiles are so large that only SAMPLE x SAMPLE places of each were looked at."""
        return self.step_q * self.step_k > SAMPLE**2


def mask_tiles(problem: AnyProblem, batch: int, head: int, most_rows: int, most_cols: int) -> MaskTiles | None:
    """At most most_rows x most_cols tiles, whose sides are powers of two; None: there are no pairs."""
    n_q, n_k = problem.lengths_q[batch], problem.lengths_k[batch]
    if not (n_q and n_k):
        return None
    step_q, step_k = _step(n_q, most_rows), _step(n_k, most_cols)
    cols = torch.arange(n_k)[_places(n_k, step_k)][None, :]
    looked = torch.bincount(cols[0] // step_k)  # places of each column of tiles
    shares = []
    for start in range(0, n_q, step_q):
        stop = min(start + step_q, n_q)
        rows = torch.arange(start, stop)[_places(stop - start, stop - start)][:, None]
        here = {"batch": batch, "head": head, "group": problem.group, "len_q": n_q, "len_k": n_k}
        kept = keep(problem.mask, rows, cols, **here)
        kept = kept.broadcast_to(len(rows), cols.shape[1])
        seen = torch.zeros(len(looked), dtype=torch.int64).index_add_(0, cols[0] // step_k, kept.sum(0))
        shares.append(tuple((seen.double() / (looked * len(rows))).tolist()))
    return MaskTiles(n_q, n_k, step_q, step_k, tuple(shares))


def _places(length: int, step: int) -> torch.Tensor:
    """At most SAMPLE positions of every run of `step`, its first and last among them."""
    inside = torch.linspace(0, step - 1, min(step, SAMPLE)).round().long()
    every = (torch.arange(0, length, step)[:, None] + inside).flatten()
    return every[every < length]


def _step(length: int, most: int) -> int:
    """The least power of two, from 1, with at most `most` tiles."""
    step = 1
    while -(-length // step) > most:
        step *= 2
    return step
