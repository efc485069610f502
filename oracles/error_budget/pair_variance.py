"""Rounding errors of every (query, key) pair: variances of scores, of P and of dS, on the way to those of answers.

The expressions here are what the budgets of same_precision.py are made of; each has a loop beside it (numba_loops.py)
that does the same in one pass and is what runs on a CPU. All tensors are fp32, (sequences, heads_q, rows, len_k)
unless said otherwise, and variances are in units of 1 / BASE, squared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oracles.error_budget.rounding_units import BASE, share
from oracles.reference.backend import uses_numba

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
    """Variances of the forward pass.

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
    """Variances of the backward pass: those of dS as it goes into dQ and dK, with delta's in to_k, and of P as it
    goes into dV; p2 and P through the softcap; `together`: errors of P that equal terms share; to_bias: of dS without
    delta's."""

    to_q: Tensor
    to_k: Tensor
    to_v: Tensor
    p2: Tensor
    pulled: Tensor
    together: Tensor | None
    to_bias: Tensor | None


@dataclass(frozen=True)
class Scores:
    """The forward pass of a same-precision run.

    raw     the scores before softcap and bias
    below   the scores less their row's largest, `top` (…, rows, 1)
    keep    bool, broadcasts over sequences and heads; None: all is seen
    chain   the softcap's derivative, None without one
    group   query heads per KV head
    """

    raw: Tensor
    p: Tensor
    below: Tensor
    top: Tensor
    keep: Tensor | None
    chain: Tensor | None
    squares: Squares
    group: int
    units: ScoreUnits

    def variances(self) -> OfScores:
        """By the loop where there is one."""
        return self._by_numba() if uses_numba(self.raw) else self._by_torch()

    def _by_torch(self) -> OfScores:
        units, raw2, whole = self.units, self.raw * self.raw, self.squares.tensor(self.group)
        least = self.p.clamp_min(LEAST)
        p2 = (least if self.keep is None else torch.where(self.keep, least, 0.0)) ** 2
        rel2, alike2 = (raw2 + whole) * units.summed, None
        if units.alike is not None:
            alike2 = raw2 * share(raw2, units.terms * whole) * units.alike
            rel2 = rel2 + alike2
        if self.chain is not None:
            rel2 = rel2 * self.chain**2 + units.bent
        seen2 = self.below.clamp_min(DEEPEST) ** 2 + self.top.clamp(-FARTHEST, FARTHEST) ** 2
        rel2 = rel2 + seen2 * units.shifted + units.exp
        wide = p2 * rel2
        rounded = p2 + (p2 > 0) * units.step if units.step else p2
        return OfScores(p2, rel2, wide, wide.sum(-1), rounded, alike2)

    def _by_numba(self) -> OfScores:
        from oracles.reference import numba_loops

        units, squares, p = self.units, self.squares, self.p
        p2, rel2, wide = (torch.empty_like(p) for _ in range(3))
        rounded = torch.empty_like(p) if units.step else None
        alike2 = torch.empty_like(p) if units.alike is not None else None
        total = torch.empty(p.shape[:3])
        kept = self.keep
        seen = _ALL_KEPT if kept is None else kept.expand(*kept.shape[:2], *p.shape[2:]).contiguous().numpy()
        numba_loops.scores(
            _flat(self.raw), _flat(p), _flat(self.below), _rows(self.top.squeeze(-1)), seen, _flat(self.chain),
            _flat(squares.whole), _rows(squares.rows), _rows(squares.keys), p.shape[1], self.group, squares.times,
            units.summed, units.terms, units.alike or 0.0, units.bent, units.shifted, units.exp, LEAST, units.step,
            _flat(p2), _flat(rel2), _flat(wide), _flat(rounded), _flat(alike2), _rows(total),
        )  # fmt: skip
        return OfScores(p2, rel2, wide, total, p2 if rounded is None else rounded, alike2)


@dataclass(frozen=True)
class Gradients:
    """The backward pass of a same-precision run.

    ds, dp  as a run has them, ds before the softcap
    delta, delta2   delta and its variance, (sequences, heads_q, rows)
    lse2    LSE's variance, (sequences, heads_q, rows)
    equal2  variance of a row's sum of P as far as its terms are equal; None: that is not looked for
    squares  of dP's products
    """

    p: Tensor
    scores: OfScores
    chain: Tensor | None
    ds: Tensor
    dp: Tensor
    delta: Tensor
    delta2: Tensor
    lse2: Tensor
    equal2: Tensor | None
    squares: Squares
    group: int
    units: GradientUnits

    def variances(self) -> OfGradients:
        """By the loop where there is one."""
        return self._by_numba() if uses_numba(self.p) else self._by_torch()

    def of_dp(self) -> Tensor:
        """Variances of dP, in units of `both` squared."""
        units, dp2, whole = self.units, (self.dp / self.units.both) ** 2, self.squares.tensor(self.group)
        found = (dp2 + whole) * units.summed
        return found if units.alike is None else found + dp2 * share(dp2, units.terms * whole) * units.alike

    def of_p(self) -> Tensor:
        """Relative variances of P as the backward pass has it."""
        return self.scores.rel2 + self.lse2[..., None]

    def _by_torch(self) -> OfGradients:
        units, scores, p = self.units, self.scores, self.p
        ds2, relative2 = (self.ds / units.both) ** 2, self.of_p()
        own = ds2 * relative2 + scores.p2 * self.of_dp()
        if units.weights:
            own = own + scores.rounded * units.weights * ((self.dp - self.delta[..., None]) / units.both) ** 2
        own_raw, draw2, p2, pulled = own, ds2, scores.p2, p
        if self.chain is not None:
            chain2 = self.chain * self.chain
            both2 = units.slope / BASE**2  # where the slope is 0 an error of dS meets the slope's own
            own_raw, draw2, p2 = own * (chain2 + both2) + ds2 * units.slope, ds2 * chain2, scores.p2 * chain2
            pulled = p * self.chain
        seen = 0.0 if units.seen is None else (scores.p2 > 0) * units.seen
        to_q = own_raw + draw2 * units.into_q + seen
        to_k = own_raw + draw2 * units.into_k + seen + p2 * self.delta2[..., None]
        to_v = scores.rounded * units.into_v + scores.p2 * relative2
        together = None
        if scores.alike2 is not None and self.equal2 is not None:
            together = p * (scores.alike2 + self.equal2[..., None]).sqrt()
        to_bias = own + ds2 * units.into_bias + seen if units.biased else None
        return OfGradients(to_q, to_k, to_v, p2, pulled, together, to_bias)

    def _by_numba(self) -> OfGradients:
        from oracles.reference import numba_loops

        units, scores, squares, p = self.units, self.scores, self.squares, self.p
        to_q, to_k, to_v = (torch.empty_like(p) for _ in range(3))
        bent = None if self.chain is None else (torch.empty_like(p), torch.empty_like(p))
        together = None if scores.alike2 is None else torch.empty_like(p)
        to_bias = torch.empty_like(p) if units.biased else None
        numba_loops.gradients(
            _flat(p), _flat(scores.p2), _flat(scores.rel2), _flat(scores.rounded), _flat(scores.alike2),
            _flat(self.chain), _flat(self.ds), _flat(self.dp), _flat(squares.whole), _rows(self.delta),
            _rows(self.delta2), _rows(self.lse2), _rows(self.equal2), _rows(squares.rows), _rows(squares.keys),
            self.group, squares.times, float(units.both), units.summed, units.terms, units.alike or 0.0,
            units.weights, units.slope, float(units.seen or 0.0), units.into_q, units.into_k, units.into_v,
            units.into_bias, _flat(to_q), _flat(to_k), _flat(to_v), *map(_flat, bent or (None, None)),
            _flat(together), _flat(to_bias),
        )  # fmt: skip
        p2, pulled = bent or (scores.p2, p)
        return OfGradients(to_q, to_k, to_v, p2, pulled, together, to_bias)


_NONE: NDArray[np.float32] = np.zeros((0, 0, 0), np.float32)
_NO_ROWS: NDArray[np.float32] = np.zeros((0, 0), np.float32)
_ALL_KEPT: NDArray[np.bool_] = np.zeros((0, 0, 0, 0), np.bool_)


def _flat(x: Tensor | None) -> NDArray[np.float32]:
    """(sequences * heads, rows, len_k) or, of rows, (sequences * heads, rows)."""
    return _NONE if x is None else x.reshape(-1, *x.shape[2:]).contiguous().numpy()


def _rows(x: Tensor | None) -> NDArray[np.float32]:
    return _NO_ROWS if x is None else _flat(x)
