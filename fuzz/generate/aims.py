"""Aims: kinds of cases that a session has a stated share of, because chance alone gives too few of them.

plain   a full mask, no option, with a backward pass: what every kernel is used for, and where a wrong gradient
        has nothing to hide behind; half of them have lengths of a tile or more that differ
late    rows whose first tile of keys is empty and a later one is not, beside rows of the same tile of queries that
        see the first one: a running maximum of -inf meets numbers; a few tokens show it
native  a mask that the kernel has a way of its own for, no option, lengths that differ: such ways compute from both
        lengths where their loops end, and one option more leads around them

NOTE [tiles]: what a kernel carries from one tile of keys to the next (maximum, sum, accumulator, pointers) is wrong
from the second tile on only. Small budgets go to heads and sequences, and leave one tile to two cases in three. So
where chance gives one, two cases in three get more tiles of keys beside few queries, or the other way round.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeAlias

from fuzz.generate.masks import Draw, one_in
from oracles import masks as m
from oracles.masks import Mask

Aim: TypeAlias = Literal["", "plain", "late", "native"]

AIMS: tuple[Aim, ...] = ("",) * 12 + ("plain",) * 4 + ("native",) * 5 + ("late",) * 3  # a case's aim is one of these
PLAIN_SHARE = 0.10  # of the cases of a target with a backward pass, at least
LATE_SHARE = 0.08  # of the cases of a target that takes such masks, at least; tiles of 64
NATIVE_SHARE = 0.15  # of the cases of a target that takes a causal mask and lengths that differ, at least
ZERO_SCALE_SHARE = 0.03  # of the cases of a target that takes a scale, at least
TILE = 64
_LENGTHS_Q = (2, 3, 16, 17, 33, 63, 64, 65, 100, 128)
_LENGTHS_K = (65, 66, 80, 96, 127, 128, 129, 192, 193, 257)
_SHORTER = (16, 33, 63, 64, 65, 80, 100, 127, 128, 129)  # queries, or keys
_LONGER_BY = (1, 17, 63, 64, 65, 100, 128, 129)  # so many more of the other


def aimed_lengths(draw: Draw, aim: Aim, len_k: int, pairs: int, longest: int) -> tuple[int, int] | None:
    """(len_q, len_k) of a case with this aim, of at most `pairs` pairs; None where those that were drawn, of which
    len_k is the second, are as good. Of cases without an aim, two in three of those with one tile of keys have more,
    NOTE [tiles]."""
    match aim:
        case "late":
            return late_lengths(draw, pairs, longest)
        case "native":
            return unequal_lengths(draw, pairs, longest)
        case "plain":
            return unequal_lengths(draw, pairs, longest) if draw.choice((True, False)) else None
    if not 0 < len_k <= TILE or one_in(draw, 3):
        return None
    lengths = late_lengths(draw, pairs, longest)
    return lengths[::-1] if lengths is not None and one_in(draw, 3) else lengths


def late_lengths(draw: Draw, pairs: int, longest: int) -> tuple[int, int] | None:
    """(len_q, len_k) of at most `pairs` pairs, of more than one tile of keys; None where that is too much."""
    keys = [n for n in _LENGTHS_K if n <= min(longest, pairs // 2)]
    if not keys:
        return None
    len_k = draw.choice(keys)
    return draw.choice([n for n in _LENGTHS_Q if n <= min(longest, pairs // len_k)]), len_k


def unequal_lengths(draw: Draw, pairs: int, longest: int) -> tuple[int, int] | None:
    """(len_q, len_k) of at most `pairs` pairs, which differ, either one the longer; None where that is too much."""
    able = [(n, n + more) for n in _SHORTER for more in _LONGER_BY if n + more <= longest and n * (n + more) <= pairs]
    if not able:
        return None
    lengths = draw.choice(able)
    return lengths if draw.choice((True, False)) else lengths[::-1]


def late_mask(draw: Draw, allowed: frozenset[str] | None, len_q: int, len_k: int) -> Mask | None:
    """A mask of the allowed kinds by which some rows see the first tile of keys and others only what follows it."""
    able = [kind for kind in _MASKS if (allowed is None or kind in allowed) and _fits(kind, len_q, len_k)]
    return _MASKS[draw.choice(able)](draw, len_q, len_k) if able else None


def _fits(kind: str, len_q: int, len_k: int) -> bool:
    match kind:
        case "tokens":
            return len_k <= 130
        case "window":
            return _left(len_q, len_k) >= 0
    return True


def _left(len_q: int, len_k: int) -> int:
    """A window's size to the left by which the middle row of queries is the first that does not see the first tile."""
    return len_k - len_q + len_q // 2 - TILE


def _starts(draw: Draw, len_q: int, len_k: int) -> list[int]:
    """The first key of each row: 0, or the first one after the first tile or some more; both are there. In half of the
    cases it is len_k in others, which have no key."""
    late = draw.choice([n for n in (TILE, TILE + 1, 96, 100, 127, 128) if n < len_k])
    bits = random.Random(draw.randint(0, 2**32 - 1))
    known = draw.choice(((0, late), (0, late, len_k)))
    starts = [bits.choice(known) for _ in range(len_q)]
    starts[-2:] = draw.choice(([0, late], [late, 0]))
    return starts


def _intervals(draw: Draw, len_q: int, len_k: int) -> Mask:
    return m.Intervals(tuple(((s, len_k),) if s < len_k else () for s in _starts(draw, len_q, len_k)))


def _tokens(draw: Draw, len_q: int, len_k: int) -> Mask:
    return m.Tokens(tuple("0" * start + "1" * (len_k - start) for start in _starts(draw, len_q, len_k)))


def _window(draw: Draw, len_q: int, len_k: int) -> Mask:
    return m.Window(_left(len_q, len_k), draw.choice((None, 0, 8)), "bottom_right")


def _documents(draw: Draw, len_q: int, len_k: int) -> Mask:
    bound = draw.choice([n for n in (TILE, TILE + 1, 96, 128) if n < len_k])
    return m.Documents((max(len_q // 2, 1),), (bound,))


_MASKS: dict[str, Callable[[Draw, int, int], Mask]] = {
    "intervals": _intervals,
    "tokens": _tokens,
    "window": _window,
    "documents": _documents,
}
