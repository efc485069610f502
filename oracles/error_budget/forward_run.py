"""The forward pass of a same-precision run: scores, P, O and LSE as the declared numerics round them, and variances."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oracles.error_budget.merged_keys import KeyPart, key_parts
from oracles.error_budget.pair_variance import OfScores, Scores, ScoreUnits, Squares
from oracles.error_budget.rounding_units import BASE, ROUND2, Units
from oracles.numerics import Numerics
from oracles.problem import bias_by_query
from oracles.reference.chunks import Chunk

RUNS = 2
LOG2_E = math.log2(math.e)


class ForwardRun:
    """Scores, probabilities, O and LSE of a part. Shapes (sequences, heads_q, rows, len_k) unless said otherwise."""

    def __init__(self, chunk: Chunk, numerics: Numerics, units: Units, tensors: dict[str, Tensor | None]) -> None:
        p = self.problem = chunk.problem
        self.chunk, self.numerics, self.units = chunk, numerics, units
        self.q, self.k, self.v = (
            chunk.take(n, x, torch.float32) for n, x in tensors.items() if n in ("q", "k", "v") and x is not None
        )
        bias = tensors["bias"]
        self.scale = p.scale_value
        self.fine = p.dtype == "float32" or numerics.probs == "float32"  # whether fp32's own roundings show
        self.plain_q = self.q
        if numerics.scaled == "q":
            self.q = self.round(self.q * self.scale, True)
        self.q_of_dk = self.q if numerics.scales_q_of_dk else self.plain_q
        self.folded = self.k  # k as it is where scale * log2(e) was folded into it, back in units of k
        if numerics.folds_k and self.scale:
            self.folded = self.round(self.k * (self.scale * LOG2_E), numerics.folded == "input") / LOG2_E / self.scale
        if numerics.scaled == "both":
            root = math.sqrt(abs(self.scale))
            raw = self.by_query(self.q * math.copysign(root, self.scale), self.k * root)
        elif numerics.scaled == "k":
            raw = self.by_query(self.q, self.folded) * self.scale
        else:
            raw = self.by_query(self.q, self.k) * (self.scale if numerics.scaled == "scores" else 1.0)
        self.raw = self.round(raw, numerics.scores == "input")
        self.keep = chunk.keep(self.q.device)
        scores, self.chain = self._finished(self.raw, bias)
        self.top = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        self.below = scores - self.top
        weights = torch.exp(self.below)
        total = weights.sum(-1, keepdim=True)
        safe = torch.where(total == 0, 1.0, total)
        self.p = weights / safe
        self.lse = (self.top + torch.log(total)).squeeze(-1)
        rounded = numerics.probs == "input"
        self.parts: tuple[KeyPart, ...] = key_parts(self.below, total, numerics.merged) if numerics.merged else ()
        """Keys of each call, where there are two."""
        self.of_parts = [self._of_part(part) for part in self.parts]
        """O of each call as it is stored, (RUNS, …)."""
        if self.parts:
            self.o = sum((part.share * o for part, o in zip(self.parts, self.of_parts, strict=True)), torch.zeros(()))
        else:
            unnormalised = self.by_key(self.round(weights, rounded), self.v) / safe
            self.o = torch.stack([unnormalised, self.by_key(self.round(self.p, rounded), self.v)])
        self.again = self._weights_again(bias) if numerics.rescored == "k" and numerics.scaled != "k" else self.p
        """P as the backward pass works it out."""

    def _of_part(self, part: KeyPart) -> Tensor:
        """O of one call, rounded: as for one call of all keys, P normalised after its product and before."""
        rounded = self.numerics.probs == "input"
        unnormalised = self.by_key(self.round(part.weights, rounded), self.v) / part.total
        normalised = self.by_key(self.round(part.probs, rounded), self.v)
        return self.round(torch.stack([unnormalised, normalised]), True)

    def _finished(self, raw: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scores with softcap, bias and mask, and the softcap's derivative, from those before."""
        cap, chain, rounded = self.problem.softcap, None, self.numerics.scores == "input"
        scores = raw
        if cap:
            bent = torch.tanh(raw / cap)
            chain = 1 - bent * bent
            scores = self.round(bent * cap, rounded)
        if bias is not None:
            scores = self.round(scores + bias_by_query(self.chunk.bias(bias), scores.shape[-3]), rounded)
        return (scores if self.keep is None else torch.where(self.keep, scores, -math.inf)), chain

    def _weights_again(self, bias: Tensor | None) -> Tensor:
        """P of scores that are worked out again from the folded k, and of the LSE of the forward pass."""
        raw = self.round(self.by_query(self.plain_q, self.folded) * self.scale, self.numerics.scores == "input")
        scores, _ = self._finished(raw, bias)
        return torch.exp(scores - self.lse.nan_to_num(neginf=0.0)[..., None])

    def round(self, x: Tensor, enabled: bool) -> Tensor:
        """x as it comes back from the input dtype, where wanted."""
        dtype = self.problem.torch_dtype
        return x.to(dtype).float() if enabled and dtype != torch.float32 else x

    def by_query(self, x: Tensor, y: Tensor) -> Tensor:
        """(…, heads_q, rows, d) times (…, heads_kv, len_k, d) transposed: (…, heads_q, rows, len_k)."""
        return (self.fold(x) @ y.transpose(-2, -1)).view(*x.shape[:-1], y.shape[-2])

    def by_key(self, x: Tensor, y: Tensor) -> Tensor:
        """(…, heads_q, rows, len_k) times (…, heads_kv, len_k, d): (…, heads_q, rows, d)."""
        return (self.fold(x) @ y).view(*x.shape[:-1], y.shape[-1])

    def to_key(self, x: Tensor, y: Tensor, rounded: bool = False) -> Tensor:
        """(…, heads_q, rows, len_k) transposed times (…, heads_q, rows, d): (…, heads_kv, len_k, d), heads summed."""
        if rounded and self.problem.group > 1:
            each = self.round(x.transpose(-2, -1) @ y, True)
            return each.unflatten(-3, (-1, self.problem.group)).sum(-3)
        return self.fold(x).transpose(-2, -1) @ self.fold(y)

    def products2(self, x: Tensor, y: Tensor, times: float = 1.0) -> Squares:
        """Sum of the squared terms of every dot product of by_query(x, y), times a number; where fp32's roundings
        hardly matter, estimated from the norms (twice the mean)."""
        if self.fine:
            return Squares(times, self.by_query(x * x, y * y), None, None)
        return Squares(times * (2 / x.shape[-1]), None, _norm2(x), _norm2(y))

    def fold(self, x: Tensor) -> Tensor:
        """(…, heads_q, rows, d) as (…, heads_kv, group * rows, d)."""
        group, (heads, rows) = self.problem.group, x.shape[-3:-1]
        return x if group == 1 else x.reshape(*x.shape[:-3], heads // group, group * rows, x.shape[-1])

    def variance(self) -> dict[str, Tensor]:
        """Variances of O (in units of V's largest, squared) and of LSE."""
        n, units, p = self.numerics, self.units, self.problem
        v1 = self.v / units.of["v"]
        v2 = v1 * v1
        len_k = self.p.shape[-1]
        rounded = units.kept("input") if n.scaled == "q" else units.kept(n.folded) if n.scaled == "k" else 0.0
        found = self.of = self._score_variances(rounded)
        self.of_again = found if self.again is self.p else self._score_variances(units.kept(n.folded))
        o1 = self.o[0] / units.of["v"]
        both = self.by_key(found.wide, torch.cat([v2, v1], -1))
        spread = both[..., : p.dim_v] - o1 * (2 * both[..., p.dim_v :] - o1 * found.total[..., None])
        v_squares, o2 = self.by_key(found.rounded, v2), o1 * o1
        o = spread.clamp_min(0) + (units.kept(n.probs) + units.summed(len_k)) * v_squares + units.summed(len_k) * o2
        lse = found.total + units.summed(len_k) + ROUND2 * (n.exp * BASE) ** 2
        if self.fine:
            p4 = found.p2 * found.p2
            self.total_alike2 = units.alike(self.p.sum(-1) ** 2, found.p2.sum(-1), p4.sum(-1))
            o = o + units.alike(o2, v_squares, self.by_key(p4, v2 * v2))
            lse = lse + self.total_alike2
        of_logs = units.summed(0) * (self.top.squeeze(-1).clamp(-1e15, 1e15) ** 2 + self.lse.clamp(-1e15, 1e15) ** 2)
        for part, of_part in zip(self.parts, self.of_parts, strict=True):  # O of each call, and its share
            o = o + (units.kept("input") + 2 * of_logs[..., None]) * (part.share * of_part[0] / units.of["v"]) ** 2
        if self.parts:
            lse = lse + 2 * of_logs
        if n.renormalised:
            times = math.ceil(len_k / n.tile) if n.renormalised == "tiles" else 1
            o = o + o2 * (times * of_logs)[..., None]
        return {"o": o, "lse": lse + of_logs}

    def _score_variances(self, rounded: float) -> OfScores:
        """Variances of the scores and of P; `rounded`: variance of what is rounded before their product, of 1."""
        n, units, p = self.numerics, self.units, self.problem
        once = 1.0 if n.scaled == "q" else self.scale**2
        single = ScoreUnits(
            summed=units.summed(p.dim) + rounded,
            terms=p.dim,
            alike=units.equal(p.dim) if self.fine else None,
            bent=(n.tanh * BASE * p.softcap) ** 2,
            shifted=2 * units.summed(0) + 2 * units.kept(n.scores),
            exp=ROUND2 * (n.exp * BASE) ** 2,
            step=units.tiny(n.probs) if p.dtype == "float16" else 0.0,
        )
        squares = self.products2(self.q, self.k, once)
        return Scores(
            self.raw, self.p, self.below, self.top, self.keep, self.chain, squares, p.group, single
        ).variances()


def _norm2(x: Tensor) -> Tensor:
    return (x * x).sum(-1)
