"""Each sequence of a padded batch in a call of its own, without its padding: what a loop over a batch does.

A padded call has one length of queries and one of keys, so that a case shows what a kernel does with one remainder of a
tile. A batch of sequences that differ has as many as it has sequences. Each call gets views of the batch, in which NaN
lies beyond the sequence: a row that is read past the end is never a finite number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from msgspec import structs
from torch import Tensor
from torch.nn.functional import pad

from fuzz.core.target import Tensors
from oracles.masks import PerBatch
from oracles.metamorphic.permutations import of_sequences
from oracles.problem import AnyProblem

SEQUENCES = ("together", "alone")  # values of the option `sequences`

Call = Callable[[AnyProblem, Tensors], tuple[Tensor, Tensor]]


def useful(problem: AnyProblem, mask: object = "auto") -> bool:
    """True if a padded batch has several sequences with tokens, and no entry of a bias gets a gradient from several
    calls: each would be rounded to the bias's dtype before it is added. mask: how it is said; the kernel's own
    selection makes the mask of a whole batch."""
    bias = problem.bias
    added = bias is not None and bias.grad and problem.backward and not bias.batch
    tokens = min((*problem.lengths_q, *problem.lengths_k), default=0) > 0
    return mask != "selected" and problem.layout == "padded" and problem.batch > 1 and tokens and not added


def parts_of(problem: AnyProblem, tensors: Tensors) -> Iterator[tuple[AnyProblem, Tensors]]:
    """Problem and tensors of each sequence, the tensors as views."""
    q, k, v = (_beside_nan(x, lengths) for x, lengths in _with_lengths(problem, tensors))
    for b, (len_q, len_k) in enumerate(zip(problem.lengths_q, problem.lengths_k, strict=True)):
        mask = of_sequences(problem.mask, [b])
        mask = mask.of[0] if isinstance(mask, PerBatch) else mask
        of = structs.replace(problem, lengths_q=(len_q,), lengths_k=(len_k,), mask=mask)
        one = slice(b, b + 1)
        do = None if tensors.do is None else tensors.do[one, :, :len_q]
        bias = tensors.bias
        if bias is not None and problem.bias is not None:
            at = one if problem.bias.batch else slice(None)
            bias = bias[at, :, : len_q if problem.bias.rows else 1, : len_k if problem.bias.cols else 1]
        yield of, replace(tensors, q=q[one, :, :len_q], k=k[one, :, :len_k], v=v[one, :, :len_k], do=do, bias=bias)


def joined(problem: AnyProblem, tensors: Tensors, call: Call) -> tuple[Tensor, Tensor]:
    """O (batch, heads_q, len_q, dim_v) and LSE (batch, heads_q, len_q) of the batch, of a call for each sequence;
    padding is 0 in O, -inf in LSE. Differentiable."""
    outs, lses = [], []
    for of, given in parts_of(problem, tensors):
        out, lse = call(of, given)
        more = problem.len_q - of.len_q
        outs.append(pad(out, (0, 0, 0, more)))
        lses.append(pad(lse, (0, more), value=float("-inf")))
    return torch.cat(outs), torch.cat(lses)


def _with_lengths(problem: AnyProblem, tensors: Tensors) -> tuple[tuple[Tensor, tuple[int, ...]], ...]:
    return (tensors.q, problem.lengths_q), (tensors.k, problem.lengths_k), (tensors.v, problem.lengths_k)


def _beside_nan(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The tensor (batch, heads, length, dim) with NaN in its padding."""
    rows = torch.arange(x.shape[2], device=x.device)
    inside = rows < torch.tensor(lengths, device=x.device)[:, None]
    return torch.where(inside[:, None, :, None], x, float("nan"))
