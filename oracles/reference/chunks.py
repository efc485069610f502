"""Chunk: the part of a problem that is computed in one go, as dense tensors without padding's numbers.

A small problem is one part, batch and heads together, so that an oracle costs a handful of torch calls. A large one is
cut into sequences, KV heads and query rows. Padding never enters a part: its numbers are replaced by zeros, since they
may be NaN by intent, and the mask excludes its pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from oracles.masks import Full, varies_by_head
from oracles.outputs import OF_WEIGHTS
from oracles.problem import AnyProblem, Problem, bias_view, dense_mask, mask_tile, sequence_view

ON_KEYS = frozenset({"k", "v", "dk", "dv"})


@dataclass(frozen=True)
class Chunk:
    """`batch` None: every sequence, head and row. Otherwise KV heads [heads) and query rows [rows) of one sequence.

    Tensors are (sequences, heads, rows, dim), or without dim for lse; bias keeps its broadcast axes of size 1.
    """

    problem: Problem
    batch: int | None
    heads: tuple[int, int]
    rows: tuple[int, int]

    @property
    def whole(self) -> bool:
        """True if it is the whole problem."""
        return self.batch is None

    def take(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """This part of a tensor in the problem's layout, as `dtype`, padding read as zero."""
        if self.batch is not None:
            return self._slice(name, tensor)[None].to(dtype)
        lengths = self.problem.lengths_k if name in ON_KEYS else self.problem.lengths_q
        if self.problem.layout == "packed":
            return _to_padded(tensor, lengths).to(dtype)
        if not _ragged(lengths):
            return tensor.to(dtype)
        padding = _padding(lengths, tensor.device)[:, None, :]
        return tensor.masked_fill(padding if name == "lse" else padding[..., None], 0).to(dtype)

    def add(self, name: str, tensor: Tensor, values: Tensor) -> None:
        """Adds this part's values to a tensor in the problem's layout; only for parts of one sequence."""
        self._slice(name, tensor).add_(values[0])

    def put(self, name: str, tensor: Tensor, values: Tensor) -> None:
        """Writes this part's rows into a tensor in the problem's layout; only for parts of one sequence."""
        self._slice(name, tensor).copy_(values[0])

    def shaped(self, name: str, values: Tensor) -> Tensor:
        """A whole part's values in the problem's layout, without a copy where the layouts agree."""
        assert self.whole
        if self.problem.layout == "padded" or name in ("bias", "dbias"):
            return values
        return _to_packed(values, self.problem.lengths_k if name in ON_KEYS else self.problem.lengths_q)

    def bias(self, bias: Tensor) -> Tensor:
        """The part of a bias, or of its gradient, that this part adds to, as a view (sequences or 1, heads or 1, …)."""
        if self.batch is None:
            return bias
        assert self.problem.bias is not None
        view = bias_view(self.problem, bias, self.batch)
        if self.problem.bias.kv_heads:
            view = view[slice(*self.heads)]
        elif self.problem.bias.heads:
            view = view[slice(*self._query_heads)]
        return (view[:, slice(*self.rows)] if self.problem.bias.rows else view)[None]

    def keep(self, device: torch.device) -> Tensor | None:
        """The token predicate, bool and broadcastable to (sequences, heads, rows, len_k); None where all is kept."""
        p = self.problem
        if isinstance(p.mask, Full) and not (self.whole and p.ragged):
            return None
        if self.batch is None:
            return _dense(p, device)
        cols = (0, p.lengths_k[self.batch])
        first, last = self._query_heads if varies_by_head(p.mask) else (0, 1)
        return torch.stack([mask_tile(p, self.batch, h, self.rows, cols, device) for h in range(first, last)])[None]

    @property
    def _query_heads(self) -> tuple[int, int]:
        return self.heads[0] * self.problem.group, self.heads[1] * self.problem.group

    def _slice(self, name: str, tensor: Tensor) -> Tensor:
        assert self.batch is not None
        view = sequence_view(self.problem, name, tensor, self.batch)
        if name in ON_KEYS:
            return view[slice(*self.heads)]
        return view[slice(*self._query_heads), slice(*self.rows)]


def split(problem: Problem, pair_bytes: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Cuts a problem so that no part needs much more than `chunk_bytes` at `pair_bytes` per (query, key) pair.

    At least one row of one KV head's group is taken at a time. Sequences without queries or keys give no part.
    """
    p = problem
    most = max(chunk_bytes // pair_bytes, 1)
    dense = p.batch * p.heads_q * p.len_q * p.len_k
    if dense == 0 and p.pairs == 0:
        return
    if dense <= most and dense <= max(4 * p.pairs, 1 << 20):
        yield Chunk(p, None, (0, p.heads_kv), (0, p.len_q))
        return
    for b, (len_q, len_k) in enumerate(zip(p.lengths_q, p.lengths_k, strict=True)):
        if not len_q * len_k:
            continue
        heads = min(max(most // (p.group * len_q * len_k), 1), p.heads_kv)
        rows = min(max(most // (p.group * heads * len_k), 1), len_q)
        for head in range(0, p.heads_kv, heads):
            for row in range(0, len_q, rows):
                yield Chunk(p, b, (head, min(head + heads, p.heads_kv)), (row, min(row + rows, len_q)))


def rows_there(problem: AnyProblem, name: str, device: torch.device) -> Tensor | None:
    """bool (batch, 1, rows): the rows of an answer that are not padding; None where all are.

    None for the gradients of weights. For dbias (batch, 1, rows or 1, cols or 1), and only where its own batch axis
    says which sequence a pair belongs to.
    """
    p = problem
    if name in OF_WEIGHTS:
        return None
    if name != "dbias":
        lengths = p.lengths_k if name in ON_KEYS else p.lengths_q
        return (~_padding(lengths, device))[:, None] if _ragged(lengths) else None
    if p.bias is None or not p.bias.batch or not p.ragged:
        return None
    rows, cols = ~_padding(p.lengths_q, device)[:, None, :, None], ~_padding(p.lengths_k, device)[:, None, None]
    # `any`, and not the first one, of which there is none where no sequence has any.
    return (rows if p.bias.rows else rows.any(2, keepdim=True)) & (cols if p.bias.cols else cols.any(3, keepdim=True))


def padded_rows(problem: AnyProblem, name: str, x: Tensor) -> Tensor:
    """A packed answer (total, heads, dim) as (batch, heads, longest, dim), zeros past the ends."""
    return _to_padded(x, problem.lengths_k if name in ON_KEYS else problem.lengths_q)


def _ragged(lengths: tuple[int, ...]) -> bool:
    return len(set(lengths)) > 1


@lru_cache(maxsize=4)
@torch.inference_mode(False)  # what is kept is used with gradients and without
def _dense(problem: AnyProblem, device: torch.device) -> Tensor:
    return dense_mask(problem, device)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _padding(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """bool (batch, longest), True past a sequence's end."""
    return torch.arange(max(lengths), device=device) >= torch.tensor(lengths, device=device)[:, None]


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _index(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """int64 (total,): where each packed row stands in the flattened (batch * longest) rows."""
    return torch.cat([b * max(lengths) + torch.arange(n) for b, n in enumerate(lengths)]).to(device)


def _to_padded(tensor: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """(total, heads, dim) to (batch, heads, longest, dim), zeros past the ends."""
    batch, longest, rest = len(lengths), max(lengths), tensor.shape[1:]
    if not _ragged(lengths):
        return tensor.reshape(batch, longest, *rest).transpose(1, 2)
    padded = tensor.new_zeros((batch * longest, *rest)).index_copy_(0, _index(lengths, tensor.device), tensor)
    return padded.view(batch, longest, *rest).transpose(1, 2)


def _to_packed(values: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """(batch, heads, longest, dim) to (total, heads, dim); (batch, heads, longest) to (heads, total), as lse."""
    if values.dim() == 3:
        return values.transpose(0, 1).flatten(1)[:, _index(lengths, values.device)]
    return values.transpose(1, 2).flatten(0, 1)[_index(lengths, values.device)]
