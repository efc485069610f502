"""Masks of the cases that are drawn: leaves biased to the edges of tiles, joined, or one for each head or sequence.

They are drawn with a generator that Hypothesis controls; long random material (token rows, block grids, intervals)
comes from one drawn seed. See NOTE [near-copies] and NOTE [focus] of cases.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from oracles import masks as m
from oracles.masks import Mask

Draw: TypeAlias = random.Random  # one that Hypothesis controls: every call is a choice of its choice sequence

LENGTHS = (
    0,
    1,
    2,
    3,
    7,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    96,
    97,
    120,
    127,
    128,
    129,
    131,
    191,
    193,
    251,
    255,
    256,
    257,
)
TILES = (16, 32, 64, 128)
WEIGHTS = {"causal": 2}
NATIVE = ("full", "causal", "causal", "causal", "window")  # most kernels have a way of their own for these
# As many that are open on their right, the mirror image of causal ones, as have both sides.
WINDOWS = ("both", "both", "from", "from", "to")
MAX_TOKEN_LENGTH = 130
MAX_INTERVAL_LENGTH = 260
PAIR_TILE, PAIR_SHARE = 64, 0.75  # of masks with one pair in a tile: queries and keys of it, tiles that have one


def one_in(draw: Draw, n: int) -> bool:
    """True about once in n draws; shrinks to False."""
    return draw.randint(0, n - 1) == n - 1


def _material(draw: Draw, count: int) -> bytes:
    return random.Random(draw.randint(0, 2**32 - 1)).randbytes(count)


class Sizes:
    """Sizes that masks are drawn for: the lengths of all sequences, and the query heads."""

    def __init__(self, lengths_q: Sequence[int], lengths_k: Sequence[int], heads: int) -> None:
        self.len_q, self.len_k = max(lengths_q), max(lengths_k)
        self.heads, self.batch = heads, len(lengths_q)
        self.shifts = {k - q for q, k in zip(lengths_q, lengths_k, strict=True)}
        """What aligning at the bottom right moves a mask by, in each sequence."""

    @property
    def spread(self) -> tuple[str, ...]:
        """Along which axes parts can differ."""
        return tuple(kind for kind, n in (("per_head", self.heads), ("per_batch", self.batch)) if n > 1)


def draw_mask(
    draw: Draw, allowed: frozenset[str] | None, native: Sequence[str], sizes: Sizes, *, bias: bool = False
) -> Mask:
    """A mask of the `allowed` kinds (None: any), three in five of `native` ones. With a bias half have none: many
    kernels join the two into one, which is then as large as the mask, and no longer shared; one in three of the others
    is padded to the left, where a target names that: -inf in the bias can say so."""
    if bias and (allowed is None or "full" in allowed) and draw.choice((True, False)):
        return m.Full()
    if bias and "left_padded" in native and one_in(draw, 3):
        return _left_padded(draw, sizes)
    mask = native_mask(draw, allowed, native, sizes) if draw.choice((True, True, True, False, False)) else None
    return _any(draw, allowed, sizes) if mask is None else mask


def native_mask(draw: Draw, allowed: frozenset[str] | None, native: Sequence[str], sizes: Sizes) -> Mask | None:
    """A mask of one of the `native` kinds, or of two of them by head or sequence; None where none is allowed and
    fits."""
    able = [kind for kind in native if allowed is None or _FLAGS.get(kind, kind) in allowed]
    leaves = [kind for kind in able if kind in _ALL_LEAVES and _fits(kind, sizes)]
    if not leaves:
        return None
    axes: dict[str, tuple[str, ...]] = {BOTH: sizes.spread} if len(sizes.spread) == 2 else {}
    axes |= {kind: (kind,) for kind in sizes.spread}
    kind = draw.choice(leaves + [kind for kind in able if kind in axes])
    return _ALL_LEAVES[kind](draw, sizes) if kind in leaves else _spread(draw, axes[kind], leaves, sizes)


def _any(draw: Draw, allowed: frozenset[str] | None, sizes: Sizes) -> Mask:
    """A mask of the allowed kinds: a leaf, or leaves joined once or twice, or one per head or sequence."""

    def can(kind: str) -> bool:
        return allowed is None or kind in allowed

    able = [kind for kind in _LEAVES if can(kind) and _fits(kind, sizes)] or ["full"]
    leaves = [kind for kind in able for _ in range(WEIGHTS.get(kind, 1))]

    def leaf() -> Mask:
        return _LEAVES[draw.choice(leaves)](draw, sizes)

    joins = [kind for kind in ("and", "or", "not") if can(kind)]
    spread = [kind for kind in sizes.spread if can(kind)]
    shape = draw.randint(0, 9)
    if shape < 4 or not (joins or spread):
        return leaf()
    if shape < 6 and joins:
        return _JOINS[draw.choice(joins)](leaf)
    return _spread(draw, spread, leaves, sizes) if spread else leaf()


def _spread(draw: Draw, axes: Sequence[str], leaves: Sequence[str], sizes: Sizes) -> Mask:
    """Two masks that take turns along one of the axes, or both ways along both."""
    first, second = (_ALL_LEAVES[draw.choice(leaves)](draw, sizes) for _ in range(2))
    if len(axes) > 1 and draw.choice((True, False)):
        return m.PerBatch((m.PerHead((first, second)), _ALL_LEAVES[draw.choice(leaves)](draw, sizes)))
    return m.PerHead((first, second)) if draw.choice(axes) == "per_head" else m.PerBatch((first, second))


_JOINS: dict[str, Callable[[Callable[[], Mask]], Mask]] = {
    "and": lambda leaf: m.And((leaf(), leaf())),
    "or": lambda leaf: m.Or((leaf(), leaf())),
    "not": lambda leaf: m.Not(leaf()),
}


def _fits(kind: str, sizes: Sizes) -> bool:
    if kind == "tokens":
        return 0 < sizes.len_q <= MAX_TOKEN_LENGTH and 0 < sizes.len_k <= MAX_TOKEN_LENGTH
    if kind in ("intervals", "pairs"):
        return 0 < sizes.len_q <= MAX_INTERVAL_LENGTH and sizes.len_k > 0
    return True


def _align(draw: Draw, sizes: Sizes) -> m.Align:
    """At the bottom right more often, the more it matters."""
    if sizes.shifts == {0}:
        return draw.choice(("top_left", "top_left", "bottom_right"))
    return draw.choice(("top_left", "bottom_right") + ("bottom_right",) * (2 * (len(sizes.shifts) > 1)))


def _near(draw: Draw, length: int) -> int:
    """A position in [0, length + 1], often a tile's edge."""
    known = [n for n in LENGTHS if n <= length + 1]
    return draw.choice(known) if draw.choice((False, True)) else draw.randint(0, length + 1)


def _window(draw: Draw, sizes: Sizes) -> Mask:
    sides = draw.choice(WINDOWS)
    left = None if sides == "to" else _near(draw, sizes.len_k)
    right = None if sides == "from" else draw.choice((0, 0, 1, 8, 63, 64))
    return m.Window(left, right, _align(draw, sizes))


def _documents(draw: Draw, sizes: Sizes) -> Mask:
    len_q, len_k = sizes.len_q, sizes.len_k

    def bounds(length: int) -> tuple[int, ...]:
        return tuple(sorted(_near(draw, length) for _ in range(draw.randint(1, 4))))

    if len_q == len_k and not one_in(draw, 6):
        return m.Documents(bounds(len_q))
    q = bounds(len_q)
    return m.Documents(q, tuple(sorted(_near(draw, len_k) for _ in q)))


def _intervals(draw: Draw, sizes: Sizes) -> Mask:
    len_q, len_k = sizes.len_q, sizes.len_k
    material = _material(draw, 4 * len_q)
    rows = []
    for q in range(len_q):
        a, b, c, d = (byte * (len_k + 1) // 256 for byte in material[4 * q : 4 * q + 4])
        rows.append(tuple(pair for pair in ((min(a, b), max(a, b)), (min(c, d), max(c, d))) if pair[0] < pair[1]))
    return m.Intervals(tuple(rows))


def _blocks(draw: Draw, sizes: Sizes) -> Mask:
    len_q, len_k = sizes.len_q, sizes.len_k
    tile_m, tile_n = draw.choice(TILES), draw.choice(TILES)
    n_m, n_n = max(1, -(-len_q // tile_m)), max(1, -(-len_k // tile_n))
    n_m, n_n = min(n_m, 32), min(n_n, 32)
    letters = draw.choice(("..FM", ".F", "M.", "FM", ".....F", "...M"))
    material = _material(draw, n_m * n_n)
    cells = [letters[byte % len(letters)] for byte in material]
    rows = ["".join(cells[i * n_n : (i + 1) * n_n]) for i in range(n_m)]
    if one_in(draw, 3):  # a tile row, or a tile column, without any block
        gone = draw.randint(0, n_m - 1)
        rows[gone] = "." * n_n
    elif one_in(draw, 3):
        gone = draw.randint(0, n_n - 1)
        rows = [row[:gone] + "." + row[gone + 1 :] for row in rows]
    return m.Blocks(tile_m, tile_n, tuple(rows), draw.randint(0, 3))


def _tokens(draw: Draw, sizes: Sizes) -> Mask:
    len_q, len_k = sizes.len_q, sizes.len_k
    width = -(-len_k // 8)
    material = _material(draw, len_q * width)
    sparse = draw.choice((False, True))
    rows = []
    for q in range(len_q):
        row = material[q * width : (q + 1) * width]
        if sparse:
            row = bytes(byte & (byte >> 3) for byte in row)
        rows.append("".join(f"{byte:08b}" for byte in row)[:len_k])
    return m.Tokens(tuple(rows))


def _top_k(draw: Draw, sizes: Sizes) -> Mask:
    """A few keys of each row, mostly of a causal mask; as many as there are, or more, now and then."""
    width = draw.choice((1, 2, 4, 8, 16, 16, 32, 64, sizes.len_k))
    of = m.Full() if one_in(draw, 4) else m.Causal(_align(draw, sizes))
    return m.TopK(width, of, draw.randint(0, 255))


_LEAVES: dict[str, Callable[[Draw, Sizes], Mask]] = {
    "full": lambda draw, sizes: m.Full(),
    "causal": lambda draw, sizes: m.Causal(_align(draw, sizes)),
    "window": _window,
    "prefix": lambda draw, sizes: m.Prefix(_near(draw, sizes.len_k)),
    "documents": _documents,
    "blocks": _blocks,
    "intervals": _intervals,
    "tokens": _tokens,
}


def _pairs(draw: Draw, sizes: Sizes) -> Mask:
    """A mask with one pair or none in each tile of 64 x 64: a kernel that misses a part of a tile loses all of it."""
    material = random.Random(draw.randint(0, 2**32 - 1))
    keys: list[set[int]] = [set() for _ in range(sizes.len_q)]
    for row in range(0, sizes.len_q, PAIR_TILE):
        for column in range(0, sizes.len_k, PAIR_TILE):
            if material.random() < PAIR_SHARE:
                q = material.randrange(row, min(row + PAIR_TILE, sizes.len_q))
                keys[q].add(material.randrange(column, min(column + PAIR_TILE, sizes.len_k)))
    return m.Intervals(tuple(tuple((key, key + 1) for key in sorted(row)) for row in keys))


def _left_padded(draw: Draw, sizes: Sizes) -> Mask:
    """A causal mask, mostly, beside keys at the beginning that no query sees: of all sequences, or of each its own. A
    row of the padding sees no key."""

    def some() -> Mask:
        most = max(sizes.len_k, 1)
        return m.Not(
            m.Prefix(draw.choice((draw.randint(1, most), draw.randint(-(-most // 2), most), draw.randint(1, 64))))
        )

    of = m.Full() if one_in(draw, 4) else m.Causal(_align(draw, sizes))
    return m.And((of, some() if draw.choice((True, False)) else m.PerBatch((some(), some()))))


CAUSAL_FLAG = "causal_top_left"  # kind of native mask: what a flag `is_causal` says, whatever the lengths
BOTH = "per_batch_and_head"  # kind of native mask: by head, by sequence, or in half of them by both
_FLAGS = {CAUSAL_FLAG: "causal", "pairs": "intervals", "left_padded": "and", BOTH: "per_batch"}
# Kinds that are drawn only where a target names them as native.
_ALL_LEAVES = _LEAVES | {
    CAUSAL_FLAG: lambda draw, sizes: m.Causal(),
    "top_k": _top_k,
    "pairs": _pairs,
    "left_padded": _left_padded,
}
