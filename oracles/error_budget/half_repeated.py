"""Half-repeated rows: rows that are equal in dO but not in Q, or in Q but not in dO, share one part of their errors.

    dO equal   dP[i, j] = dO . v_j is one number for all these rows i, with one rounding error e_j. dS[i, j] errs by
               P[i, j] e_j, dK_j by e_j * sum_i P[i, j] q_i, and a dBias that sums rows by e_j * sum_i P[i, j].
    Q equal    the score q . k_j is one number, P[i, j] errs by the share r_j of itself. dV_j errs by
               r_j * sum_i P[i, j] dO_i, dK_j by r_j * sum_i dS[i, j] q_i, and such a dBias by r_j * sum_i dS[i, j].

Dot products that are exact, as those of one-hot inputs or of small integers, share no error.

Each is one random number times a sum over the rows. Independent errors, which budgets count at first, give the sum of
the squares instead. A budget grows where the square of the sum is larger, and shrinks nowhere. Rows that one KV head's
group of query heads has in common count too, as do sets of any size. Rows equal in both are in repeated_rows.py, and
within a half-repeated set they are counted as there. Of a problem that is computed in parts (reference/chunks.py),
rows of different parts count as independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.error_budget.repeated_rows import RepeatedRows

MOST = 1 << 22  # elements of the products of sets that are made at once


@dataclass(frozen=True)
class RowSets:
    """Sets of equal rows: equal in both Q and dO, in Q, and in dO. `q` and `do` are None where they are no more than
    those of `both`, or share no error."""

    both: RepeatedRows | None
    q: RepeatedRows | None
    do: RepeatedRows | None

    @staticmethod
    def find(q: Tensor, do: Tensor, errs: Callable[[str], bool], *, merged: bool = True) -> RowSets:
        """Finds them in fp32 tensors (…, rows, dim); only rows of one set (…) are compared. Synchronises with the
        device.

        errs    whether the dot products that the rows of 'q' or 'do' go into are rounded
        merged  whether rows equal in both are counted as such; else `both` is None
        """
        of_q, of_do = RepeatedRows.find(q), RepeatedRows.find(do)
        both = RepeatedRows.find(q, do) if merged and of_q is not None and of_do is not None else None

        def larger(name: str, sets: RepeatedRows | None) -> RepeatedRows | None:
            if sets is None or (both is not None and torch.equal(sets.first, both.first)):
                return None
            return sets if errs(name) else None

        return RowSets(both, larger("q", of_q), larger("do", of_do))

    def of_products(self, sets: RepeatedRows, errors: Tensor, x: Tensor) -> Tensor:
        """Variance that shared errors add to sum_i error[i, j] x[i]: (…, keys, dim).

        sets    self.q or self.do
        errors  (…, rows, keys), one standard deviation with the sign of what it is a share of
        x       (…, rows, dim)
        """
        rows, keys = errors.shape[-2:]
        flat, terms = errors.reshape(-1, keys), x.reshape(-1, x.shape[-1])
        found = flat.new_zeros(len(flat) // rows, keys, x.shape[-1])
        there = torch.zeros_like(flat[:, :1])
        for group in sets.groups():
            there[group.flatten()] = 1.0
            for part in group.split(max(MOST // (keys * x.shape[-1]), 1)):
                found.index_add_(0, part[:, 0] // rows, (flat[part].mT @ terms[part]).square_())
        alone = self._alone(errors * there.view(*errors.shape[:-1], 1))
        return (found.view(*x.shape[:-2], keys, x.shape[-1]) - alone.mT @ (x * x)).clamp_min_(0.0)

    def of_sums(self, sets: RepeatedRows, errors: Tensor) -> Tensor:
        """Variance that shared errors add to sum_i error[i, j], at the first row of each set: (…, rows, keys). Negative
        where the errors of a set cancel, so that the caller sums it first."""
        return sets.summed(errors).square_() - self._alone(errors)

    def _alone(self, errors: Tensor) -> Tensor:
        """Variances that are counted without half-repeated rows."""
        errors2 = errors * errors
        return errors2 if self.both is None else self.both.merged(errors2)


def fits_fp32(x: Tensor) -> bool:
    """True if every number of an fp64 tensor is one of fp32. Synchronises with the device."""
    return torch.equal(x.float().double(), x)
