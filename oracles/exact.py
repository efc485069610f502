"""Exact answers: where rounding has no say, any difference is a bug, however small, and it says which key it is about.

A row whose largest scores are equal, a power of two in number and so far above the rest that those weigh nothing in
fp32, has weights that are powers of two. Sums of products with integers are then exact in any order and any format in
use, as long as they fit its significand; what does not fit is not judged. Nothing is assumed of how the inputs were
made: `judge` proves from the numbers themselves, in fp64, which elements of which answer must be right to the bit.
A budget cannot see one key too many or too few among 16,384; this can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.exact_finding import finding_of
from oracles.finding import Finding
from oracles.masks import Full
from oracles.numerics import Numerics
from oracles.outputs import Outputs
from oracles.problem import Problem, bias_by_query, bias_view, mask_tile, sequence_view, shapes
from oracles.reference.chunks import rows_there

GAP = 110.0  # exp(-GAP) is 0 in fp32
NEAR = 16.0  # largest |score| of a row that 16-bit answers are exact for; in fp32 it must be 0: s * log2(e) is rounded
SIGNIFICAND = {"bfloat16": 8, "float16": 11, "float32": 24}
FP32 = 2.0**24
SPLIT = 2.0**-19  # error of a weight that was made of two logarithms of up to 16
MOST = 1 << 22  # pairs in one piece


@dataclass(frozen=True)
class Certified:
    """Values that must be right to the bit: the values in fp64, and where (bool), both in the problem's layout, by
    name; and how far off it may be all the same, where a target's Numerics split the keys (fp64; else 0)."""

    want: dict[str, Tensor]
    where: dict[str, Tensor]
    slack: dict[str, Tensor]

    @property
    def share(self) -> dict[str, float]:
        """Share of the elements of each tensor that are certified."""
        return {name: float(x.double().mean()) if x.numel() else 0.0 for name, x in self.where.items()}


def judge(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    got: Outputs,
    *,
    bias: Tensor | None = None,
    do: Tensor | None = None,
    numerics: Numerics,
    right: Outputs | None = None,
) -> list[Finding]:
    """One finding per tensor of `got` that differs where it must be exact; names the key and the row that explain it.

    Arguments as for `reference.reference`; answers on the same device. LSE is not judged: it is a logarithm. Nor is
    padding, which is no sum at all. right: what `reference` gave in fp64, where it is known: answers that are that,
    rounded to their dtype, are exact wherever they must be, and nothing has to be proven.
    """
    if right is not None and _all_as(right, got):
        return []
    certified = certify(problem, q, k, v, bias=bias, do=do, numerics=numerics)
    given = {"q": q, "k": k, "v": v, "do": do}
    found = []
    for name, tensor in got.items():
        if name not in certified.want:
            continue
        off = (tensor.double() - certified.want[name]).abs()
        bad = certified.where[name] & ~(off <= certified.slack[name])
        there = rows_there(problem, name, bad.device) if problem.layout == "padded" else None
        bad = bad if there is None else bad & there[..., None]
        if bool(bad.any()):
            found.append(finding_of(problem, given, name, tensor, certified.want[name], bad))
    return found


def _all_as(right: Outputs, got: Outputs) -> bool:
    rounded = ((x, getattr(right, name)) for name, x in got.items() if name in ("o", "dq", "dk", "dv"))
    return all(torch.equal(x, expected.to(x.dtype)) for x, expected in rounded)


def certify(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    do: Tensor | None = None,
    numerics: Numerics,
) -> Certified:
    """The exact answers of a problem and where they are proven. O(pairs * dim), in bounded memory."""
    p, sizes = problem, shapes(problem)
    names = ["o"] + (["dq", "dk", "dv"] if do is not None else [])
    of = {name: _Sum.blank(sizes[name], q.device) for name in names}
    with torch.no_grad():
        for b in range(p.batch):
            if not (p.lengths_q[b] and p.lengths_k[b]):
                continue
            given = {n: sequence_view(p, n, x, b).double() for n, x in _there(q=q, k=k, v=v, do=do)}
            sums = {n: x.of_sequence(p, n, b) for n, x in of.items()}
            for head in range(p.heads_kv):
                for rows in _chunks(p, b):
                    _Piece(p, b, head, rows, given, bias, numerics).add_to(sums)
    found = Certified({}, {}, {})
    for name, x in of.items():
        times = p.scale_value if name in ("dq", "dk") else 1.0
        want = x.value * times
        fits = (x.size == 0) | ((x.size <= _room(p, numerics, name) * x.unit) & _power_of_two(times))
        found.slack[name] = x.slack * abs(times)
        found.want[name], found.where[name] = want, ~x.spoilt & fits & (want.to(p.torch_dtype).double() == want)
    return found


def _room(p: Problem, n: Numerics, name: str) -> float:
    """Largest multiple of its unit that a sum may be, to be exact where it is kept: in fp32, or in the inputs'
    dtype."""
    by_head = n.heads == "input" and p.group > 1 and name in ("dk", "dv")
    return 2.0 ** SIGNIFICAND[p.dtype] if name != "o" and (n.sums == "input" or by_head) else FP32


@dataclass(frozen=True)
class _Sum:
    """A tensor of sums: their values, the sums of the terms' magnitudes, a power of two that divides every term, where
    a term is not exact, and by how much a sum may be off."""

    value: Tensor
    size: Tensor
    unit: Tensor
    spoilt: Tensor
    slack: Tensor

    @staticmethod
    def blank(shape: tuple[int, ...], device: torch.device) -> _Sum:
        zeros = torch.zeros(shape, dtype=torch.float64, device=device)
        return _Sum(zeros, zeros.clone(), zeros + math.inf, zeros.bool(), zeros.clone())

    def of_sequence(self, p: Problem, name: str, b: int) -> _Sum:
        return _Sum(
            *(sequence_view(p, name, x, b) for x in (self.value, self.size, self.unit, self.spoilt, self.slack))
        )

    def add(self, at: tuple[slice | int, ...], value: Tensor, size: Tensor, unit: Tensor, spoilt: Tensor) -> None:
        self.value[at] += value
        self.size[at] += size
        self.unit[at] = torch.minimum(self.unit[at], unit)
        self.spoilt[at] |= spoilt


class _Piece:
    """Rows of one KV head's group: (group, rows, …) for what is per query row, (len_k, …) for what is per key."""

    def __init__(
        self, p: Problem, b: int, head: int, rows: slice, given: dict[str, Tensor], bias: Tensor | None, n: Numerics
    ) -> None:
        self.p, self.n, self.head, self.rows = p, n, head, rows
        self.heads = slice(head * p.group, (head + 1) * p.group)
        self.q, self.k, self.v = given["q"][self.heads, rows], given["k"][head], given["v"][head]
        self.do = given["do"][self.heads, rows] if "do" in given else None
        scores = self.q @ self.k.T * p.scale_value
        if p.softcap:
            scores = p.softcap * torch.tanh(scores / p.softcap)
        if bias is not None:
            part = bias_by_query(bias_view(p, bias, b).double(), p.heads_q)
            part = part[self.heads] if part.shape[0] > 1 else part
            scores = scores + (part[:, rows] if part.shape[1] > 1 else part)
        kept = torch.ones_like(scores, dtype=torch.bool)
        if p.mask != Full():
            span = (rows.start, rows.stop)
            tiles = [mask_tile(p, b, h, span, (0, len(self.k)), self.q.device) for h in range(*_span(self.heads))]
            kept = torch.stack([tile.expand(kept.shape[1:]) for tile in tiles])
        scores = scores.masked_fill(~kept, -math.inf)
        top = scores.amax(-1, keepdim=True)
        on = (scores == top) & kept
        count = on.sum(-1, keepdim=True).double()
        rest = scores.masked_fill(on, -math.inf).amax(-1, keepdim=True)
        near = top.abs() <= (0.0 if p.dtype == "float32" else NEAR)
        self.exact_scores = _exact_scores(n, p.scale_value)
        alike = (count == 1) | self.exact_scores
        gap = GAP + 4 * self._folding_error()
        self.good = ((rest < top - gap) & near & alike & (torch.log2(count) % 1 == 0))[..., 0] | ~kept.any(-1)
        self.weights = torch.where(on & self.good[..., None], 1 / count.clamp_min(1), 0.0)
        self.kept, self.count = kept, count.clamp_min(1)

    def add_to(self, sums: dict[str, _Sum]) -> None:
        rows, keys = (self.heads, self.rows), (self.head,)
        unit_v, bad = _lowest(self.v, 0), ~self.good[..., None]
        o, size = self.weights @ self.v, self.weights @ self.v.abs()
        split = self._split(o, size)
        inexact_o = bad | (self.count > 1) if self.n.renormalised == "tiles" else bad
        sums["o"].add(rows, o, size, (unit_v / self.count).expand_as(o), inexact_o.expand_as(o))
        sums["o"].slack[rows] += 2 * SPLIT * size * split  # as much again by its own rounding
        if self.do is None:
            return
        if not self.exact_scores or self.n.rescored == "k":  # a backward pass works the weights out again, its own way
            bad = torch.ones_like(bad)
        if self.p.dtype == "float32":  # … from LSE, a logarithm: rounded to 16 bits they are exact again
            bad = bad | (self.count > 1)
        exact_o = (size <= FP32 * unit_v / self.count).all(-1, keepdim=True)
        exact_o &= (o.to(self.p.torch_dtype).double() == o).all(-1, keepdim=True)
        exact_o &= ~split.any(-1, keepdim=True) & ~inexact_o
        ds, exact = self._dscores(o, exact_o)
        bad_rows = bad | ~exact[..., None]
        lowest = _lowest(ds, -1)[..., None]
        of_k, of_q, of_do = _lowest(self.k, 0), _lowest(self.q, (0, 1)), _lowest(self.do, (0, 1))
        dq = ds @ self.k
        sums["dq"].add(rows, dq, ds.abs() @ self.k.abs(), lowest * of_k, bad_rows.expand_as(dq))
        by_key = _lowest(ds, (0, 1))[:, None] * of_q
        spoilt = (self.kept & bad_rows).any(1).any(0)[:, None]
        dk = _sum_rows(ds, self.q)
        sums["dk"].add(keys, dk, _sum_rows(ds.abs(), self.q.abs()), by_key, spoilt.expand_as(dk))
        spoilt = (self.kept & bad).any(1).any(0)[:, None]
        dv = _sum_rows(self.weights, self.do)
        by_key = _lowest(self.weights, (0, 1))[:, None] * of_do
        sums["dv"].add(keys, dv, _sum_rows(self.weights, self.do.abs()), by_key, spoilt.expand_as(dv))

    def _folding_error(self) -> float:
        """Largest error of a score whose k has the scale folded into it: of 1/2 ulp in each of its products."""
        if self.n.scaled != "k":
            return 0.0
        unit = 2.0 ** -(SIGNIFICAND[self.p.dtype] if self.n.folded == "input" else 24)
        sizes = self.q.abs() @ self.k.abs().T
        return float(sizes.amax()) * abs(self.p.scale_value) * unit if sizes.numel() else 0.0

    def _split(self, o: Tensor, size: Tensor) -> Tensor:
        """Rows of O that may not be exact because they, or parts of them, were normalised by their LSEs: in sums of
        several keys that rounding to the dtype does not bring back, above all where they cancel."""
        if not (self.n.splits or self.n.renormalised == "end"):
            return torch.zeros_like(o, dtype=torch.bool)
        hidden = 2.0 ** -(SIGNIFICAND[self.p.dtype] + 1)  # relative to O, errors that its last rounding removes
        return (self.count > 1) & (o.abs() * hidden < size * SPLIT)

    def _dscores(self, o: Tensor, exact_o: Tensor) -> tuple[Tensor, Tensor]:
        """dS and, per row, whether it is exact and representable in the input dtype, before the scale and after."""
        assert self.do is not None
        unit = _lowest(self.do, None) * _lowest(self.v, None)
        dp, delta = self.do @ self.v.T, (self.do * o).sum(-1, keepdim=True)
        exact = self.do.abs() @ self.v.abs().T <= FP32 * unit
        exact &= (self.do * o).abs().sum(-1, keepdim=True) <= FP32 * unit / self.count
        ds = self.weights * (dp - delta)
        exact &= ds.to(self.p.torch_dtype).double() == ds
        return ds, (exact & exact_o).all(-1) | (self.do == 0).all(-1)


def _exact_scores(n: Numerics, scale: float) -> bool:
    """True if integer products are exact scores, wherever the scale goes: a library may well put it on a factor. Never
    with log2(e), which is no short number."""
    return n.scaled != "k" and _power_of_two(math.sqrt(abs(scale)) if n.scaled == "both" else scale)


def _power_of_two(x: float) -> bool:
    return x != 0 and math.frexp(abs(x))[0] == 0.5


def _lowest(x: Tensor, over: int | tuple[int, ...] | None) -> Tensor:
    """The largest power of two that divides every element along the axes `over` (None: all); inf where all are 0."""
    fraction, exponent = torch.frexp(x)
    whole = (fraction * 2.0**53).long()
    low = torch.where(x == 0, math.inf, torch.ldexp((whole & -whole).double(), exponent - 53))
    return low.amin() if over is None else low.amin(over)


def _sum_rows(x: Tensor, y: Tensor) -> Tensor:
    """(group, rows, len_k) transposed times (group, rows, d): (len_k, d)."""
    return x.flatten(0, 1).T @ y.flatten(0, 1)


def _chunks(p: Problem, b: int) -> Iterator[slice]:
    step = max(MOST // (p.group * p.lengths_k[b]), 1)
    for start in range(0, p.lengths_q[b], step):
        yield slice(start, min(start + step, p.lengths_q[b]))


def _there(**tensors: Tensor | None) -> list[tuple[str, Tensor]]:
    return [(name, x) for name, x in tensors.items() if x is not None]


def _span(part: slice) -> tuple[int, int]:
    return part.start, part.stop
