"""Roundings: the variance of each kind that a kernel makes on its way, from the formats that a case has.

Variances are of errors in units of 1 / BASE: squares of fp32's roundoff are near 1 then, far from its ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from oracles.numerics import Numerics
from oracles.problem import Problem
from oracles.reference.backend import uses_numba

BASE = 2.0**24
ROUND2 = 1 / 3  # variance of a rounding error that is uniform in [-u, u]
# A sum of n terms one by one: the mean square of its partial sums is n / 2 (random signs) or n / 3 (one sign).
STEPS = 2
ALIKE = 4  # how often the measure of how equal terms are is squared: only nearly constant inputs count

Count = TypeVar("Count", float, Tensor)


@dataclass(frozen=True)
class Units:
    """Unit roundoffs and the smallest steps of the formats involved."""

    u: float  # of the input dtype
    step: float  # its smallest subnormal
    dot: float  # of an fp32 sum
    of: dict[str, Tensor | float]  # power of two above the largest |x| of q, k, v, do, bias: (x / of[x])^2 is in range

    @staticmethod
    def make(problem: Problem, numerics: Numerics, tensors: dict[str, Tensor | None]) -> Units:
        info = torch.finfo(problem.torch_dtype)
        sizes = {name: _unit(x) for name, x in tensors.items() if x is not None}
        dot = numerics.dot if problem.dtype != "float32" else 1 / BASE
        return Units(info.eps / 2, info.smallest_normal * info.eps, dot, sizes)

    def kept(self, where: str) -> float:
        """Variance of rounding a value of 1 at a place that is kept in `where`."""
        return ROUND2 * (self.u * BASE) ** 2 if where == "input" else 0.0

    def summed(self, terms: int) -> float:
        """Variance of an fp32 sum of that many terms, for partial sums of size 1."""
        return ROUND2 * (self.dot * BASE) ** 2 * (4 + terms / STEPS)

    def equal(self, terms: Count) -> Count:
        """Variance of a sum of so many equal terms, whose rounding errors are equal too, for a sum of 1."""
        return (terms * self.dot * BASE / 4) ** 2

    def alike(self, value2: Tensor, squares: Tensor, fourths: Tensor) -> Tensor:
        """Variance of a sum (value2 its square) as far as its terms are equal, or equal and 0; 0 for a usual sum.
        squares, fourths: the sums of the terms' squares and fourth powers."""
        count = equal_terms(value2, squares, fourths)
        return value2 * self.equal(count)

    def tiny(self, where: str) -> float:
        """Amount that rounding a P near the smallest subnormal adds to P squared, in units of the relative roundoff."""
        return (self.step / 2 / self.u) ** 2 if where == "input" else 0.0


def share(value2: Tensor, squares: Tensor) -> Tensor:
    """1 where the terms of a sum are equal, 0 where they are not nearly so; value2 is the sum squared, `squares` the
    sum of the terms' squares times their number: by Cauchy-Schwarz value2 <= squares, equal for equal terms."""
    return _steep((value2 / squares.clamp_min(1e-30)).clamp_max(1.0))


def equal_terms(value2: Tensor, squares: Tensor, fourths: Tensor) -> Tensor:
    """Number of equal terms of a sum, where the rest of them are 0; 0 where terms differ in size or in sign. value2:
    the sum squared; squares, fourths: sums of the terms' squares and fourth powers. Of n equal terms, and zeros,
    value2 / squares and squares^2 / fourths are both n; terms of both signs lower the first, others the second."""
    if uses_numba(value2):
        from oracles.reference import numba_loops

        found = torch.empty(value2.shape)
        given = (x.expand_as(value2).contiguous().view(-1).numpy() for x in (value2, squares, fourths))
        numba_loops.equal_terms(*given, found.view(-1).numpy())
        return found
    count = value2 / squares.clamp_min(1e-30)
    sized = squares * squares / fourths.clamp_min(1e-37)
    return count * _steep(torch.minimum(count, sized) / torch.maximum(count, sized).clamp_min(1e-30))


def _steep(share: Tensor) -> Tensor:
    """A share to the power of 2 ** ALIKE; pow would take ten times as long."""
    for _ in range(ALIKE):
        share = share * share
    return share


def _unit(x: Tensor) -> Tensor | float:
    """The power of two just above the largest finite |x|, 1 where there is none; no synchronisation."""
    if not x.numel():
        return 1.0
    if uses_numba(x):
        from oracles.reference import numba_loops

        most = numba_loops.largest(x.float().contiguous().flatten().numpy())
        return 2.0 ** math.ceil(math.log2(most)) if most > 0 else 1.0
    largest = x.float().nan_to_num(0.0, 0.0, 0.0).abs().amax()
    return torch.where(largest > 0, torch.exp2(torch.ceil(torch.log2(largest))), 1.0)
