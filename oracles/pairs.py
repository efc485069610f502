"""What rounding does to every (query, key) pair: variances of scores, of P and of dS, on the way to those of answers.

The expressions here are what the budgets of same_precision.py are made of; each has a loop beside it (loops.py) that
does the same in one pass and is what runs on a CPU. All tensors are fp32, (sequences, heads_q, rows, len_k) unless said
otherwise, and variances are in units of 1 / BASE, squared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oracles.looped import looped

ALIKE = 4  # how often the measure of how equal terms are is squared: only nearly constant inputs count
LEAST = 2.0**-30  # of P: smaller ones count as this much, since their squares leave fp32
DEEPEST = -100.0  # of a score below its row's largest: P is 0 there
FARTHEST = 1e15  # of a row's largest score: its square leaves fp32 sooner than it does


@dataclass(frozen=True)
class Squares:
    """The sum of the squared terms of every dot product of queries and keys: `whole`, or where fp32's roundings hardly
    matter estimated from the norms, rows (sequences, heads_q, rows) and keys (sequences, heads_kv, len_k); each to be
    multiplied by `times`."""

    times: float
    whole: Tensor | None
    rows: Tensor | None
    keys: Tensor | None

    def tensor(self, group: int) -> Tensor:
        """One number per pair."""
        if self.whole is not None:
            return self.whole * self.times
        assert self.rows is not None and self.keys is not None
        keys = self.keys if group == 1 else self.keys.repeat_interleave(group, 1)
        return self.rows[..., None] * keys[..., None, :] * self.times


@dataclass(frozen=True)
class ScoreUnits:
    """Variances of single roundings.

    summed   of the sum of a score's `terms` products, for partial sums of size 1
    alike    of a score whose products are all equal, for a score of 1; None: that is not looked for
    bent     of the softcap's tanh, in units of the scores
    shifted  of s and of s - max
    exp      of the exponential
    step     of a P so small that it is rounded by a step and not by a share of it
    """

    summed: float
    terms: int
    alike: float | None
    bent: float
    shifted: float
    exp: float
    step: float


@dataclass(frozen=True)
class OfScores:
    """What comes of the forward pass.

    p2       P squared, where a key is seen never less than LEAST squared
    rel2     of a score, which is P's relative variance; alike2 is its part that comes of equal terms
    wide     p2 * rel2; total is its sum over the keys, (sequences, heads_q, rows)
    rounded  p2 with what rounding a tiny P adds
    """

    p2: Tensor
    rel2: Tensor
    wide: Tensor
    total: Tensor
    rounded: Tensor
    alike2: Tensor | None


@dataclass(frozen=True)
class GradientUnits:
    """Variances of single roundings, and what they are multiplied by.

    both     largest of V times largest of dO: the unit of dP and dS
    summed, terms, alike   of the sum of dP's products, as in ScoreUnits
    weights  of P where dS is made of a rounded one, else 0
    slope    of the softcap's derivative
    seen     of a dS so small that it is rounded by a step
    into_q, into_k, into_v, into_bias   of what is rounded or summed on the way to dQ, dK, dV, dBias, for a dS or P of 1
    biased   whether dBias is asked for
    """

    both: float | Tensor
    summed: float
    terms: int
    alike: float | None
    weights: float
    slope: float
    seen: float | Tensor | None
    into_q: float
    into_k: float
    into_v: float
    into_bias: float
    biased: bool


@dataclass(frozen=True)
class OfGradients:
    """What comes of the backward pass: variances of dS as it goes into dQ and dK, with delta's in to_k, and of P as it
    goes into dV; p2 and P through the softcap; `together`: errors of P that equal terms share; to_bias: of dS without
    delta's."""

    to_q: Tensor
    to_k: Tensor
    to_v: Tensor
    p2: Tensor
    pulled: Tensor
    together: Tensor | None
    to_bias: Tensor | None


def share(value2: Tensor, squares: Tensor) -> Tensor:
    """1 where the terms of a sum are equal, 0 where they are not nearly so; value2 is the sum squared, `squares` the
    sum of the terms' squares times their number: by Cauchy-Schwarz value2 <= squares, equal for equal terms."""
    found = (value2 / squares.clamp_min(1e-30)).clamp_max(1.0)
    for _ in range(ALIKE):  # pow would take ten times as long
        found = found * found
    return found


def of_scores(
    raw: Tensor,
    p: Tensor,
    below: Tensor,
    top: Tensor,
    keep: Tensor | None,
    chain: Tensor | None,
    squares: Squares,
    group: int,
    units: ScoreUnits,
) -> OfScores:
    """raw: the scores before softcap and bias. below: the scores less their row's largest, `top` (…, rows, 1). keep
    broadcasts over sequences and heads. chain: the softcap's derivative."""
    if looped(raw):
        return _of_scores_here(raw, p, below, top, keep, chain, squares, group, units)
    raw2, whole = raw * raw, squares.tensor(group)
    least = p.clamp_min(LEAST)
    p2 = (least if keep is None else torch.where(keep, least, 0.0)) ** 2
    rel2, alike2 = (raw2 + whole) * units.summed, None
    if units.alike is not None:
        alike2 = raw2 * share(raw2, units.terms * whole) * units.alike
        rel2 = rel2 + alike2
    if chain is not None:
        rel2 = rel2 * chain**2 + units.bent
    seen2 = below.clamp_min(DEEPEST) ** 2 + top.clamp(-FARTHEST, FARTHEST) ** 2
    rel2 = rel2 + seen2 * units.shifted + units.exp
    wide = p2 * rel2
    rounded = p2 + (p2 > 0) * units.step if units.step else p2
    return OfScores(p2, rel2, wide, wide.sum(-1), rounded, alike2)


def of_gradients(
    p: Tensor,
    scores: OfScores,
    chain: Tensor | None,
    ds: Tensor,
    dp: Tensor,
    squares: Squares,
    rows: tuple[Tensor, Tensor, Tensor, Tensor | None],
    group: int,
    units: GradientUnits,
) -> OfGradients:
    """ds, dp: as a run has them, ds before the softcap. rows: delta and its variance, LSE's variance and, where equal
    terms are looked for, that of equal terms in a row's sum of P; each (sequences, heads_q, rows)."""
    if looped(p):
        return _of_gradients_here(p, scores, chain, ds, dp, squares, rows, group, units)
    delta, delta2, lse2, alike_sum = (None if x is None else x[..., None] for x in rows)
    assert delta is not None and delta2 is not None and lse2 is not None
    ds2, dp2, whole = (ds / units.both) ** 2, (dp / units.both) ** 2, squares.tensor(group)
    of_dp2 = (dp2 + whole) * units.summed
    if units.alike is not None:
        of_dp2 = of_dp2 + dp2 * share(dp2, units.terms * whole) * units.alike
    own = ds2 * (scores.rel2 + lse2) + scores.p2 * of_dp2
    if units.weights:
        own = own + scores.rounded * units.weights * ((dp - delta) / units.both) ** 2
    own_raw, draw2, p2, pulled = own, ds2, scores.p2, p
    if chain is not None:
        chain2 = chain * chain
        own_raw, draw2, p2 = own * chain2 + ds2 * units.slope, ds2 * chain2, scores.p2 * chain2
        pulled = p * chain
    seen = 0.0 if units.seen is None else (scores.p2 > 0) * units.seen
    to_q = own_raw + draw2 * units.into_q + seen
    to_k = own_raw + draw2 * units.into_k + seen + p2 * delta2
    to_v = scores.rounded * units.into_v + scores.p2 * (scores.rel2 + lse2)
    together = None if scores.alike2 is None or alike_sum is None else p * (scores.alike2 + alike_sum).sqrt()
    to_bias = own + ds2 * units.into_bias + seen if units.biased else None
    return OfGradients(to_q, to_k, to_v, p2, pulled, together, to_bias)


_NONE: NDArray[np.float32] = np.zeros((0, 0, 0), np.float32)
_NO_ROWS: NDArray[np.float32] = np.zeros((0, 0), np.float32)
_ALL_KEPT: NDArray[np.bool_] = np.zeros((0, 0, 0, 0), np.bool_)


def _flat(x: Tensor | None) -> NDArray[np.float32]:
    """(sequences * heads, rows, len_k) or, of rows, (sequences * heads, rows)."""
    return _NONE if x is None else x.reshape(-1, *x.shape[2:]).contiguous().numpy()


def _rows(x: Tensor | None) -> NDArray[np.float32]:
    return _NO_ROWS if x is None else _flat(x)


def _of_scores_here(
    raw: Tensor,
    p: Tensor,
    below: Tensor,
    top: Tensor,
    keep: Tensor | None,
    chain: Tensor | None,
    squares: Squares,
    group: int,
    units: ScoreUnits,
) -> OfScores:
    from oracles import loops

    found = [torch.empty_like(p) for _ in range(3)]
    rounded = torch.empty_like(p) if units.step else None
    alike2 = torch.empty_like(p) if units.alike is not None else None
    total = torch.empty(p.shape[:3])
    kept = _ALL_KEPT if keep is None else keep.expand(*keep.shape[:2], *p.shape[2:]).contiguous().numpy()
    loops.scores(
        _flat(raw), _flat(p), _flat(below), _rows(top.squeeze(-1)), kept, _flat(chain), _flat(squares.whole),
        _rows(squares.rows), _rows(squares.keys), p.shape[1], group, squares.times, units.summed, units.terms,
        units.alike or 0.0, units.bent, units.shifted, units.exp, LEAST, units.step, *map(_flat, found),
        _flat(rounded), _flat(alike2), _rows(total),
    )  # fmt: skip
    p2, rel2, wide = found
    return OfScores(p2, rel2, wide, total, p2 if rounded is None else rounded, alike2)


def _of_gradients_here(
    p: Tensor,
    scores: OfScores,
    chain: Tensor | None,
    ds: Tensor,
    dp: Tensor,
    squares: Squares,
    rows: tuple[Tensor, Tensor, Tensor, Tensor | None],
    group: int,
    units: GradientUnits,
) -> OfGradients:
    from oracles import loops

    to_q, to_k, to_v = (torch.empty_like(p) for _ in range(3))
    p2, pulled = (scores.p2, p) if chain is None else (torch.empty_like(p), torch.empty_like(p))
    together = None if scores.alike2 is None else torch.empty_like(p)
    to_bias = torch.empty_like(p) if units.biased else None
    bent = (None, None) if chain is None else (p2, pulled)
    loops.gradients(
        _flat(p), _flat(scores.p2), _flat(scores.rel2), _flat(scores.rounded), _flat(scores.alike2), _flat(chain),
        _flat(ds), _flat(dp), _flat(squares.whole), *map(_rows, rows), _rows(squares.rows), _rows(squares.keys), group,
        squares.times, float(units.both), units.summed, units.terms, units.alike or 0.0, units.weights, units.slope,
        float(units.seen or 0.0), units.into_q, units.into_k, units.into_v, units.into_bias, _flat(to_q), _flat(to_k),
        _flat(to_v), *map(_flat, bent), _flat(together), _flat(to_bias),
    )  # fmt: skip
    return OfGradients(to_q, to_k, to_v, p2, pulled, together, to_bias)
