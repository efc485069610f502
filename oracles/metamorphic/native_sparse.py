"""Variations of a problem of native sparse attention whose answers follow from its own; rows of relations.py.

What a variation's `back` cannot compare is the first answer's: where a sequence's selection is another one, which near
ties allow, none of its numbers is. The selection itself is judged by its own oracle.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from oracles.native_sparse.problem import NativeSparse
from oracles.outputs import Outputs
from oracles.problem import sequence_view

Tensors: TypeAlias = Mapping[str, Tensor]
Made: TypeAlias = tuple[NativeSparse, dict[str, Tensor], Callable[[Outputs, Outputs], Outputs]]
_ROWS = ("o", "dq", "dk", "dv")


def alone(p: NativeSparse, given: Tensors, draw: random.Random) -> Iterator[Made]:
    """One sequence alone, padded; packed where the target takes that only."""
    full = [b for b, length in enumerate(p.lengths) if length]
    if not full:
        return
    at = draw.choice(full)
    for layout in ("padded", "packed"):
        other = p.edited(lengths=(p.lengths[at],), layout=layout)
        tensors = dict(given)
        for name in ("q", "k", "v", "do"):
            if name in given:
                view = sequence_view(p, name, given[name], at)
                tensors[name] = (view[None] if layout == "padded" else view.transpose(0, 1)).contiguous()
        yield other, tensors, _of_one(p, other, at)


def _of_one(p: NativeSparse, other: NativeSparse, at: int) -> Callable[[Outputs, Outputs], Outputs]:
    def back(theirs: Outputs, first: Outputs) -> Outputs:
        for name, chosen in theirs.choices().items():
            mine = first.choices()[name][at, :, : chosen.shape[2], : chosen.shape[3]]
            if not torch.equal(mine, chosen[0]):
                return first
        found = {}
        for name in _ROWS:
            if (whole := getattr(first, name)) is not None and (part := getattr(theirs, name)) is not None:
                found[name] = whole.clone()
                sequence_view(p, name, found[name], at).copy_(sequence_view(other, name, part, 0))
        return replace(first, **found)

    return back


def wider_window(p: NativeSparse, given: Tensors, draw: random.Random) -> Iterator[Made]:
    """A window that reaches over all tokens as it is, made wider: nothing may change."""
    yield p.edited(window_size=p.window_size + draw.choice((1, 64, 1000))), dict(given), _same_selection


def reaches_over_all(p: NativeSparse) -> bool:
    """True if the window branch is causal attention, or full attention."""
    return p.window_size >= p.len_q if p.causal else p.window_size // 2 >= p.len_q - 1


def zero_gates(p: NativeSparse, given: Tensors, draw: random.Random) -> Iterator[Made]:
    """Gates of weight 0, which are 1/2 each, where there were none, which are 1/3 each."""
    shape = p.edited(w_gate=True).shapes()["w_gate"]
    weight = torch.zeros(shape, dtype=given["q"].dtype, device=given["q"].device)

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        found = _same_selection(theirs, first)
        if found is first:
            return first
        names = [name for name, _ in first.items()]
        less = {n: x / 1.5 for n in names if (x := getattr(theirs, n)) is not None}
        return replace(first, **less)

    yield p.edited(w_gate=True), {**given, "w_gate": weight}, back


def future(p: NativeSparse, given: Tensors, draw: random.Random) -> Iterator[Made]:
    """Other tokens from a row on: earlier rows must not change. With causal=True they may through a mean, so the row is
    the first of a tile and of a block."""
    step = 1 if p.causal == "strict" else _common(p)
    cuts = [draw.randrange(step, length, step) if length > step else length for length in p.lengths]
    tensors = dict(given)
    for name in ("q", "k", "v", "do"):
        if name in given:
            tensors[name] = given[name].clone()
            for b, cut in enumerate(cuts):
                rows = sequence_view(p, name, tensors[name], b)[:, cut:]
                rows.copy_(37.0 - rows.float())

    def back(theirs: Outputs, first: Outputs) -> Outputs:
        found = {}
        for name in ("o", "dq"):
            if (whole := getattr(first, name)) is not None and (other := getattr(theirs, name)) is not None:
                found[name] = whole.clone()
                for b, cut in enumerate(cuts):
                    into, of = (sequence_view(p, name, x, b) for x in (found[name], other))
                    into[:, :cut] = of[:, :cut]
        return replace(first, **found)

    yield p, tensors, back


def has_future(p: NativeSparse) -> bool:
    """True if later tokens are hidden from some rows."""
    return bool(p.causal) and p.len_q > (1 if p.causal == "strict" else _common(p))


def _common(p: NativeSparse) -> int:
    """The least number of rows that is whole tiles and whole blocks."""
    rows = p.q_tile
    while rows % p.compress_block_size:
        rows += p.q_tile
    return rows


def _same_selection(theirs: Outputs, first: Outputs) -> Outputs:
    mine: dict[str, Any] = first.choices()
    return theirs if _equal(mine, theirs.choices()) else first


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    names: Sequence[str] = list(one)
    return names == list(other) and all(torch.equal(one[name], other[name]) for name in names)
