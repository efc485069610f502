"""Oversubscribed grids: cases with more CTAs than a device holds at once, for kernels whose CTAs wait for one another.

Such kernels can only deadlock, or add in another order, where not all CTAs are resident. So such a grid takes sequences
and heads enough, many keys and few queries; its pairs are beyond the budget of other cases, its elements may be too.
"""

from __future__ import annotations

import random

from fuzz.generate.grid import Grid

TILE = 128  # keys
PAIRS = 3 << 21
LENGTHS = (1, 16, 63, 64, 65, 128, 129, 200, 257)  # queries
SHAPES = ((16, 1, 1), (8, 4, 1), (2, 8, 2), (1, 32, 1), (4, 4, 4), (32, 1, 2))  # sequences, KV heads, heads for each


def draw_oversubscribed(draw: random.Random, tiles: int, *, gqa: bool, ragged: bool) -> Grid:
    """A grid of at least `tiles` tiles of 128 keys, over all sequences and KV heads."""
    batch, heads_kv, group = draw.choice([shape for shape in SHAPES if gqa or shape[2] == 1])
    each = -(-tiles // (batch * heads_kv))
    most = PAIRS // (batch * heads_kv * group * each * TILE)
    drawn = batch if ragged else 1
    lengths_q = [draw.choice([n for n in LENGTHS if n <= most]) for _ in range(drawn)]
    lengths_k = [TILE * each - draw.choice((0, 1, 63, 127)) for _ in range(drawn)]
    times = batch // drawn
    return Grid(heads_kv * group, heads_kv, tuple(lengths_q * times), tuple(lengths_k * times))
