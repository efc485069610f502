"""Same-precision run: what rounding alone does to a case's answers, as a kernel of the declared numerics rounds.

Two things come out of it, and the budget is made of both (see accuracy.py):
    runs   PyTorch runs in the problem's precision that round where the Numerics say. Two of them, with P normalised
           before and after P V, because a rounding that happens to be exact in one (a power of two) seldom is in the
           other.
    noise  the standard deviation that first-order error propagation gives every single element when each rounding is
           an independent random error of u / sqrt(3): sums of squares, such as u^2 sum_k P^2 V^2 for O. It keeps the
           budget of a row from collapsing where a run was lucky.
Dot products of values rounded to the input dtype are exact in fp32 up to the order of the sum, so the emulation
computes in fp32 and rounds explicitly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.error_budget.pair_variance import Gradients, GradientUnits, Scores, ScoreUnits, Squares
from oracles.error_budget.repeated_rows import RepeatedRows
from oracles.error_budget.rounding_units import BASE, ROUND2, Units, equal_terms
from oracles.numerics import FUSED, Numerics
from oracles.outputs import Outputs
from oracles.problem import Problem, shapes
from oracles.reference.attention import no_tf32
from oracles.reference.backend import uses_numba
from oracles.reference.chunks import Chunk, split

RUNS = 2
PAIR_BYTES = 4 * 24
CHUNK_BYTES = 256 << 20


@dataclass(frozen=True)
class Same:
    """`runs`: tensors (RUNS, *shape), fp32. `noise`: tensors of the problem's shapes, fp32, one standard deviation."""

    runs: Outputs
    noise: Outputs


def same_precision(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    do: Tensor | None = None,
    numerics: Numerics = FUSED,
) -> Same:
    """Runs and noise of a case, in the problem's layout, on the inputs' device; arguments as for `reference`.

    Padding and rows without keys have the reference's values in `runs` (0 and -inf) and no noise. Memory is bounded as
    the reference's is: large problems are cut into parts.
    """
    chunks = list(split(problem, PAIR_BYTES, CHUNK_BYTES))
    tensors = {"q": q, "k": k, "v": v, "do": do, "bias": bias}
    with torch.no_grad(), no_tf32():
        units = Units.make(problem, numerics, tensors)
        if len(chunks) == 1 and chunks[0].whole:
            runs, variance = _of_chunk(chunks[0], numerics, units, tensors)
            runs = {n: torch.stack([chunks[0].shaped(n, run) for run in x]) for n, x in runs.items()}
            variance = {n: chunks[0].shaped(n, x) for n, x in variance.items()}
        else:
            runs, variance = (
                _blank(problem, q.device, RUNS, do is not None),
                _blank(problem, q.device, 0, do is not None),
            )
            for chunk in chunks:
                chunk_runs, chunk_variance = _of_chunk(chunk, numerics, units, tensors)
                for name, x in chunk_variance.items():
                    _add(chunk, name, variance[name], x)
                    for run, values in zip(runs[name], chunk_runs[name], strict=True):
                        _add(chunk, name, run, values)
        noise = _noise(problem, numerics, units, runs, variance)
        return Same(Outputs(**{n: _stored(problem, n, x) for n, x in runs.items()}), Outputs(**noise))


def _noise(
    problem: Problem, numerics: Numerics, units: Units, runs: dict[str, Tensor], variance: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Standard deviations: variances out of their units, with the rounding of the result itself."""
    p, of = problem, units.of
    size: dict[str, Tensor | float] = {"o": of["v"], "lse": 1.0}
    if "do" in of:
        both = of["v"] * of["do"]
        size |= {"dv": of["do"], "dq": abs(p.scale_value) * both * of["k"], "dbias": both}
        size["dk"] = both * of["q"] * (1.0 if numerics.scaled == "q" else abs(p.scale_value))
    found = {}
    for name, x in variance.items():
        info = torch.finfo(stored_as(problem, name))
        times = 1.0
        if numerics.sums == "input" and name in ("dq", "dk", "dv"):
            times += _tiles(p.len_k if name == "dq" else p.len_q, numerics)
        if numerics.heads == "input" and name in ("dk", "dv"):
            times += p.group > 1
        terms = {"dq": p.len_k, "dk": p.len_q * p.group}.get(name, 0)  # o and dv have theirs in the variance
        steps = units.summed(terms) / BASE**2 if terms else 0.0
        last = math.sqrt(ROUND2 * times * (info.eps / 2) ** 2 + steps)
        least = info.smallest_normal * info.eps / 2
        found[name] = _deviation(x, runs[name][0], size[name] / BASE, last, least, name == "lse")
    return found


def _deviation(variance: Tensor, run: Tensor, unit: Tensor | float, last: float, least: float, lse: bool) -> Tensor:
    """One tensor's standard deviation: its variance is in units of `unit` squared; a result of 1 is rounded with a
    standard deviation of `last`, one that is not 0 by `least` at least; an LSE of -inf has none."""
    if uses_numba(run):
        from oracles.reference import numba_loops

        found = torch.empty(run.shape)
        numba_loops.noise(
            variance.contiguous().flatten().numpy(),
            run.contiguous().flatten().numpy(),
            float(unit),
            last,
            least,
            lse,
            found.view(-1).numpy(),
        )
        return found
    rounding = run.abs() * last
    whole = torch.hypot(variance.clamp_min(0).sqrt() * unit, rounding)
    if lse:
        return torch.where(rounding.isfinite(), whole, 0.0)
    return whole + torch.where(rounding == 0, 0.0, least)


def _of_chunk(
    chunk: Chunk, numerics: Numerics, units: Units, tensors: dict[str, Tensor | None]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Runs (RUNS, …) before the results are rounded, and variances without that last rounding, in the part's shapes."""
    forward = _Forward(chunk, numerics, units, tensors)
    runs, variance = {"o": forward.o, "lse": forward.lse.expand(RUNS, *forward.lse.shape)}, forward.variance()
    if tensors["do"] is not None:
        backward = _Backward(forward, tensors["do"])
        runs |= backward.runs()
        variance |= backward.variance(variance["o"], variance["lse"])
    return runs, variance


class _Forward:
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
        if numerics.scaled == "q":
            self.q = self.round(self.q * self.scale, True)
        if numerics.scaled == "both":
            root = math.sqrt(abs(self.scale))
            raw = self.by_query(self.q * math.copysign(root, self.scale), self.k * root)
        else:
            raw = self.by_query(self.q, self.k) * (self.scale if numerics.scaled == "scores" else 1.0)
        self.raw = self.round(raw, numerics.scores == "input")
        scores, self.chain = self.raw, None
        if p.softcap:
            bent = torch.tanh(self.raw / p.softcap)
            self.chain = 1 - bent * bent
            scores = self.round(bent * p.softcap, numerics.scores == "input")
        if bias is not None:
            scores = self.round(scores + chunk.bias(bias), numerics.scores == "input")
        keep = chunk.keep(self.q.device)
        if keep is not None:
            scores = torch.where(keep, scores, -math.inf)
        self.top = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        self.below = scores - self.top
        weights = torch.exp(self.below)
        total = weights.sum(-1, keepdim=True)
        safe = torch.where(total == 0, 1.0, total)
        self.keep, self.p = keep, weights / safe
        self.lse = (self.top + torch.log(total)).squeeze(-1)
        rounded = numerics.probs == "input"
        unnormalised = self.by_key(self.round(weights, rounded), self.v) / safe
        self.o = torch.stack([unnormalised, self.by_key(self.round(self.p, rounded), self.v)])

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
        once = 1.0 if n.scaled == "q" else self.scale**2
        own = units.summed(p.dim) + (units.kept("input") if n.scaled == "q" else 0.0)
        single = ScoreUnits(
            summed=own,
            terms=p.dim,
            alike=units.equal(p.dim) if self.fine else None,
            bent=(n.tanh * BASE * p.softcap) ** 2,
            shifted=2 * units.summed(0) + 2 * units.kept(n.scores),
            exp=ROUND2 * (n.exp * BASE) ** 2,
            step=units.tiny(n.probs) if p.dtype == "float16" else 0.0,
        )
        squares = self.products2(self.q, self.k, once)
        scores = Scores(self.raw, self.p, self.below, self.top, self.keep, self.chain, squares, p.group, single)
        found = self.of = scores.variances()
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
        lse = lse + units.summed(0) * (self.top.squeeze(-1).clamp(-1e15, 1e15) ** 2 + self.lse.clamp(-1e15, 1e15) ** 2)
        return {"o": o, "lse": lse}


class _Backward:
    """dQ, dK, dV, dBias of a part, from its forward. Two runs differ in delta, because their O do."""

    def __init__(self, forward: _Forward, do: Tensor) -> None:
        f = self.f = forward
        self.do = f.chunk.take("do", do, torch.float32)
        self.dp = f.by_query(self.do, f.v)
        if f.numerics.delta == "input":
            delta = (f.round(f.o, True) * self.do).sum(-1, keepdim=True)
        else:
            delta = (f.p * self.dp).sum(-1, keepdim=True).expand(RUNS, *f.o.shape[1:-1], 1)
        self.delta = delta
        self.ds = f.round(f.p, f.numerics.weights == "input") * (
            self.dp - delta
        )  # of what the softmax is taken of: scores with softcap and bias
        self.draw = self.ds if f.chain is None else self.ds * f.chain

    def runs(self) -> dict[str, Tensor]:
        """Answers, (RUNS, …), before the last rounding."""
        f, n = self.f, self.f.numerics
        by_head = n.heads == "input"
        dv = f.to_key(f.round(f.p, n.probs == "input"), self.do, by_head)
        early = f.scale if n.dscaled == "dscores" else 1.0
        late = 1.0 if n.dscaled == "dscores" else f.scale
        draw = f.round(self.draw * early, n.dscores == "input")
        dk = f.to_key(draw, f.q.expand(RUNS, *f.q.shape), by_head)
        found = {"dq": f.by_key(draw, f.k) * late, "dk": dk if n.scaled == "q" else dk * late}
        found["dv"] = dv.expand(RUNS, *dv.shape)
        if _wants_dbias(f.problem):
            one_by_one = n.dbias == "input" and f.problem.bias is not None and f.problem.bias.dtype == "input"
            found["dbias"] = _sum_bias(f.problem, f.round(self.ds, one_by_one))
        return found

    def variance(self, o2: Tensor, lse2: Tensor) -> dict[str, Tensor]:
        """Variances in units of V, dO and K or Q, squared."""
        f, n, units, p = self.f, self.f.numerics, self.f.units, self.f.problem
        k1, q1, do1 = f.k / units.of["k"], f.q / units.of["q"], self.do / units.of["do"]
        k2, q2, do2 = k1 * k1, q1 * q1, do1 * do1
        both = units.of["v"] * units.of["do"]
        o1 = f.o[0] / units.of["v"]
        terms = o1 * o1 * do2
        of_dp = units.summed(p.dim_v)
        delta2 = (o2 * do2 + (units.kept(n.delta) + of_dp) * terms).sum(-1, keepdim=True)
        total2 = (self.delta[0] / both) ** 2
        delta2 = delta2 + of_dp * total2
        if f.fine:
            delta2 = delta2 + units.alike(total2, terms.sum(-1, keepdim=True), (terms * terms).sum(-1, keepdim=True))
        len_q, len_k = f.p.shape[-2] * p.group, f.p.shape[-1]
        by_tile = _tiles(p.len_q, n), _tiles(p.len_k, n)
        each = units.kept(n.sums) * by_tile[0] + units.kept(n.heads) * (p.group > 1)  # dK, dV: per tile and per head
        rounding, wants_bias = units.kept(n.dscores), _wants_dbias(p)
        one_by_one = units.kept(n.dbias) if p.bias is not None and p.bias.dtype == "input" else 0.0
        step2 = (units.step * BASE / both) ** 2 / 12 if n.dscores == "input" and p.dtype == "float16" else None
        if step2 is not None and n.dscaled == "dscores" and f.scale:
            step2 = step2 / f.scale**2  # the step is of scale * dS
        single = GradientUnits(
            both=both,
            summed=of_dp,
            terms=p.dim_v,
            alike=units.equal(p.dim_v) if f.fine else None,
            weights=units.kept("input") if n.weights == "input" else 0.0,
            slope=(4 * n.tanh * BASE) ** 2 + units.summed(0),
            seen=step2,
            into_q=rounding + units.summed(len_k) + units.kept(n.sums) * by_tile[1],
            into_k=rounding + units.summed(len_q) + each,
            into_v=units.kept(n.probs) + units.summed(len_q) + each,
            into_bias=rounding + one_by_one + units.summed(len_q * p.batch),
            biased=wants_bias,
        )
        rows = (self.delta[0].squeeze(-1), delta2.squeeze(-1), lse2, f.total_alike2 if f.fine else None)
        squares = f.products2(do1, f.v / units.of["v"])
        to = Gradients(f.p, f.of, f.chain, self.ds[0], self.dp, *rows, squares, p.group, single).variances()
        pulled2 = f.by_key(to.pulled, k1) ** 2
        repeated = RepeatedRows.find(f.fold(q1), f.fold(do1)) if f.fine else None
        to_k, to_v = (to.to_k, to.to_v) if repeated is None else (repeated.merged(to.to_k), repeated.merged(to.to_v))
        dq, dk, dv = f.by_key(to.to_q, k2), f.to_key(to_k, q2), f.to_key(to_v, do2)
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
        found = {"dq": dq + delta2 * pulled2, "dk": dk, "dv": dv}
        if to.to_bias is not None:
            assert p.bias is not None
            merged = self._merging_rows(repeated)
            if p.bias.cols:
                found["dbias"] = _sum_bias(p, merged(to.to_bias + f.of.p2 * delta2))
            else:
                of_delta = merged(delta2 * f.p.sum(-1, keepdim=True) ** 2)
                found["dbias"] = _sum_bias(p, merged(to.to_bias)) + _sum_bias(p, of_delta)
        return found

    def _merging_rows(self, repeated: RepeatedRows | None) -> Callable[[Tensor], Tensor]:
        """Function that merges variances of dS in repeated rows, before a dBias sums rows, and with `heads` unset also
        heads. repeated: the repeated rows of a KV head's whole group."""
        bias = self.f.problem.bias
        assert bias is not None
        if not self.f.fine or bias.rows:
            repeated = None
        elif bias.heads and self.f.problem.group > 1:
            repeated = RepeatedRows.find(self.f.q, self.do)
        return (lambda variance: variance) if repeated is None else repeated.merged


def _norm2(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


def _tiles(length: int, numerics: Numerics) -> float:
    """Number of tiles that add to one result."""
    return math.ceil(length / numerics.tile) if numerics.sums == "input" else 0.0


def _wants_dbias(problem: Problem) -> bool:
    return problem.bias is not None and problem.bias.grad


def _sum_bias(problem: Problem, x: Tensor) -> Tensor:
    """(…, sequences, heads_q, rows, len_k) summed over the axes along which the bias is broadcast."""
    bias = problem.bias
    assert bias is not None
    there = (bias.batch, bias.heads, bias.rows, bias.cols)
    axes = [axis for axis, full in zip((-4, -3, -2, -1), there, strict=True) if not full]
    return x.sum(axes, keepdim=True) if axes else x


def stored_as(problem: Problem, name: str) -> torch.dtype:
    """The dtype in which an answer is stored."""
    if name == "lse" or (name == "dbias" and problem.bias is not None and problem.bias.dtype == "float32"):
        return torch.float32
    return problem.torch_dtype


def _stored(problem: Problem, name: str, x: Tensor) -> Tensor:
    """Values as stored; what only the dtype's range turns into an infinity stays a number, so that its error is one
    too."""
    dtype = stored_as(problem, name)
    stored = x.to(dtype).float()
    return torch.where(stored.isinf(), x, stored) if dtype == torch.float16 else stored


def _add(chunk: Chunk, name: str, whole: Tensor, values: Tensor) -> None:
    if name == "dbias":
        chunk.bias(whole).add_(values)
    elif name == "lse":
        chunk.put(name, whole, values)
    else:
        chunk.add(name, whole, values)


def _blank(problem: Problem, device: torch.device, runs: int, backward: bool) -> dict[str, Tensor]:
    """Zeros (runs, *shape) or, with runs = 0, variances (*shape); LSE of runs is -inf."""
    names = ["o", "lse"] + (["dq", "dk", "dv"] if backward else [])
    if backward and _wants_dbias(problem):
        names.append("dbias")
    sizes, lead = shapes(problem), (runs,) if runs else ()
    fill = {"lse": -math.inf} if runs else {}
    return {n: torch.full((*lead, *sizes[n]), fill.get(n, 0.0), device=device) for n in names}
