"""Masks as data: a small algebra whose meaning is a predicate over (batch, head, query, key).

The reference knows nothing else of a mask than `keep`, and a target's block lists, bool tensors or options are derived
from the same description by its adapter. Positions are those inside the sequence: a mask never sees padding.
A mask is JSON: {"kind": "or", "of": [{"kind": "prefix", "length": 4}, {"kind": "causal"}]}.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec
import torch
from torch import Tensor

Align: TypeAlias = Literal["top_left", "bottom_right"]
PARTIAL_PERCENT = 50
LONGEST = 2**31 - 1  # no position is larger
_SLICE = 1 << 24  # scores that are looked at together


class _Mask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """Base of every mask: frozen, hashable, JSON both ways."""


class Full(_Mask, frozen=True, tag="full"):
    """Every query sees every key."""


class Causal(_Mask, frozen=True, tag="causal"):
    """Query q sees keys k <= q + shift; shift is 0 (top_left) or len_k - len_q (bottom_right)."""

    align: Align = "top_left"


class Window(_Mask, frozen=True, tag="window"):
    """Query q sees keys in [q + shift - left, q + shift + right]; None leaves that side open."""

    left: int | None = None
    right: int | None = None
    align: Align = "top_left"

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            _at_least(0, getattr(self, name), name)


class Prefix(_Mask, frozen=True, tag="prefix"):
    """Every query sees the first `length` keys."""

    length: int

    def __post_init__(self) -> None:
        _at_least(0, self.length, "length")


class Documents(_Mask, frozen=True, tag="documents"):
    """Queries see the keys of their own document. Bounds are the ascending positions at which a new document starts;
    `k_bounds` is the keys' own list where it differs from the queries'."""

    q_bounds: tuple[int, ...]
    k_bounds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _ascending(self.q_bounds, "q_bounds")
        _ascending(self.k_bounds or (), "k_bounds")


class Intervals(_Mask, frozen=True, tag="intervals"):
    """Row q sees the union of its half-open key intervals rows[q] = ((start, stop), ...); rows past the list see
    none."""

    rows: tuple[tuple[tuple[int, int], ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            for bound in (bound for interval in row for bound in interval):
                _at_least(-LONGEST, bound, "rows")


class Blocks(_Mask, frozen=True, tag="blocks"):
    """A grid of tile_m x tile_n tiles: rows[m][n] is 'F' (full), 'M' (partial) or '.' (empty); cells past the grid are
    empty. In a partial tile half of the (query, key) pairs are kept, chosen by `_pair_hash` with `seed`."""

    tile_m: int
    tile_n: int
    rows: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(1, self.tile_m, "tile_m")
        _at_least(1, self.tile_n, "tile_n")
        for row in self.rows:
            if set(row) - set("FM."):
                raise ValueError(f"rows: a block row holds only 'F', 'M' and '.', got {row!r}")


class Tokens(_Mask, frozen=True, tag="tokens"):
    """Explicit: rows[q][k] is '1' where query q sees key k; whatever lies past the strings is '0'."""

    rows: tuple[str, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if set(row) - set("01"):
                raise ValueError(f"rows: a token row holds only '0' and '1', got {row!r}")


class And(_Mask, frozen=True, tag="and"):
    """Kept where every part keeps."""

    of: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _not_empty(self.of)


class Or(_Mask, frozen=True, tag="or"):
    """Kept where any part keeps."""

    of: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _not_empty(self.of)


class Not(_Mask, frozen=True, tag="not"):
    """Kept where `of` does not keep."""

    of: Mask


class TopK(_Mask, frozen=True, tag="top_k"):
    """Of the keys that `of` keeps, the `width` with the largest scores in each row, all of them where there are fewer.

    A key has one score for all rows: a hash of the seed, the sequence, the KV head and the key; ties go to the lower
    index. `sequence` and `head` say whose scores all sequences, or all KV heads, have; None: their own.
    """

    width: int
    of: Mask = Full()
    seed: int = 0
    sequence: int | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        for name in ("width", "seed", "sequence", "head"):
            _at_least(0, getattr(self, name), name)


class PerHead(_Mask, frozen=True, tag="per_head"):
    """Query head h has the mask of[h mod len(of)]."""

    of: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _not_empty(self.of)


class PerBatch(_Mask, frozen=True, tag="per_batch"):
    """Sequence b has the mask of[b mod len(of)]."""

    of: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _not_empty(self.of)


Mask = (
    Full
    | Causal
    | Window
    | Prefix
    | Documents
    | Intervals
    | Blocks
    | Tokens
    | And
    | Or
    | Not
    | TopK
    | PerHead
    | PerBatch
)

KINDS: dict[str, type[_Mask]] = {
    kind.__struct_config__.tag: kind  # type: ignore[misc]
    for kind in (
        Full,
        Causal,
        Window,
        Prefix,
        Documents,
        Intervals,
        Blocks,
        Tokens,
        And,
        Or,
        Not,
        TopK,
        PerHead,
        PerBatch,
    )
}


def keep(mask: Mask, q: Tensor, k: Tensor, *, batch: int, head: int, len_q: int, len_k: int, group: int = 1) -> Tensor:
    """The predicate: bool, broadcast of `q` and `k` (int64 positions inside sequence `batch`, any device).

    True where query position q of query head `head` sees key position k; len_q and len_k are that sequence's lengths,
    group the query heads that share a KV head.
    """
    here = {"batch": batch, "head": head, "len_q": len_q, "len_k": len_k, "group": group}
    match mask:
        case Full():
            return torch.ones((), dtype=torch.bool, device=q.device).expand(torch.broadcast_tensors(q, k)[0].shape)
        case Causal(align):
            return k <= q + _shift(align, len_q, len_k)
        case Window(left, right, align):
            at = q + _shift(align, len_q, len_k)
            kept = keep(Full(), q, k, **here)
            if left is not None:
                kept = kept & (k >= at - left)
            if right is not None:
                kept = kept & (k <= at + right)
            return kept
        case Prefix(length):
            return (k < length) & (q >= 0)
        case Documents(q_bounds, k_bounds):
            return _document(q, q_bounds) == _document(k, q_bounds if k_bounds is None else k_bounds)
        case Intervals():
            return _intervals(mask, q, k)
        case Blocks(tile_m, tile_n, _, seed):
            cell = _look_up(_grid(mask), q // tile_m, k // tile_n)
            return (cell == 2) | ((cell == 1) & (_pair_hash(q, k, seed) % 100 < PARTIAL_PERCENT))
        case Tokens():
            return _look_up(_grid(mask), q, k) != 0
        case And(parts):
            return _reduce(torch.logical_and, [keep(part, q, k, **here) for part in parts])
        case Or(parts):
            return _reduce(torch.logical_or, [keep(part, q, k, **here) for part in parts])
        case Not(part):
            return ~keep(part, q, k, **here)
        case TopK(of=of):
            scores = top_scores(mask, batch, head // group, len_k, q.device)
            return keep(of, q, k, **here) & (scores[k] >= _least_scores(mask, scores, q, here))
        case PerHead(parts):
            return keep(parts[head % len(parts)], q, k, **here)
        case PerBatch(parts):
            return keep(parts[batch % len(parts)], q, k, **here)
    raise AssertionError(f"no predicate for {type(mask).__name__}")


def parts(mask: Mask) -> tuple[Mask, ...]:
    """The masks that `mask` is joined from; empty for a leaf."""
    inner = getattr(mask, "of", ())
    return inner if isinstance(inner, tuple) else (inner,)


def kinds(mask: Mask) -> frozenset[str]:
    """The tags of `mask` and of all its parts."""
    return frozenset({tag(mask)}).union(*(kinds(part) for part in parts(mask)))


def tag(mask: Mask) -> str:
    """The mask's kind as it stands in JSON."""
    return str(mask.__struct_config__.tag)


def varies_by_head(mask: Mask) -> bool:
    """True if query heads may see different keys."""
    own = isinstance(mask, PerHead) or (isinstance(mask, TopK) and mask.head is None)
    return own or any(map(varies_by_head, parts(mask)))


def varies_by_batch(mask: Mask) -> bool:
    """True if sequences of equal lengths may see different keys."""
    own = isinstance(mask, PerBatch) or (isinstance(mask, TopK) and mask.sequence is None)
    return own or any(map(varies_by_batch, parts(mask)))


def _shift(align: Align, len_q: int, len_k: int) -> int:
    return len_k - len_q if align == "bottom_right" else 0


def _document(position: Tensor, bounds: tuple[int, ...]) -> Tensor:
    edges = torch.tensor(bounds, dtype=torch.int64, device=position.device)
    return torch.searchsorted(edges, position.contiguous(), right=True)


def _intervals(mask: Intervals, q: Tensor, k: Tensor) -> Tensor:
    table = _interval_table(mask).to(q.device)
    row = q.clamp(0, table.shape[2] - 1)
    kept = torch.zeros(torch.broadcast_shapes(q.shape, k.shape), dtype=torch.bool, device=q.device)
    for start, stop in table:
        kept |= (k >= start[row]) & (k < stop[row])
    return kept & (q < len(mask.rows))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _interval_table(mask: Intervals) -> Tensor:
    """int64 (intervals, 2, rows) as (slots, 2, rows); empty slots are [0, 0)."""
    slots = max([len(row) for row in mask.rows], default=0)
    table = [[[0] * max(len(mask.rows), 1) for _ in range(2)] for _ in range(max(slots, 1))]
    for q, row in enumerate(mask.rows):
        for slot, (start, stop) in enumerate(row):
            table[slot][0][q], table[slot][1][q] = start, stop
    return torch.tensor(table, dtype=torch.int64)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _grid(mask: Blocks | Tokens) -> Tensor:
    """uint8 (rows, columns) with one row and column of zeros appended, so that positions past the grid can be
    clamped."""
    value = {"0": 0, ".": 0, "1": 1, "M": 1, "F": 2}
    width = max([len(row) for row in mask.rows], default=0) + 1
    rows = [[value[c] for c in row] + [0] * (width - len(row)) for row in mask.rows]
    return torch.tensor([*rows, [0] * width], dtype=torch.uint8)


def _look_up(grid: Tensor, row: Tensor, column: Tensor) -> Tensor:
    grid = grid.to(row.device)
    return grid[row.clamp(max=grid.shape[0] - 1), column.clamp(max=grid.shape[1] - 1)]


def _pair_hash(q: Tensor, k: Tensor, seed: int) -> Tensor:
    """31-bit integer per (q, k): the same on every machine (int64 arithmetic that never overflows)."""
    low = 0xFFFFFFFF
    x = (q * 0x9E3779B1 + k * 0x85EBCA77 + (seed & 0xFFFF) * 0x27D4EB2F) & low
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & low
    x = ((x ^ (x >> 12)) * 0x297A2D39) & low
    return (x ^ (x >> 15)) & 0x7FFFFFFF


def top_scores(mask: TopK, sequence: int, head: int, len_k: int, device: torch.device) -> Tensor:
    """int64 (len_k,): a score for each key, no two the same: of equal hashes the lower index is larger."""
    sequence = sequence if mask.sequence is None else mask.sequence
    head = head if mask.head is None else mask.head
    k = torch.arange(len_k, device=device)
    row = torch.full((), (sequence * 0x10001 + head) & 0xFFFFFFF, device=device)
    return (_pair_hash(row, k, mask.seed) << 31) + (LONGEST - k)


def _least_scores(mask: TopK, scores: Tensor, q: Tensor, here: dict[str, int]) -> Tensor:
    """int64, of q's shape: the least score that a key needs in each row. Rows are looked at in slices."""
    if not mask.width or not scores.numel():
        return torch.full(q.shape, 2**62, device=q.device)
    if mask.width >= len(scores):
        return torch.zeros(q.shape, dtype=torch.int64, device=q.device)
    rows, place = q.flatten().unique(return_inverse=True)
    keys, found = torch.arange(len(scores), device=q.device), []
    for part in rows.split(max(1, _SLICE // len(scores))):
        seen = keep(mask.of, part[:, None], keys, **here).expand(len(part), -1)
        found.append(torch.where(seen, scores, 0).topk(mask.width, dim=1, sorted=True).values[:, -1])
    return torch.cat([*found, rows.new_empty(0)])[place].view(q.shape)


def _reduce(join, kept: list[Tensor]) -> Tensor:
    whole = kept[0]
    for part in kept[1:]:
        whole = join(whole, part)
    return whole


def _at_least(least: int, value: int | None, name: str) -> None:
    if value is not None and value < least:
        raise ValueError(f"{name}: must be at least {least}, got {value}")
    if value is not None and value > LONGEST:
        raise ValueError(f"{name}: must be at most {LONGEST}, got {value}")


def _ascending(bounds: tuple[int, ...], name: str) -> None:
    for bound in bounds:
        _at_least(-LONGEST, bound, name)
    if any(b < a for a, b in pairwise(bounds)):
        raise ValueError(f"{name}: must ascend, got {list(bounds)}")


def _not_empty(masks: tuple[Mask, ...]) -> None:
    if not masks:
        raise ValueError("of: must name at least one mask")
