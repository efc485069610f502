"""Sequences and heads of a problem chosen, reordered, repeated: the problem, its tensors, and the way back for answers.

Used by the metamorphic relations. A mask that differs per head or sequence is chosen along with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeAlias

import torch
from msgspec import structs
from torch import Tensor

from oracles.masks import Mask, PerBatch, PerHead, TopK
from oracles.outputs import Outputs
from oracles.problem import Problem, sequence_view, shapes

Tensors: TypeAlias = dict[str, Tensor]  # by the names of `shapes`: q, k, v and, where there are, do and bias


def take_sequences(
    p: Problem, given: Tensors, order: Sequence[int], last: tuple[int, int] | None = None
) -> tuple[Problem, Tensors]:
    """The problem of the sequences `order`, which may repeat, contiguous.

    last  (len_q, len_k) of the last one, at least those of every other: it is then filled up with its own rows again
    Padding holds what the first problem's padding holds, or zeros where there was none.
    """
    lengths = [(p.lengths_q[b], p.lengths_k[b]) for b in order]
    if last is not None:
        lengths[-1] = last
    other = structs.replace(
        p,
        lengths_q=tuple(q for q, _ in lengths),
        lengths_k=tuple(k for _, k in lengths),
        mask=of_sequences(p.mask, order),
    )
    sizes = shapes(other)
    made = {}
    for name, x in given.items():
        into = x.new_zeros(sizes[name])
        if name == "bias":
            assert p.bias is not None
            for at, b in enumerate(order) if p.bias.batch else [(0, 0)]:
                common = _common(into[at], x[b])
                into[at][common] = x[b][common]
        else:
            for at, b in enumerate(order):
                whole, part = sequence_view(other, name, into, at), sequence_view(p, name, x, b)
                if part.shape[1]:
                    whole.copy_(part[:, torch.arange(whole.shape[1], device=x.device) % part.shape[1]])
        made[name] = into
    return other, made


def outputs_of_sequences(other: Problem, theirs: Outputs, p: Problem, first: Outputs, where: dict[int, int]) -> Outputs:
    """`first` with sequence `where[at]` replaced by sequence `at` of `theirs`, an answer of `other`.

    dbias of a bias that all sequences share is theirs as it is, cut to the first's shape.
    """
    found = {}
    for name in (f.name for f in fields(Outputs)):
        one, other_x = getattr(first, name), getattr(theirs, name)
        if one is None or other_x is None:
            found[name] = one
            continue
        made = one.clone()
        if name == "dbias":
            assert p.bias is not None
            pairs = where.items() if p.bias.batch else [(0, 0)]
            for at, b in pairs:
                common = _common(made[b], other_x[at])
                made[b][common] = other_x[at][common]
        else:
            for at, b in where.items():
                sequence_view(p, name, made, b).copy_(sequence_view(other, name, other_x, at))
        found[name] = made
    return Outputs(**found)


def take_heads(p: Problem, given: Tensors, order: Sequence[int], kv: Sequence[int]) -> tuple[Problem, Tensors]:
    """The problem with query heads `order` and KV heads `kv`; `order` must keep together the groups of `kv`."""
    other = structs.replace(p, heads_q=len(order), heads_kv=len(kv), mask=of_heads(p.mask, order, p.group))
    made = {}
    for name, x in given.items():
        if name == "bias":
            assert p.bias is not None
            made[name] = x[:, list(kv)] if p.bias.kv_heads else x[:, list(order)] if p.bias.heads else x
        else:
            made[name] = x[:, list(kv if name in ("k", "v") else order)]
    return other, made


def outputs_of_heads(p: Problem, theirs: Outputs, order: Sequence[int], kv: Sequence[int]) -> Outputs:
    """Answers with query heads `order` and KV heads `kv` of `theirs`; p is the problem that they then belong to."""
    found = {}
    for name, x in theirs.items():
        if name == "dbias" and (p.bias is None or not (p.bias.heads or p.bias.kv_heads)):
            found[name] = x
        elif name == "dbias" and p.bias is not None and p.bias.kv_heads:
            found[name] = x[:, list(kv)]
        elif name == "lse" and p.layout == "packed":
            found[name] = x[list(order)]
        else:
            found[name] = x[:, list(kv if name in ("dk", "dv") else order)]
    return Outputs(**found)


def _common(one: Tensor, other: Tensor) -> tuple[slice, ...]:
    """The part that both shapes have."""
    return tuple(slice(min(n, m)) for n, m in zip(one.shape, other.shape, strict=True))


def of_sequences(mask: Mask, order: Sequence[int]) -> Mask:
    """The mask whose sequence `at` has that of sequence order[at]."""
    if isinstance(mask, PerBatch):
        return PerBatch(tuple(of_sequences(mask.of[b % len(mask.of)], order) for b in order))
    if isinstance(mask, TopK) and mask.sequence is None:
        return PerBatch(tuple(structs.replace(mask, sequence=b, of=of_sequences(mask.of, order)) for b in order))
    return _rebuilt(mask, lambda part: of_sequences(part, order))


def of_heads(mask: Mask, order: Sequence[int], group: int) -> Mask:
    """The mask whose query head `at` has that of head order[at]; group: query heads that share a KV head."""
    if isinstance(mask, PerHead):
        return PerHead(tuple(of_heads(mask.of[h % len(mask.of)], order, group) for h in order))
    if isinstance(mask, TopK) and mask.head is None:
        of = of_heads(mask.of, order, group)
        return PerHead(tuple(structs.replace(mask, head=h // group, of=of) for h in order))
    return _rebuilt(mask, lambda part: of_heads(part, order, group))


def _rebuilt(mask: Mask, rebuild) -> Mask:
    inner = getattr(mask, "of", None)
    if inner is None:
        return mask
    made = tuple(rebuild(part) for part in inner) if isinstance(inner, tuple) else rebuild(inner)
    return structs.replace(mask, of=made)
