"""Smaller shapes: fewer sequences, fewer heads, shorter sequences, smaller dims.

A length keeps its boundary class, its remainder by a tile: 447 is tried as 63, 31 and 15, which are one short of a tile
of 64, 32 and 16 as it is itself. No tile size is assumed, for the kernel's own is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.core.case import Case
from fuzz.minimize.deletion import delete
from fuzz.minimize.edits import edit, keep_sequences, pairs, with_lengths
from fuzz.minimize.kinds import Attempts, Options

TILES = (64, 32, 16, 128)
SINGLES = 4  # how many sequences are tried alone
DIMS = (16, 32, 64, 128)


def one_sequence(case: Case) -> Options:
    """One sequence alone: first those whose lengths are the most unlike the others'."""
    for b in _odd_first(case)[:SINGLES]:
        yield keep_sequences(case, [b])


def sequences(case: Case) -> Attempts:
    """Sequences, one by one or several at once, deleted."""
    if case.problem.batch > 1:
        yield from delete(list(range(case.problem.batch)), lambda kept: keep_sequences(case, kept))


def heads(case: Case) -> Options:
    """One head, then two, then one KV head with its group, then half of them."""
    p = case.problem
    group = p.group
    tried = [(1, 1), (2, 2), (2, 1), (group, 1), (2 * group, 2), (p.heads_kv, p.heads_kv)]
    tried += [(group * (p.heads_kv // 2), p.heads_kv // 2), (p.heads_kv * (group // 2), p.heads_kv)]
    for heads_q, heads_kv in dict.fromkeys(tried):
        if 1 <= heads_kv <= p.heads_kv and 1 <= heads_q <= p.heads_q and (heads_q, heads_kv) != (p.heads_q, p.heads_kv):
            yield edit(case, heads_q=heads_q, heads_kv=heads_kv)


def lengths(case: Case) -> Options:
    """All lengths at once to the least of their class, equal lengths, then sequence by sequence."""
    here = pairs(case)
    for tile in TILES:
        yield with_lengths(case, [(least(q, tile), least(k, tile)) for q, k in here])
    yield with_lengths(case, [(q, q) for q, _ in here])
    yield with_lengths(case, [(k, k) for _, k in here])
    for b, (q, k) in enumerate(here):
        for pair in _shorter_pairs(q, k, smaller):
            yield with_lengths(case, [*here[:b], pair, *here[b + 1 :]])


def lengths_finer(case: Case) -> Options:
    """Tiles taken away from long sequences, class kept; sequences within a tile halved."""
    here = pairs(case)
    for b, (q, k) in enumerate(here):
        for pair in _shorter_pairs(q, k, finer):
            yield with_lengths(case, [*here[:b], pair, *here[b + 1 :]])


def dims(case: Case) -> Options:
    """Equal head dims, then the usual ones, the smallest first."""
    p = case.problem
    if p.dim != p.dim_v:
        yield edit(case, dim=min(p.dim, p.dim_v), dim_v=min(p.dim, p.dim_v))
        yield edit(case, dim_v=p.dim)
    for dim in DIMS:
        if dim < p.dim or p.dim % 16:
            yield edit(case, dim=dim, dim_v=dim)
        if p.dim != p.dim_v:
            yield from (edit(case, **{name: dim}) for name in ("dim", "dim_v") if dim < getattr(p, name))


def other_shapes(case: Case) -> list[list[Case]]:
    """Shapes that may stand in for that of a small case, though they are no smaller, in two lists of alternatives:
    full tiles of queries and keys, or of one of them; several sequences for several heads, or the other way round."""
    p, here = case.problem, pairs(case)
    whole = [(full(q), full(k)) for q, k in here]
    lengths = [whole, [(q, k) for (q, _), (_, k) in zip(whole, here, strict=True)]]
    lengths.append([(q, k) for (q, _), (_, k) in zip(here, whole, strict=True)])
    tiles = [with_lengths(case, each) for each in lengths]
    swapped = None
    if p.batch == 1 < p.heads_q == p.heads_kv:
        swapped = edit(case, lengths_q=p.lengths_q * 2, lengths_k=p.lengths_k * 2, heads_q=1, heads_kv=1)
    elif p.heads_q == 1 < p.batch and (one := keep_sequences(case, [0])) is not None:
        swapped = edit(one, heads_q=2, heads_kv=2)
    return [[other for other in some if other not in (None, case)] for some in (tiles, [swapped])]


def full(length: int) -> int:
    """The least length of full tiles of 64 that is no shorter."""
    return -(-length // 64) * 64


def least(length: int, tile: int) -> int:
    """The least length with the remainder that `length` has by `tile`. A multiple stays one, and so does one row more
    than a multiple: a length of 1 would be another class, decoding."""
    remainder = length % tile
    return min(length, remainder + tile) if remainder < 2 else remainder


def tiled(length: int, tiles: int) -> int:
    """The least length with at most `tiles` tiles of 64 and the remainder that `length` has."""
    return min(length, least(length, 64) + 64 * (tiles - 1))


def finer(length: int) -> list[int]:
    """Half, three quarters and all but one of the tiles of 64; half a length of less than a tile."""
    tiles, rest = divmod(length, 64)
    fewer = [64 * n + rest for n in dict.fromkeys((tiles // 2, tiles * 3 // 4, tiles - 1)) if 0 < n < tiles]
    return fewer if tiles else [length // 2] * (length > 1)


def smaller(length: int) -> list[int]:
    """Shorter lengths to try: a full tile, the least of every class, and then half and two tiles less, class kept."""
    found = [64, 128] if length % 64 else []
    found += [least(length, tile) for tile in TILES]
    found += [length % 64 + 64, length % 128 + 128 * (length // 256), length - 128, length - 64]
    return [n for n in dict.fromkeys(found) if 0 < n < length]


def _shorter_pairs(q: int, k: int, shorter) -> Iterator[tuple[int, int]]:
    """Both lengths together where they are equal, else one after the other."""
    if q == k:
        yield from ((n, n) for n in shorter(q))
    else:
        yield from ((n, k) for n in shorter(q))
        yield from ((q, n) for n in shorter(k))


def _odd_first(case: Case) -> list[int]:
    """One sequence of each pair of lengths, those with the most boundaries (empty, one, unequal, tails) first."""
    seen: dict[tuple[int, int], int] = {}
    for b, pair in enumerate(pairs(case)):
        seen.setdefault(pair, b)

    def oddity(pair: tuple[int, int]) -> int:
        q, k = pair
        return sum((q == 0, k == 0, q == 1, k == 1, q != k, bool(q % 64), bool(k % 64)))

    return [seen[pair] for pair in sorted(seen, key=lambda pair: (-oddity(pair), pair))]
