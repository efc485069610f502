"""Long block lists of nsa: many tiles of queries, heads and sequences, each with a few tiles of keys.

The kernels that make lists work on 32 to 1,024 rows or entries in a program. A case of the usual size has five rows and
twenty entries: most of what such a kernel's threads do shows nothing. See kernels.nsa.lists.
"""

from __future__ import annotations

import random

from fuzz.core.case import Case, Inputs
from fuzz.core.target import Target
from oracles.native_sparse.problem import Causality, NativeSparse

# Sequences, query heads, KV heads, tokens, blocks chosen: rows of many heads, and lists of many entries.
SHAPES = (
    (1, 1, 1, 1500, 8),
    (1, 2, 1, 1024, 8),
    (1, 2, 2, 700, 24),
    (2, 4, 2, 320, 8),
    (4, 4, 1, 200, 4),
    (1, 8, 2, 400, 8),
)
ALONE = 4  # of five such cases make the lists alone, of these shapes and tokens: programs make 128 to 1,024 rows
ALONE_SHAPES = ((1, 1, 1), (1, 2, 1), (2, 2, 2), (1, 8, 2))  # sequences, query heads, KV heads
ALONE_TOKENS = (3000, 9000, 20_000, 66_000, 66_000)
ALONE_BLOCKS = (16, 16, 32, 48, 64, 128)
MOST_ROWS = 1 << 17  # tokens of all heads
ALONE_CHOSEN = (1, 3, 8, 16)
ALONE_WINDOWS = (1, 65, 200, 1200, 5000)
SHORT = (0, 1, 5, 63, 64, 65, 100, 128)  # tokens of the sequences beside the long one of a packed call
MOST_SHORT = 24
DIMS = (16, 32, 64)
BLOCKS = (16, 16, 32, 64)
WINDOWS = (0, 1, 16, 65, 200, 1200)
CAUSAL: tuple[Causality, ...] = (True, True, "strict", False)
LESS = (0, 0, 1, 17, 63)  # tokens


def draw_case(draw: random.Random, target: Target) -> Case:
    """A case with so many rows of lists, run once: the order of CTAs is drawn in others."""
    support = target.support
    batch, heads_q, heads_kv, tokens, chosen = draw.choice(SHAPES)
    run = draw.randint(0, 4) >= ALONE
    if not run:
        batch, heads_q, heads_kv = draw.choice(ALONE_SHAPES)
        tokens, chosen = draw.choice(ALONE_TOKENS), draw.choice(ALONE_CHOSEN)
        tokens = min(tokens, MOST_ROWS // (batch * heads_q))
    layout = draw.choice(support.layouts)
    longest = tokens - draw.choice(LESS)
    lengths = (longest,) * batch
    if layout == "packed":
        others = [draw.choice(SHORT) for _ in range(draw.randint(0, MOST_SHORT))]
        others.insert(draw.randint(0, len(others)), longest)
        lengths = tuple(others)
    weights = draw.choice((False, True))
    problem = NativeSparse(
        lengths=lengths,
        heads_q=heads_q,
        heads_kv=heads_kv,
        dim=draw.choice(sorted(support.dims or DIMS)),
        dtype=draw.choice(support.dtypes),
        layout=layout,
        compress_block_size=draw.choice(BLOCKS if run else ALONE_BLOCKS),
        num_selected_blocks=chosen,
        window_size=draw.choice(WINDOWS if run else ALONE_WINDOWS),
        num_cmp_selected_blocks=None,
        causal=draw.choice(CAUSAL),
        q_tile=draw.choice((64, 128)),
        backward=support.backward,
        w_k=weights,
        w_v=weights,
        w_gate=draw.choice((False, False, True)),
    )
    problem = target.with_fewer_kernels(problem)  # type: ignore[arg-type, assignment]
    variant = dict(draw.choice(target.variants_for(problem)))  # type: ignore[arg-type]
    if not run:
        variant = {"run": False}
    return Case(target.name, problem, Inputs(seed=draw.randint(0, 255)), variant, repeats=1)
