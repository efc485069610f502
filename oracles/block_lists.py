"""Is the metadata of a block-sparse kernel right? Every invariant of its lists, masks, ranks and schedule, against the
token predicate.

Takes plain tensors and reads them one entry at a time, sharing nothing with the code that made them. A tile with a kept
(query, key) pair must be listed once, as full only where all its pairs are kept, and its mask must keep exactly those;
backward lists hold the same tiles; ranks of one dQ tile count its KV tiles in launch order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oracles.finding import Finding, Location
from oracles.masks import varies_by_batch, varies_by_head
from oracles.problem import Problem, mask_tile

Mask2d: TypeAlias = NDArray[np.bool_]
Tile: TypeAlias = tuple[int, int, int, int]  # sequence, query head, m_block, n_block
MOST = 8  # tiles named in a message
KEPT_PAIRS = 1 << 28  # of the predicate, that are held at once


@dataclass(frozen=True)
class BlockList:
    """One block list: count and begin (batch|1, heads_q|1, rows), index flat; rows are m blocks forward, n backward."""

    count: Tensor
    index: Tensor
    begin: Tensor


@dataclass(frozen=True)
class CheckedLists:
    """Block lists to check; each of partial and full lists comes first to last as (partial, full).

    words, slot, slot_backward   packed masks, (slots, tile_m, tile_n / 32), and slots parallel to the partial indices
    bounds                       or row intervals, (batch|1, heads_q|1, n_func, rows)
    band                         or (left, right, offset (batch|1,)); without any of the three partial tiles are
                                 unmasked
    ranks, launch_order          parallel to the backward indices; (batch|1, heads_kv|1, n_blocks)
    """

    tile_m: int
    tile_n: int
    forward: tuple[BlockList, BlockList]
    backward: tuple[BlockList, BlockList] | None = None
    words: Tensor | None = None
    slot: Tensor | None = None
    slot_backward: Tensor | None = None
    bounds: Tensor | None = None
    band: tuple[int, int, Tensor] | None = None
    ranks: tuple[Tensor, Tensor] | None = None
    launch_order: Tensor | None = None


def check(problem: Problem, lists: CheckedLists) -> list[Finding]:
    """Findings of oracle "block_lists", one for each kind of fault and direction; none where all is right.

    Kinds: malformed (rows outside of the index, blocks out of range), duplicate (listed twice, or partial and full),
    missing, wrong (full but masked, listed but empty, a mask that differs), mismatched (backward
    against forward: listed one way only, or full backward alone; full forward and partial backward, with a mask that
    keeps all, is right), order (ranks, or a schedule that is no permutation).
    """
    predicate = _Predicate(problem, lists.tile_m, lists.tile_n)
    truth, same = predicate.tiles(), dict[tuple[int, ...], bool]()
    forward, found = _entries(problem, lists, lists.forward, backward=False)
    found += _against_truth(forward, truth, "forward")
    found += _masks(predicate, lists, forward, lists.slot, "forward", same)
    if lists.backward is None:
        return found
    backward, more = _entries(problem, lists, lists.backward, backward=True)
    found += more
    found += _against_truth(backward, truth, "backward")
    found += _masks(predicate, lists, backward, lists.slot_backward, "backward", same)
    sides = [{e.tile for e in entries} for entries in (forward, backward)]
    found += _finding(
        "mismatched", "backward", sorted(sides[0] ^ sides[1]), "tiles that only one of forward and backward lists"
    )
    fulls = [{e.tile for e in entries if e.full} for entries in (forward, backward)]
    found += _finding(
        "mismatched",
        "backward",
        sorted((fulls[1] - fulls[0]) & sides[0]),
        "tiles that are full here and partial forward",
    )
    if lists.ranks is not None and lists.launch_order is not None:
        found += _order(problem, lists, backward)
    return found


def tiles(problem: Problem, tile_m: int, tile_n: int) -> dict[Tile, bool]:
    """Tiles with at least one unmasked pair; True where every pair of a tile (inside the lengths) is unmasked."""
    return _Predicate(problem, tile_m, tile_n).tiles()


class _Predicate:
    """The token predicate of a problem in strips of tile_m rows: computed once for all heads and sequences that share
    it."""

    def __init__(self, problem: Problem, tile_m: int, tile_n: int) -> None:
        self.problem, self.tile_m, self.tile_n = problem, tile_m, tile_n
        self.batch = problem.batch if problem.ragged or varies_by_batch(problem.mask) else 1
        self.heads = problem.heads_q if varies_by_head(problem.mask) else 1
        self._strips: dict[tuple[int, int, int], Mask2d] = {}

    def rows(self, b: int, m: int) -> tuple[int, int]:
        """First row of an m block, and the one after its last."""
        return m * self.tile_m, min((m + 1) * self.tile_m, self.problem.lengths_q[b])

    def cols(self, b: int, n: int) -> tuple[int, int]:
        """First key of an n block, and the one after its last."""
        return n * self.tile_n, min((n + 1) * self.tile_n, self.problem.lengths_k[b])

    def tile(self, b: int, head: int, m: int, n: int) -> Mask2d:
        """bool (rows, keys) of one tile."""
        return self._strip(b, head, m)[:, slice(*self.cols(b, n))]

    def tiles(self) -> dict[Tile, bool]:
        """Tiles with at least one kept pair, and whether every pair of theirs (inside the lengths) is kept."""
        p, found = self.problem, dict[Tile, bool]()
        own = {(b, head): self._of_head(b, head) for b in range(self.batch) for head in range(self.heads)}
        for b in range(p.batch):
            for head in range(p.heads_q):
                for (m, n), full in own[b % self.batch, head % self.heads].items():
                    found[b, head, m, n] = full
        return found

    def _of_head(self, b: int, head: int) -> dict[tuple[int, int], bool]:
        """`tiles` of one head, by m block and n block."""
        found = dict[tuple[int, int], bool]()
        starts = np.arange(0, self.problem.lengths_k[b], self.tile_n)
        for m in range(-(-self.problem.lengths_q[b] // self.tile_m) if len(starts) else 0):
            strip = self._strip(b, head, m)
            some = np.logical_or.reduceat(strip.any(0), starts).tolist()
            every = np.logical_and.reduceat(strip.all(0), starts).tolist()
            found |= {(m, n): every[n] for n, there in enumerate(some) if there}
        return found

    def _strip(self, b: int, head: int, m: int) -> Mask2d:
        """bool (rows, len_k) of one m block."""
        key = (b % self.batch, head % self.heads, m)
        if key not in self._strips:
            rows, len_k = self.rows(b, m), self.problem.lengths_k[b]
            kept = mask_tile(self.problem, b, head, rows, (0, len_k), "cpu").expand(rows[1] - rows[0], len_k).numpy()
            if len(self._strips) * self.tile_m * len_k > KEPT_PAIRS:
                self._strips.clear()
            self._strips[key] = kept
        return self._strips[key]


@dataclass(frozen=True)
class _Entry:
    tile: Tile
    full: bool
    place: int


def _entries(
    problem: Problem, lists: CheckedLists, sides: tuple[BlockList, BlockList], backward: bool
) -> tuple[list[_Entry], list[Finding]]:
    """Entries of every sequence and head, and findings for malformed and duplicate ones."""
    name = "backward" if backward else "forward"
    entries, malformed, twice = [], [], []
    seen: set[Tile] = set()
    for full, one in enumerate(sides):
        count, begin, index = one.count.tolist(), one.begin.tolist(), one.index.tolist()
        for b in range(problem.batch):
            sizes = (-(-problem.lengths_q[b] // lists.tile_m), -(-problem.lengths_k[b] // lists.tile_n))
            rows, cols = sizes[::-1] if backward else sizes
            for head in range(problem.heads_q):
                counts = count[b % len(count)][head % len(count[0])]
                begins = begin[b % len(count)][head % len(count[0])]
                for row, (number, start) in enumerate(zip(counts, begins, strict=True)):
                    if number < 0 or (number and not 0 <= start <= start + number <= len(index)):
                        malformed.append((b, head, row, number) if not backward else (b, head, number, row))
                        continue
                    for place in range(start, start + number):
                        col = index[place]
                        tile = (b, head, col, row) if backward else (b, head, row, col)
                        if row >= rows or not 0 <= col < cols:
                            malformed.append(tile)
                            continue
                        if tile in seen:
                            twice.append(tile)
                        seen.add(tile)
                        entries.append(_Entry(tile, bool(full), place))
    found = _finding("malformed", name, malformed, "rows or tiles outside of the index tensor or of the sequence")
    return entries, found + _finding("duplicate", name, twice, "tiles that are listed more than once")


def _against_truth(entries: list[_Entry], truth: dict[Tile, bool], name: str) -> list[Finding]:
    listed = {e.tile for e in entries}
    found = _finding(
        "missing", name, [tile for tile in truth if tile not in listed], "tiles with unmasked pairs that are not listed"
    )
    found += _finding(
        "wrong",
        name,
        [e.tile for e in entries if e.tile not in truth],
        "tiles without an unmasked pair that are listed",
    )
    return found + _finding(
        "wrong",
        name,
        [e.tile for e in entries if e.full and not truth.get(e.tile, True)],
        "tiles with masked pairs that are listed as full",
    )


def _masks(
    predicate: _Predicate,
    lists: CheckedLists,
    entries: list[_Entry],
    slot: Tensor | None,
    name: str,
    same: dict[tuple[int, ...], bool],
) -> list[Finding]:
    """Partial tiles whose mask is not the predicate.

    same  whether it is, by all that decides it, for the entries that were looked at; filled in
    """
    batch, heads = predicate.batch, predicate.heads
    if lists.bounds is not None:
        batch, heads = max(batch, lists.bounds.shape[0]), max(heads, lists.bounds.shape[1])
    if lists.band is not None:
        batch = max(batch, len(lists.band[2]))
    slots = None if slot is None else slot.tolist()
    wrong = []
    for e in entries:
        if e.full:
            continue
        b, head, m, n = e.tile
        at = -1 if slots is None or lists.words is None else slots[e.place]
        key = (b % batch, head % heads, m, n, at)
        if key not in same:
            kept = _mask_of(lists, b, head, predicate.rows(b, m), predicate.cols(b, n), at)
            same[key] = kept is not None and np.array_equal(kept.numpy(), predicate.tile(b, head, m, n))
        if not same[key]:
            wrong.append(e.tile)
    return _finding("wrong", name, wrong, "partial tiles whose mask differs from the token predicate")


def _mask_of(
    lists: CheckedLists, b: int, head: int, rows: tuple[int, int], cols: tuple[int, int], at: int
) -> Tensor | None:
    """Pairs that the metadata keep in a partial tile whose slot is `at`: bool (rows, cols); None where that slot is out
    of range."""
    q, k = torch.arange(*rows)[:, None], torch.arange(*cols)[None, :]
    if lists.words is not None:
        if not 0 <= at < len(lists.words):
            return None
        words = lists.words[at].cpu()[q - rows[0], (k - cols[0]) // 32].to(torch.int64)
        return (words >> ((k - cols[0]) % 32)) & 1 == 1
    if lists.bounds is not None:
        bounds = lists.bounds[b % lists.bounds.shape[0], head % lists.bounds.shape[1]].cpu()[:, rows[0] : rows[1], None]
        kept = k < bounds[0]
        for start, stop in zip(bounds[1::2], bounds[2::2], strict=True):
            kept = kept | ((start <= k) & (k < stop))
        return kept
    if lists.band is not None:
        left, right, offset = lists.band
        diagonal = q + int(offset[b % len(offset)])
        return (diagonal - left <= k) & (k <= diagonal + right)
    return torch.ones(q.shape[0], k.shape[1], dtype=torch.bool)


def _order(problem: Problem, lists: CheckedLists, entries: list[_Entry]) -> list[Finding]:
    assert lists.launch_order is not None and lists.ranks is not None
    order, ranks = lists.launch_order.tolist(), [one.tolist() for one in lists.ranks]
    found, wrong = [], []
    positions = [[{n: p for p, n in enumerate(head)} for head in batch] for batch in order]
    for b, batch in enumerate(order):
        for head, launched in enumerate(batch):
            if sorted(launched) != list(range(len(launched))):
                tensor = "launch_order"
                message = (
                    f"launch_order of batch {b}, KV head {head} is not a permutation of the n_blocks: {launched[:16]}"
                )
                found.append(Finding("block_lists", "order", message, tensor, Location(batch=b, head=head)))
    if found:
        return found
    adders: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for e in entries:
        b, head, m, n = e.tile
        of_b = positions[b % len(positions)]
        position = of_b[head // problem.group % len(of_b)][n]
        adders.setdefault((b, head, m), []).append((position, ranks[e.full][e.place]))
    for (b, head, m), here in adders.items():
        if [rank for _, rank in sorted(here)] != list(range(len(here))):
            wrong.append((b, head, m, -1))
    return _finding("order", "ranks", wrong, "dQ tiles whose ranks are not 0, 1, 2, … in launch order")


def _finding(kind: str, tensor: str, wrong: list[Tile], what: str) -> list[Finding]:
    if not wrong:
        return []
    places = ", ".join(
        f"(batch {b}, head {h}, m_block {m}" + (")" if n < 0 else f", n_block {n})") for b, h, m, n in wrong[:MOST]
    )
    more = f" and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
    b, head, m, _ = wrong[0]
    name = "write order" if tensor == "ranks" else f"{tensor} block lists"
    message = f"{name}: {what}: {places}{more}"
    return [
        Finding(
            "block_lists",
            kind,
            message,
            tensor,
            Location(batch=b, head=head, tile=(m, m + 1)),
            {"tiles": float(len(wrong))},
        )
    ]
