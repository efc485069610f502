"""More sequences: packed cases whose sequences are cut into several.

Cases obey a budget of (query, key) pairs, of which most have one or two sequences. Where sequences are packed one after
another, kernels look a tile's sequence up, a warp's lanes 32 of them at once, and sort them: that goes wrong with three
and more, or with more than 32, of lengths that differ by much. One packed case in CUT_EACH whose mask says the same of
any sequence is cut, at places that follow from the case: lengths from nothing, where the target takes that, to nearly
all. It has the rows of the case that was drawn, and fewer pairs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from msgspec import structs

from fuzz.core.case import Case
from fuzz.core.refusal import refusal
from fuzz.core.target import Target
from fuzz.generate.masks import Draw, one_in
from oracles.masks import Causal, Full, Window
from oracles.problem import Problem

CUT_EACH = 3
PARTS = (3, 3, 4, 5, 6, 8)  # sequences in all
MANY, MANY_EACH = 35, 8  # one such case in so many has so many: more than a warp has lanes
FEW_HEADS = 2  # of cases with many


def with_more_sequences(target: Target, drawn: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    """`drawn`, with some packed cases cut into more sequences."""
    return lambda draw: cut(target, drawn(draw))


def cut(target: Target, case: Case) -> Case:
    """The case, or the same one with its rows in more sequences where that is not refused."""
    problem = case.problem
    draw = random.Random(f"{case.id}/sequences")
    if not (
        isinstance(problem, Problem)
        and problem.layout == "packed"
        and problem.bias is None
        and isinstance(problem.mask, Full | Causal | Window)
        and one_in(draw, CUT_EACH)
    ):
        return case
    parts = draw.choice(PARTS)
    if one_in(draw, MANY_EACH) and problem.heads_q <= FEW_HEADS:
        parts = MANY
    least = 0 if target.support.zero_lengths else 1
    rows_q, rows_k = sum(problem.lengths_q), sum(problem.lengths_k)
    if min(rows_q, rows_k) < max(parts * least, 2):
        return case
    lengths_q = _cut(draw, rows_q, parts, least)
    lengths_k = lengths_q if problem.lengths_q == problem.lengths_k else _cut(draw, rows_k, parts, least)
    more = structs.replace(case, problem=structs.replace(problem, lengths_q=lengths_q, lengths_k=lengths_k))
    return case if refusal(target, more) else more


def _cut(draw: random.Random, rows: int, parts: int, least: int) -> tuple[int, ...]:
    """So many lengths, `least` each at least, which add up to so many rows: most of them short."""
    shares = [draw.random() ** 3 for _ in range(parts)]
    total, spare = sum(shares) or 1.0, rows - parts * least
    ends = [0, *(round(spare * sum(shares[: i + 1]) / total) for i in range(parts - 1)), spare]
    return tuple(least + end - begin for begin, end in pairwise(ends))
