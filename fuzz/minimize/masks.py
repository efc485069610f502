"""Plainer masks: a composite becomes one of its parts, a leaf loses edges, rows, columns and cells.

Rows and columns of an explicit mask are deleted together with the length that they cover, so that what is left of the
mask stays where it was relative to the sequence's end; only for one sequence, where that is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fuzz.core.case import Case
from fuzz.minimize.deletion import delete
from fuzz.minimize.edits import edit, rebuild, replace
from fuzz.minimize.kinds import Attempts, Options
from oracles.masks import (
    And,
    Blocks,
    Causal,
    Documents,
    Full,
    Intervals,
    Mask,
    Or,
    Prefix,
    Tokens,
    TopK,
    Window,
    parts,
    varies_by_head,
)
from oracles.problem import mask_tile

LEAVES = 6  # how many parts of a composite are tried alone
READABLE = 1 << 10  # cells of a mask that is written out as tokens
MOST = 1 << 16  # and of one that is written out to see whether its kind matters
SINGLE_ROWS = 2  # rows without keys that are given one each by itself


def canonical(case: Case) -> Options:
    """Yields no mask, then each leaf of a composite alone, then one full block or one document bound instead of
    many."""
    mask = case.problem.mask
    if mask != Full():
        yield edit(case, mask=Full())
    if parts(mask):
        for leaf in list(dict.fromkeys(_leaves(mask)))[:LEAVES]:
            yield edit(case, mask=leaf)
    for plain in _uniform(mask):
        yield edit(case, mask=plain)


def as_tokens(case: Case) -> Options:
    """The same mask as explicit tokens, where those can be read: a failure that still shows does not depend on the
    mask's kind."""
    p = case.problem
    if p.len_q * p.len_k <= READABLE:
        yield written_out(case)


def written_out(case: Case) -> Case | None:
    """`case` with its mask as explicit tokens; None where it has none, is too large, or has more than one mask."""
    p = case.problem
    several = p.batch > 1 or (p.heads_q > 1 and varies_by_head(p.mask))
    if isinstance(p.mask, Full | Tokens) or several or not 0 < p.len_q * p.len_k <= MOST:
        return None
    rows = mask_tile(p, 0, 0, (0, p.len_q), (0, p.len_k), "cpu").expand(p.len_q, p.len_k).int().tolist()
    return edit(case, mask=Tokens(tuple("".join(map(str, row)) for row in rows)))


def rows_with_keys(case: Case) -> Options:
    """Tokens in which every row sees a key, or one row more does: a failure that still shows does not depend on rows
    without keys."""
    mask = case.problem.mask
    if not isinstance(mask, Tokens) or not case.problem.len_k:
        return
    table = [row.ljust(case.problem.len_k, "0") for row in mask.rows]
    table += ["0" * case.problem.len_k] * (case.problem.len_q - len(table))
    empty = [at for at, row in enumerate(table) if "1" not in row]
    for filled in [set(empty), *({at} for at in empty[:SINGLE_ROWS])] if empty else []:
        rows = ("1" + row[1:] if at in filled else row for at, row in enumerate(table))
        yield edit(case, mask=Tokens(tuple(rows)))


def simpler(case: Case) -> Options:
    """One step: a composite becomes a part of itself or loses one, a leaf somewhere inside loses an edge."""
    for mask in _steps(case.problem.mask):
        yield edit(case, mask=mask)


def rows(case: Case) -> Attempts:
    """Rows of a block or token mask deleted, with the queries that they cover."""
    yield from _cut(case, _rows_of, lambda mask, kept: replace(mask, rows=tuple(mask.rows[m] for m in kept)), "q")


def columns(case: Case) -> Attempts:
    """Columns of a block or token mask deleted, with the keys that they cover."""

    def keep(mask: Any, kept: list[int]) -> Mask:
        return replace(mask, rows=tuple("".join(row[n] for n in kept if n < len(row)) for row in mask.rows))

    yield from _cut(case, _columns_of, keep, "k")


def cells(case: Case) -> Attempts:
    """Partial tiles made full, then kept tiles and tokens made empty where there are empty ones already."""
    mask = case.problem.mask
    if not isinstance(mask, Blocks | Tokens):
        return
    for old, new in (("M", "F"), ("F", "."), ("M", "."), ("1", "0")):
        mask = case.problem.mask
        assert isinstance(mask, Blocks | Tokens)
        at = [(m, n) for m, row in enumerate(mask.rows) for n, cell in enumerate(row) if cell == old]

        def build(kept: list, case=case, mask=mask, at=at, new=new) -> Case | None:
            changed = set(at) - set(kept)
            painted = (
                "".join(new if (m, n) in changed else cell for n, cell in enumerate(row))
                for m, row in enumerate(mask.rows)
            )
            return edit(case, mask=replace(mask, rows=tuple(painted)))

        if at and new in {"F"}.union(*mask.rows):
            kept = yield from delete(at, build)
            case = build(list(kept)) or case


def bounds(case: Case) -> Attempts:
    """Bounds of documents, and rows of intervals, deleted."""
    mask = case.problem.mask
    match mask:
        case Documents(q_bounds, k_bounds):
            width = max(len(q_bounds), len(k_bounds or ()))

            def documents(kept: list[int]) -> Case | None:
                def take(bounds):
                    return None if bounds is None else tuple(bounds[i] for i in kept if i < len(bounds))

                return edit(case, mask=Documents(take(q_bounds) or (), take(k_bounds)))

            yield from delete(list(range(width)), documents)
        case Intervals(rows=table):

            def intervals(kept: list[tuple[int, int]]) -> Case | None:
                there = set(kept)
                return edit(
                    case,
                    mask=Intervals(
                        tuple(tuple(x for i, x in enumerate(row) if (q, i) in there) for q, row in enumerate(table))
                    ),
                )

            yield from delete([(q, i) for q, row in enumerate(table) for i, _ in enumerate(row)], intervals)


def trim(case: Case) -> Options:
    """A mask without what lies past the longest sequence, in each of its parts, and with seed 0: the same question in
    fewer words."""
    p = case.problem
    for seeded in (False, True):
        yield edit(case, mask=_trimmed(p.mask, p.len_q, p.len_k, seeded=seeded))


def _trimmed(mask: Mask, len_q: int, len_k: int, *, seeded: bool) -> Mask:
    """`mask` within len_q rows and len_k columns. seeded: partial tiles keep the seed of their cells, which is 0
    otherwise."""
    for index, part in enumerate(parts(mask)):
        mask = rebuild(mask, index, _trimmed(part, len_q, len_k, seeded=seeded))
    match mask:
        case Blocks(tile_m, tile_n, table, seed):
            n_m, n_n = -(-len_q // tile_m), -(-len_k // tile_n)
            return Blocks(tile_m, tile_n, tuple(row[:n_n] for row in table[:n_m]), seed if seeded else 0)
        case TopK(width, seed=seed):
            return replace(mask, width=min(width, len_k), seed=seed if seeded else 0)
        case Tokens(table):
            return Tokens(tuple(row[:len_k] for row in table[:len_q]))
        case Intervals(table):
            return Intervals(table[:len_q])
        case Documents(q_bounds, k_bounds):
            inside = None if k_bounds is None else tuple(b for b in k_bounds if b < len_k)
            return Documents(tuple(b for b in q_bounds if b < len_q), inside)
    return mask


def _leaves(mask: Mask) -> Iterator[Mask]:
    if not parts(mask):
        yield mask
    for part in parts(mask):
        yield from _leaves(part)


def _uniform(mask: Mask) -> Iterator[Mask]:
    match mask:
        case Blocks(tile_m, tile_n, table):
            kept = "".join(table)
            for cell in ("F", "M"):
                if cell in kept:
                    yield Blocks(tile_m, tile_n, tuple(cell * len(row) for row in table))
                    yield Blocks(tile_m, tile_n, (cell,))
        case Tokens(table):
            yield Tokens(tuple("1" * len(row) for row in table))
        case Intervals(table):
            whole = max((stop for row in table for _, stop in row), default=0)
            yield Intervals((((0, whole),),) * len(table))
            yield Intervals(tuple(row[:1] for row in table))
        case Documents(q_bounds) if len(q_bounds) > 1:
            yield Documents(q_bounds[len(q_bounds) // 2 :][:1])


def _steps(mask: Mask) -> Iterator[Mask]:
    """Masks that are one step plainer, the largest steps first."""
    yield from parts(mask)
    if isinstance(mask, And | Or) and len(mask.of) > 2:
        yield from (replace(mask, of=mask.of[:i] + mask.of[i + 1 :]) for i in range(len(mask.of)))
    for index, part in enumerate(parts(mask)):
        yield from (rebuild(mask, index, plainer) for plainer in _steps(part))
    yield from _plainer_leaf(mask)


def _plainer_leaf(mask: Mask) -> Iterator[Mask]:
    match mask:
        case Causal(align="bottom_right"):
            yield Causal()
        case Window(left, right, align):
            if align != "top_left":
                yield Window(left, right)
            if left is not None and right is not None:
                yield from (Window(None, right, align), Window(left, None, align))
            for name, size in (("left", left), ("right", right)):
                yield from (replace(mask, **{name: n}) for n in _less(size or 0))
        case Prefix(length):
            yield from (Prefix(n) for n in _less(length) if n)
        case TopK(width, _, _, sequence, head):
            if (sequence, head) != (None, None):
                yield replace(mask, sequence=None, head=None)
            yield from (replace(mask, width=n) for n in _less(width) if n)
        case Documents(q_bounds, k_bounds) if k_bounds is not None:
            yield Documents(q_bounds)


def _less(n: int) -> list[int]:
    return [x for x in dict.fromkeys((0, 1, n // 2)) if x < n]


def _rows_of(mask: Blocks | Tokens) -> tuple[int, int]:
    return len(mask.rows), mask.tile_m if isinstance(mask, Blocks) else 1


def _columns_of(mask: Blocks | Tokens) -> tuple[int, int]:
    return max(map(len, mask.rows), default=0), mask.tile_n if isinstance(mask, Blocks) else 1


def _cut(
    case: Case,
    size: Callable[[Any], tuple[int, int]],
    keep: Callable[[Any, list[int]], Mask],
    side: str,
) -> Attempts:
    """Deletes rows or columns of an explicit mask and the part of len_q or len_k that they cover."""
    mask, name = case.problem.mask, f"lengths_{side}"
    if not isinstance(mask, Blocks | Tokens) or case.problem.batch > 1:
        return
    length = getattr(case.problem, name)[0]
    number, tile = size(mask)

    def build(kept: list[int]) -> Case | None:
        covered = sum(min(tile, max(0, length - m * tile)) for m in range(number) if m not in set(kept))
        if length - covered < 1:
            return None
        return edit(case, mask=keep(mask, kept), **{name: (length - covered,)})

    yield from delete(list(range(number)), build)
