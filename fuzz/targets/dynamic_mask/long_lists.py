"""Long lists of a mask's tiles: more than 64, which several warps add up, and more than 256, which take several turns.

One side has a few tokens and the other thousands, of which most tiles are empty: the mask is read whole, and what the
kernels visit stays little. See kernels.dynamic_mask.tile_lists.
"""

from __future__ import annotations

import random

from fuzz.core.case import Case, Inputs
from fuzz.core.target import Target
from oracles.masks import Blocks
from oracles.problem import Bias, Problem

TILE = 64  # queries and keys of a tile
COUNTS = (65, 66, 96, 127, 128, 129, 129, 257, 258)  # tiles of the long side
FEW = (1, 2, 17, 64, 65)  # tokens of the other one
KEPT = (1, 4, 16, 24)  # tiles of each row or column that hold a pair, at most
DIMS = (8, 32, 64)


def draw_case(draw: random.Random, target: Target, repeats: int) -> Case:
    """A case whose longest list is of that many tiles, of which a few hold a pair, in any places."""
    support = target.support
    dim = draw.choice(sorted(support.dims or DIMS))
    count, few, kept = draw.choice(COUNTS), draw.choice(FEW), draw.choice(KEPT)
    chosen = random.Random(draw.randint(0, 2**32 - 1))
    lines = []
    for _ in range(-(-few // TILE)):
        cells = ["."] * count
        for place in chosen.sample(range(count), kept):
            cells[place] = chosen.choice("FM")
        lines.append("".join(cells))
    long = count * TILE - draw.choice((0, 0, 1, 33))
    of_keys = draw.choice((True, False))  # the list of a tile of queries: of tiles of keys
    rows = tuple(lines) if of_keys else tuple("".join(column) for column in zip(*lines, strict=True))
    heads_kv, heads_q = draw.choice(((1, 1), (1, 1), (1, 2)))
    bias = Bias(rows=draw.choice((True, False))) if support.bias and draw.choice((True, False)) else None
    problem: Problem = target.with_fewer_kernels(  # type: ignore[assignment]
        Problem(
            (few if of_keys else long,),
            (long if of_keys else few,),
            heads_q,
            heads_kv,
            dim,
            dim,
            draw.choice(support.dtypes),
            layout=draw.choice(support.layouts),
            mask=Blocks(TILE, TILE, rows, 1),
            bias=bias,
            softcap=draw.choice((0.0, 30.0)) if support.softcap else 0.0,
            backward=support.backward,
        )
    )
    variant = draw.choice(target.variants_for(problem))
    return Case(target.name, problem, Inputs(seed=draw.randint(0, 255)), dict(variant), repeats=repeats)
