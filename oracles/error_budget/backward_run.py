"""The backward pass of a same-precision run: dQ, dK, dV and dBias as the numerics round them, and variances."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from oracles.error_budget.forward_run import RUNS, ForwardRun
from oracles.error_budget.half_repeated import RowSets, fits_fp32
from oracles.error_budget.pair_variance import Gradients, GradientUnits
from oracles.error_budget.repeated_rows import RepeatedRows
from oracles.error_budget.rounding_units import BASE, equal_terms
from oracles.numerics import Numerics
from oracles.problem import Problem

NO_SETS = RowSets(None, None, None)


class BackwardRun:
    """dQ, dK, dV, dBias of a part, from its forward. Two runs differ in delta, because their O do; where delta is not
    made of O they are one, and `delta`, `ds`, `draw` have a first axis of 1."""

    def __init__(self, forward: ForwardRun, do: Tensor) -> None:
        f = self.f = forward
        self.do = f.chunk.take("do", do, torch.float32)
        self.dp = f.by_query(self.do, f.v)
        self.do_of_parts = [f.round(part.share * self.do, True) for part in f.parts]
        """dO of each call."""
        if f.numerics.delta == "input":
            delta = (f.round(f.o, True) * self.do).sum(-1, keepdim=True)
        else:
            delta = (f.again * self.dp).sum(-1, keepdim=True)[None]
        self.delta = delta
        weights = f.round(f.again, f.numerics.weights == "input")
        # of what the softmax is taken of: scores with softcap and bias
        self.ds = self._of_parts() if f.parts else weights * (self.dp - delta)
        self.draw = self.ds if f.chain is None else self.ds * f.chain

    def _of_parts(self) -> Tensor:
        """dS of both calls: each has its own O and dO, and its LSE a gradient."""
        f = self.f
        found, whole = torch.zeros(()), (f.o * self.do).sum(-1, keepdim=True)
        for part, o, do in zip(f.parts, f.of_parts, self.do_of_parts, strict=True):
            grad_lse = part.share * ((o * self.do).sum(-1, keepdim=True) - whole)
            delta = (o * do).sum(-1, keepdim=True) - grad_lse
            found = found + part.probs * (f.by_query(do, f.v) - delta)
        return found

    def _dv_of_parts(self, rounded: bool, by_head: bool) -> Tensor:
        """dV of both calls."""
        f = self.f
        pairs = zip(f.parts, self.do_of_parts, strict=True)
        return sum(
            (f.to_key(f.round(part.probs, rounded), do, by_head) for part, do in pairs),
            torch.zeros(()),
        )

    def runs(self) -> dict[str, Tensor]:
        """Answers, (RUNS, …), before the last rounding."""
        f, n = self.f, self.f.numerics
        by_head = n.heads == "input"
        if f.parts:
            dv = self._dv_of_parts(n.probs == "input", by_head)
        else:
            dv = f.to_key(f.round(f.again, n.probs == "input"), self.do, by_head)
        early = f.scale if n.dscaled == "dscores" else 1.0
        late = 1.0 if n.dscaled == "dscores" else f.scale
        draw = f.round(self.draw * early, n.dscores == "input")
        dk = f.to_key(draw, f.q_of_dk.expand(len(draw), *f.q.shape), by_head)
        found = {"dq": f.by_key(draw, f.folded) * late, "dk": dk if n.scales_q_of_dk else dk * late}
        if f.parts:
            each = (f.by_key(draw * part.keys, f.folded) * late for part in f.parts)
            found["dq"] = sum((f.round(dq, True) for dq in each), torch.zeros(()))
        found["dv"] = dv[None]
        if wants_dbias(f.problem):
            one_by_one = n.dbias == "input" and f.problem.bias is not None and f.problem.bias.dtype == "input"
            found["dbias"] = _sum_bias(f.problem, f.round(self.ds, one_by_one))
        return {name: x.expand(RUNS, *x.shape[1:]) for name, x in found.items()}

    def variance(self, o2: Tensor, lse2: Tensor) -> dict[str, Tensor]:
        """Variances in units of V, dO and K or Q, squared."""
        f, n, units, p = self.f, self.f.numerics, self.f.units, self.f.problem
        k1, q1, do1 = f.k / units.of["k"], f.q_of_dk / units.of["q"], self.do / units.of["do"]
        k2, q2, do2 = k1 * k1, q1 * q1, do1 * do1
        both = units.of["v"] * units.of["do"]
        o1 = f.o[0] / units.of["v"]
        terms = o1 * o1 * do2
        # where keys are in two calls dO of each is rounded, and with it every term of dP, delta and dV
        of_do = units.kept("input") if f.parts else 0.0
        of_dp = units.summed(p.dim_v)
        delta2 = (o2 * do2 + (units.kept(n.delta) + of_dp + of_do) * terms).sum(-1, keepdim=True)
        total2 = (self.delta[0] / both) ** 2
        delta2 = delta2 + of_dp * total2
        if f.fine:
            delta2 = delta2 + units.alike(total2, terms.sum(-1, keepdim=True), (terms * terms).sum(-1, keepdim=True))
        len_q, len_k = f.p.shape[-2] * p.group, f.p.shape[-1]
        by_tile = tiles(p.len_q, n), tiles(p.len_k, n)
        each = units.kept(n.sums) * by_tile[0] + units.kept(n.heads) * (p.group > 1)  # dK, dV: per tile and per head
        rounding, wants_bias = units.kept(n.dscores), wants_dbias(p)
        one_by_one = units.kept(n.dbias) if p.bias is not None and p.bias.dtype == "input" else 0.0
        step2 = (units.step * BASE / both) ** 2 / 12 if n.dscores == "input" and p.dtype == "float16" else None
        if step2 is not None and n.dscaled == "dscores" and f.scale:
            step2 = step2 / f.scale**2  # the step is of scale * dS
        single = GradientUnits(
            both=both,
            summed=of_dp + of_do,
            terms=p.dim_v,
            alike=units.equal(p.dim_v) if f.fine else None,
            weights=units.kept("input") if n.weights == "input" else 0.0,
            slope=(4 * n.tanh * BASE) ** 2 + units.summed(0),
            seen=step2,
            into_q=rounding + units.summed(len_k) + units.kept(n.sums) * by_tile[1],
            into_k=rounding + units.summed(len_q) + each,
            into_v=units.kept(n.probs) + of_do + units.summed(len_q) + each,
            into_bias=rounding + one_by_one + units.summed(len_q * p.batch),
            biased=wants_bias,
        )
        rows = (self.delta[0].squeeze(-1), delta2.squeeze(-1), lse2, f.total_alike2 if f.fine else None)
        squares = f.products2(do1, f.v / units.of["v"])
        pairs = Gradients(f.p, f.of_again, f.chain, self.ds[0], self.dp, *rows, squares, p.group, single)
        to = pairs.variances()
        pulled2 = f.by_key(to.pulled, k1) ** 2
        sets = RowSets.find(f.fold(q1), f.fold(do1), self._errs) if f.fine else NO_SETS
        repeated = sets.both
        to_k, to_v = (to.to_k, to.to_v) if repeated is None else (repeated.merged(to.to_k), repeated.merged(to.to_v))
        dq, dk, dv = f.by_key(to.to_q, k2), f.to_key(to_k, q2), f.to_key(to_v, do2)
        if n.folds_k and n.folded == "input":
            dq = dq + units.kept("input") * f.by_key((self.draw[0] / both) ** 2, k2)
        if f.fine:
            assert to.together is not None
            # equal keys have equal errors of dS, which add up
            dq = dq * (1 + equal_terms(pulled2, f.by_key(to.p2, k2), f.by_key(to.p2 * to.p2, k2 * k2)))
            value2, p4 = f.to_key(f.p, do1) ** 2, f.of.p2 * f.of.p2
            sum_alike2 = units.alike(value2, f.to_key(f.of.p2, do2), f.to_key(p4, do2 * do2))
            dv = dv + f.to_key(to.together, do1) ** 2 + sum_alike2 + value2 * units.summed(len_q)
            if repeated is not None:
                ds, one = self.draw[0] / both, torch.ones_like(do1[..., :1])
                dv = dv + value2 * f.to_key(repeated.counted(f.p), one) * units.equal(1)
                dk = dk + f.to_key(ds, q1) ** 2 * f.to_key(repeated.counted(ds.abs()), one) * units.equal(1)
        for rows_of, errors in self._shared(sets, pairs):
            dk = dk + sets.of_products(rows_of, f.fold(errors if f.chain is None else errors * f.chain), f.fold(q1))
        if sets.q is not None:
            dv = dv + sets.of_products(sets.q, f.fold(f.p * pairs.of_p().sqrt()), f.fold(do1))
        for part in f.parts:
            dq = dq + units.kept("input") * f.by_key(self.draw[0] / both * part.keys, k1) ** 2
        found = {"dq": dq + delta2 * pulled2, "dk": dk, "dv": dv}
        if to.to_bias is not None:
            assert p.bias is not None
            merged = self._merging_rows(repeated)
            if p.bias.cols:
                found["dbias"] = _sum_bias(p, merged(to.to_bias + f.of.p2 * delta2))
            else:
                of_delta = merged(delta2 * f.p.sum(-1, keepdim=True) ** 2)
                found["dbias"] = _sum_bias(p, merged(to.to_bias)) + _sum_bias(p, of_delta)
            found["dbias"] = found["dbias"] + self._shared_by_bias(sets, pairs)
        return found

    def _shared(self, sets: RowSets, pairs: Gradients) -> list[tuple[RepeatedRows, Tensor]]:
        """Half-repeated rows, and the error of dS before the softcap that they share: one standard deviation, with the
        sign of what it is a share of."""
        found = []
        if sets.do is not None:
            found.append((sets.do, self.f.p * pairs.of_dp().sqrt()))
        if sets.q is not None:
            found.append((sets.q, self.ds[0] / pairs.units.both * pairs.of_p().sqrt()))
        return found

    def _shared_by_bias(self, sets: RowSets, pairs: Gradients) -> Tensor | float:
        """Variance that errors shared by half-repeated rows add to dBias, which sums them over rows, over the heads of
        a group, or both. sets: those of a KV head's whole group."""
        f, bias = self.f, self.f.problem.bias
        assert bias is not None
        own = bias.heads and not bias.kv_heads  # a head of its own for each query head
        by_row = bias.rows and not own
        if not f.fine or (bias.rows and (own or f.problem.group == 1)):
            return 0.0
        if by_row:  # no row of one head meets another one
            sets = RowSets.find(self._heads_last(f.q), self._heads_last(self.do), self._errs, merged=False)
        elif own and f.problem.group > 1:
            sets = RowSets.find(f.q, self.do, self._errs)
        more: Tensor | float = 0.0
        for rows_of, errors in self._shared(sets, pairs):
            found = sets.of_sums(rows_of, self._heads_last(errors) if by_row else errors)
            found = found.transpose(-3, -2).reshape(errors.shape) if by_row else found
            more = more + _sum_bias(f.problem, found).clamp_min(0.0)
        return more

    def _errs(self, name: str) -> bool:
        """Whether fp32 rounds the dot products of Q and K, or of dO and V."""
        f = self.f
        x, y = (f.plain_q, f.k) if name == "q" else (self.do, f.v)
        return not fits_fp32(f.by_query(x.double(), y.double()))

    def _heads_last(self, x: Tensor) -> Tensor:
        """(…, heads_q, rows, d) as (…, heads_kv, rows, group, d)."""
        return x.unflatten(-3, (-1, self.f.problem.group)).transpose(-3, -2)

    def _merging_rows(self, repeated: RepeatedRows | None) -> Callable[[Tensor], Tensor]:
        """Function that merges variances of dS in repeated rows, before a dBias sums rows, and with `heads` unset also
        heads. repeated: the repeated rows of a KV head's whole group."""
        bias = self.f.problem.bias
        assert bias is not None
        if not self.f.fine or bias.rows:
            repeated = None
        elif bias.heads and not bias.kv_heads and self.f.problem.group > 1:
            repeated = RepeatedRows.find(self.f.q, self.do)
        return (lambda variance: variance) if repeated is None else repeated.merged


def tiles(length: int, numerics: Numerics) -> float:
    """Number of tiles that add to one result."""
    return math.ceil(length / numerics.tile) if numerics.sums == "input" else 0.0


def wants_dbias(problem: Problem) -> bool:
    return problem.bias is not None and problem.bias.grad


def _sum_bias(problem: Problem, x: Tensor) -> Tensor:
    """(…, sequences, heads_q, rows, len_k) summed over the axes along which the bias is broadcast."""
    bias = problem.bias
    assert bias is not None
    if bias.kv_heads:
        x = x.unflatten(-3, (-1, problem.group)).sum(-3)
    there = (bias.batch, bias.heads or bias.kv_heads, bias.rows, bias.cols)
    axes = [axis for axis, full in zip((-4, -3, -2, -1), there, strict=True) if not full]
    return x.sum(axes, keepdim=True) if axes else x
