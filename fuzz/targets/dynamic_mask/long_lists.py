"""Long lists of a mask's tiles: more than 64, which several warps add up, and more than 256, which take several turns.

One side has a few tokens and the other thousands: the mask is read whole. In three of five cases most tiles are empty,
and what the kernels visit stays little; in the others most or all hold a pair, so that every lane has some to count.
Tiles that a second turn takes in are few, so the last one of so long a side holds a pair always. See
kernels.dynamic_mask.tile_lists.

NOTE [remainders]: SPREAD of five such cases have 16 short sequences instead, in a packed call or in calls of their own,
whose lengths have other remainders by a tile each: see fuzz/generate/remainders.py and sequences_alone.py.
"""

from __future__ import annotations

import random

from fuzz.core.case import Case, Inputs
from fuzz.core.target import Target
from fuzz.generate.remainders import spread_lengths
from oracles.masks import Blocks, Causal, Full, Intervals, Mask, TopK, Window
from oracles.problem import Bias, Problem

TILE = 64  # queries and keys of a tile
COUNTS = (65, 127, 129, 161, 193, 225, 256, 257, 258, 300)  # tiles of the long side
TURN = 256  # of them that the kernels take in at a time
FEW = (1, 2, 17, 64, 65)  # tokens of the other one, half the time; else any number up to the last
KEPT = (1, 8, 48, 160, 300)  # tiles of each row or column that hold a pair, at most
DIMS = (8, 32, 64)
SHARE = 7  # one case in so many is of this file
SPREAD = 3  # of five of these: NOTE [remainders]
SPREAD_MASKS: tuple[Mask, ...] = (
    Causal("top_left"),
    Causal("bottom_right"),
    Full(),
    Window(9, 5, "bottom_right"),
    TopK(8, Causal("bottom_right")),
    Blocks(16, 16, ("MF.MFM.F",) * 8, 1),
)


def draw_case(draw: random.Random, target: Target, repeats: int) -> Case:
    """A case whose longest list is of that many tiles, of which one, a few or most hold a pair, in any places."""
    support = target.support
    if draw.randint(1, 5) <= SPREAD:
        return _spread(draw, target)
    dim = draw.choice(sorted(support.dims or DIMS))
    count, kept = draw.choice(COUNTS), draw.choice(KEPT)
    few = draw.choice((draw.choice(FEW), draw.randint(1, FEW[-1])))
    chosen = random.Random(draw.randint(0, 2**32 - 1))
    long = count * TILE - draw.choice((0, 0, draw.randint(1, TILE - 1)))
    of_keys = draw.choice((True, False))  # the list of a tile of queries: of tiles of keys
    places = [sorted(_sample(chosen, count, kept)) for _ in range(-(-few // TILE))]
    if of_keys and draw.choice((True, False)):
        mask: Mask = _single_pairs(chosen, few, long, places)
    else:
        mask = _whole_tiles(chosen, count, places, of_keys=of_keys)
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
            mask=mask,
            bias=bias,
            softcap=draw.choice((0.0, 30.0)) if support.softcap else 0.0,
            backward=support.backward,
        )
    )
    variant = draw.choice(target.variants_for(problem))
    return Case(target.name, problem, Inputs(seed=draw.randint(0, 255)), dict(variant), repeats=repeats)


def _sample(chosen: random.Random, count: int, kept: int) -> list[int]:
    """`kept` different tiles of `count`; among them the last one where that takes a second turn."""
    last = [count - 1] * (count > TURN)
    return last + chosen.sample(range(count - len(last)), min(kept, count) - len(last))


def _spread(draw: random.Random, target: Target) -> Case:
    """NOTE [remainders]. Keys have lengths of their own, and may be fewer or more than queries. Run once: 16 calls."""
    support = target.support
    dim = draw.choice(sorted(support.dims or DIMS))
    layout = draw.choice(support.layouts)
    lengths_q, lengths_k = spread_lengths(draw), spread_lengths(draw)
    heads_kv, heads_q = draw.choice(((1, 1), (1, 2)))
    bias = None
    if support.bias and draw.choice((True, False)):
        bias = Bias(batch=layout == "padded", heads=draw.choice((True, False)), rows=draw.choice((True, False)))
    problem: Problem = target.with_fewer_kernels(  # type: ignore[assignment]
        Problem(
            lengths_q,
            lengths_k,
            heads_q,
            heads_kv,
            dim,
            dim,
            draw.choice(support.dtypes),
            layout=layout,
            mask=draw.choice(SPREAD_MASKS),
            bias=bias,
            softcap=draw.choice((0.0, 0.0, 30.0)) if support.softcap else 0.0,
            backward=support.backward,
        )
    )
    variant = dict(draw.choice(target.variants_for(problem)))
    if layout == "padded":
        variant = {name: value for name, value in variant.items() if name != "keys"} | {"sequences": "alone"}
    return Case(target.name, problem, Inputs(seed=draw.randint(0, 255)), variant, repeats=1)


def _whole_tiles(chosen: random.Random, count: int, places: list[list[int]], *, of_keys: bool) -> Mask:
    """Tiles that are full or hold some pairs, at these places of each row of tiles, or of each column."""
    lines = []
    for line in places:
        cells = ["."] * count
        for place in line:
            cells[place] = chosen.choice("FM")
        lines.append("".join(cells))
    rows = lines if of_keys else ["".join(column) for column in zip(*lines, strict=True)]
    return Blocks(TILE, TILE, tuple(rows), 1)


def _single_pairs(chosen: random.Random, len_q: int, len_k: int, places: list[list[int]]) -> Mask:
    """Tiles with one pair each, at these places of each row of tiles."""
    keys: list[list[int]] = [[] for _ in range(len_q)]
    for line, tiles in enumerate(places):
        for tile in tiles:
            q = chosen.randrange(line * TILE, min(line * TILE + TILE, len_q))
            keys[q].append(chosen.randrange(tile * TILE, min(tile * TILE + TILE, len_k)))
    return Intervals(tuple(tuple((key, key + 1) for key in row) for row in keys))
