"""Inputs of native sparse attention that show a sum of gradients which is rounded after each of its terms.

NOTE [cancelling] Every value vector is near one of its KV head, and so is dO: each branch has nearly the same output,
and its gate the same gradient, which is large. The gates of the selected branch and of the window have opposite
weights: their terms of dQ, dlogit · W_gate, are large and of opposite sign, for the slope of a sigmoid is that of 1
minus it. The weight of the third gate, of the branch with the fewest keys, is next to nothing. So the sum is small in
every row that sees a selected key, and with it its error budget; the error of a sum that is rounded after each term
is not.
"""

from __future__ import annotations

from torch import Tensor

from oracles.problem import AnyProblem, sequence_view

EVEN = 1 / 4  # of q: probabilities are alike, so that the roundings of many average out in each output
SPREAD = 1 / 8  # of value vectors, and of rows of dO, around the common one
OTHER = 2.0**-9  # what is left of the compressed branch's gate weight, whose term nothing cancels


def cancel(p: AnyProblem, made: dict[str, Tensor]) -> None:
    """Changes q, v, do and w_gate, as far as there are some, to what NOTE [cancelling] says; in place."""
    made["q"] *= EVEN
    for b in range(p.batch):
        if not (p.lengths_q[b] and p.lengths_k[b]):
            continue
        v = sequence_view(p, "v", made["v"], b)
        common = v[:, :1].clone()
        v.mul_(SPREAD).add_(common)
        if "do" in made:
            sequence_view(p, "do", made["do"], b).mul_(SPREAD).add_(common.repeat_interleave(p.group, 0))
    if "w_gate" in made:
        made["w_gate"][:, 2] = -made["w_gate"][:, 1]
        made["w_gate"][:, 0] *= OTHER
