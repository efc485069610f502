"""Repeated rows: rows that are equal in Q and in dO, whose rounding errors are equal too and add up instead of
cancelling.

A kernel does the same to equal rows, so dS and P err in all of them by the same amount. Their sum over n repeated rows
errs n times as far as one row, where n independent ones would err sqrt(n) times as far. Inputs with few different
queries have many repeated rows: constant ones, one-hot ones (a "needle" for each query), and those of one or two
integers. Rows that are equal in one of the two alone share a part of their errors: see half_repeated.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

_SMALL = 2.0**-24  # of the largest term
_SEED = 20  # of the numbers that a row's bits are multiplied by


@dataclass(frozen=True)
class RepeatedRows:
    """`first`: int64 (sets * rows,): the index of the first row equal to each row, which is its own where none comes
    before."""

    first: Tensor

    @staticmethod
    def find(*tensors: Tensor) -> RepeatedRows | None:
        """Finds them in fp32 tensors (…, rows, dim), all of one shape but for `dim`; only rows of one set (…) are
        compared. None where no row is repeated. Synchronises with the device."""
        rows = tensors[0].shape[-2]
        key = torch.stack([_hashed(x.reshape(-1, rows, x.shape[-1])) for x in tensors]).sum(0)
        ordered, order = key.sort(dim=-1, stable=True)
        begins = torch.ones_like(ordered, dtype=torch.bool)
        begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        if bool(begins.all()):
            return None
        places = torch.arange(rows, device=key.device).expand_as(order)
        begin = torch.where(begins, places, 0).cummax(-1).values
        first = torch.empty_like(order).scatter_(-1, order, order.gather(-1, begin))
        return RepeatedRows((first + torch.arange(len(first), device=first.device)[:, None] * rows).flatten())

    def groups(self) -> Iterator[Tensor]:
        """Sets of more than one row, as indices of rows (sets of that size, size), one tensor for each size.
        Synchronises with the device."""
        counts = torch.bincount(self.first, minlength=len(self.first))
        order, ends = self.first.argsort(stable=True), counts.cumsum(0)
        for size in counts[counts > 1].unique().tolist():
            begins = ends[counts == size] - size
            yield order[begins[:, None] + torch.arange(size, device=order.device)]

    def merged(self, variance: Tensor) -> Tensor:
        """Variances (…, rows, keys), with those of repeated rows merged: the first has (sum of standard
        deviations)^2, the rest have 0. Leading axes may be split otherwise than in `find`, as long as sets and rows lie
        in the same order."""
        return self.summed(variance.sqrt()).square_()

    def counted(self, terms: Tensor) -> Tensor:
        """Squared number of repeated rows whose terms are not too small to be rounded at all, from the magnitudes of
        terms (…, rows, keys) that are summed over rows: at the first of them, else 0. A term that is added to a longer
        sum is rounded by what its own last bits say, so equal ones err alike, whatever comes between them."""
        largest = terms.amax(-2, keepdim=True)
        return self.summed((terms > largest * _SMALL).to(terms.dtype)).square_()

    def summed(self, x: Tensor) -> Tensor:
        """Numbers (…, rows, keys) summed over repeated rows: at the first of them, the rest have 0."""
        flat = x.reshape(-1, x.shape[-1])
        return torch.zeros_like(flat).index_add_(0, self.first, flat).view(x.shape)


def _hashed(x: Tensor) -> Tensor:
    """int64 (sets, rows): equal for equal rows, and for hardly any others."""
    bits = (x + 0.0).contiguous().view(torch.int32).long()  # -0 is 0
    return (bits * _odd_numbers(x.shape[-1]).to(x.device)).sum(-1)


@lru_cache(maxsize=64)
def _odd_numbers(count: int) -> Tensor:
    """int64 (count,): random odd numbers, which follow from their count."""
    generator = torch.Generator().manual_seed(_SEED + count)
    return torch.randint(1 << 62, (count,), generator=generator).mul_(2).add_(1)
