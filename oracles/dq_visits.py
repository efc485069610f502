"""Visits: the dQ tiles that each CTA of a backward launch adds to, and the semaphore values that it waits for.

Made from block lists, ranks and launch order alone; semaphore_order.py predicts from them whether the launch ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

FREE = -(2**31)  # as a rank: does not wait, only releases


@dataclass(frozen=True)
class Visits:
    """All visits of all CTAs, in launch order. Visits begin[c] … begin[c + 1] - 1 are CTA c's, in its order.

    tile     dQ tile (batch * heads_q + head) * m_blocks + m_block of each visit
    rank     the value of the semaphore that it waits for; FREE waits for none
    release  what it adds to the semaphore afterwards; not negative
    owner    (batch, head_kv, n_block) of each CTA
    """

    begin: Sequence[int]
    tile: Sequence[int]
    rank: Sequence[int]
    release: Sequence[int]
    owner: Sequence[tuple[int, int, int]]
    heads_q: int
    m_blocks: int
    tiles: int

    @property
    def ctas(self) -> int:
        """CTAs of the launch."""
        return len(self.begin) - 1

    def coordinates(self, tile: int) -> tuple[int, int, int]:
        """(batch, head_q, m_block) of a dQ tile."""
        row, m_block = divmod(tile, self.m_blocks)
        return (*divmod(row, self.heads_q), m_block)

    def index(self, coordinates: tuple[int, int, int]) -> int:
        """The dQ tile at (batch, head_q, m_block)."""
        batch, head, m_block = coordinates
        return (batch * self.heads_q + head) * self.m_blocks + m_block


def launch_visits(
    partial: tuple[Tensor, Tensor, Tensor],
    full: tuple[Tensor, Tensor, Tensor],
    ranks: tuple[Tensor, Tensor],
    launch_order: Tensor,
    *,
    batch: int,
    heads_q: int,
    heads_kv: int,
    m_blocks: int,
    concurrent_pairs: int | None = None,
    group_split: int = 1,
    keys: Sequence[int] | None = None,
    tile_n: int = 1,
    releases: tuple[Tensor, Tensor] | None = None,
    merged: bool = False,
    reversed_from: int | None = None,
    contributors: Tensor | None = None,
    sequence_tiles: Sequence[tuple[int, int]] | None = None,
) -> Visits:
    """Visits of a launch, from its block lists, ranks and launch order.

    partial, full  backward lists as (count, index, begin): count, begin (batch|1, heads_q|1, n_blocks), index flat
    ranks          parallel to the two index tensors: the values that are waited for
    launch_order   (batch|1, heads_kv|1, n_blocks): n block of each position
    concurrent_pairs   (sequence, unit) pairs that are launched concurrently: the launch order runs over groups of so
                   many pairs, within a group over the positions, and within a position over the pairs; None: all
    group_split    units of each KV head, which share its query heads evenly: each has a CTA for each n block
    keys           lengths of the key sequences: tiles of `tile_n` keys past the end are not visited; None: all are
    releases       parallel to the index tensors; None: 1 each
    merged         whether partial and full entries of a row are visited in ascending order; else partial ones first
    reversed_from  first (sequence, unit) pair of the groups that are launched from the last position to the first,
                   whose rows are visited from the last entry to the first, and whose ranks count from the last one of
                   the tile's `contributors` (batch|1, heads_q|1, m_blocks); None: there are none
    sequence_tiles (sequence, its tiles of keys) in the order in which sequences are launched, units of one alone
                   concurrent; None: as they come, each with as many tiles as the launch order has positions
    A CTA takes the query heads of its unit one after another, and of each row the entries as listed, or `merged`.
    An m block out of range is the tile of another head, as it is for a kernel. Raises ValueError for rows outside of an
    index tensor.
    """
    lists = [[x.tolist() for x in one] for one in (partial, full)]
    rank_of = [one.tolist() for one in ranks]
    release_of = None if releases is None else [one.tolist() for one in releases]
    order, added = launch_order.tolist(), None if contributors is None else contributors.tolist()
    n_blocks, units = launch_order.shape[2], heads_kv * group_split
    share, first_reversed = heads_q // units, batch * units if reversed_from is None else reversed_from
    begin, tile, rank, release, owner = [0], [], [], [], []
    if sequence_tiles is None:
        own = dict.fromkeys(range(batch), n_blocks)
        launched = launch_sequence(batch, units, n_blocks, concurrent_pairs, first_reversed)
    else:
        own = dict(sequence_tiles)
        launched = by_sequences(sequence_tiles, units, n_blocks, concurrent_pairs)
    for b, unit, position in launched:
        head_kv = unit // group_split
        n_block = [n for n in order[b % len(order)][head_kv % len(order[0])] if n < own[b]][position]
        owner.append((b, head_kv, n_block))
        there = keys is None or n_block * tile_n < keys[b]
        for head in range(unit * share, (unit + 1) * share if there else unit * share):
            rows = [_row(kind, one, b, head, n_block) for kind, one in enumerate(lists)]
            visits = _merged(rows, lists) if merged else [visit for row in rows for visit in row]
            backwards = b * units + unit >= first_reversed
            for kind, place in reversed(visits) if backwards else visits:
                m_block = lists[kind][1][place]
                tile.append((b * heads_q + head) * m_blocks + m_block)
                waits_for = rank_of[kind][place]
                if backwards and added is not None:
                    waits_for = added[b % len(added)][head % len(added[0])][m_block] - 1 - waits_for
                rank.append(waits_for)
                release.append(1 if release_of is None else release_of[kind][place])
        begin.append(len(tile))
    return Visits(begin, tile, rank, release, owner, heads_q, m_blocks, batch * heads_q * m_blocks)


_Row: TypeAlias = list[tuple[int, int]]  # (kind, place in its index) of each entry


def _row(kind: int, one: list, b: int, head: int, n_block: int) -> _Row:
    """The entries of one row of a list."""
    count, index, start = one
    at_b, at_h = b % len(count), head % len(count[0])
    first, number = start[at_b][at_h][n_block], count[at_b][at_h][n_block]
    if number > 0 and not 0 <= first <= first + number <= len(index):
        name = ("partial", "full")[kind]
        raise ValueError(f"{name}: needs rows within its {len(index)} elements, got {first} and {number}")
    return [(kind, place) for place in range(first, first + number)]


def _merged(rows: list[_Row], lists: list) -> _Row:
    """The entries of a row in the order in which a kernel that bisects its two lists visits them. Where these ascend
    that is ascending order; where they do not, as a bug may have it, what bisection finds."""

    def block(at: tuple[int, int]) -> int:
        return lists[at[0]][1][at[1]]

    partial, full = rows
    found = []
    for number in range(len(partial) + len(full)):
        least, most = max(number - len(full), 0), min(number, len(partial))
        while least < most:
            middle = (least + most) // 2
            if block(partial[middle]) < block(full[number - middle - 1]):
                least = middle + 1
            else:
                most = middle
        left = number - least
        first = least < len(partial) and (left >= len(full) or block(partial[least]) < block(full[left]))
        found.append(partial[least] if first else full[left])
    return found


def launch_sequence(
    batch: int,
    units: int,
    n_blocks: int,
    concurrent_pairs: int | None = None,
    reversed_from: int | None = None,
) -> Iterator[tuple[int, int, int]]:
    """(sequence, unit, launch position) of each CTA, in launch order. reversed_from: as for `launch_visits`."""
    every = batch * units
    step = every if concurrent_pairs is None else max(concurrent_pairs, 1)
    for first in range(0, every, step):
        backwards = reversed_from is not None and first >= reversed_from
        for position in range(n_blocks - 1, -1, -1) if backwards else range(n_blocks):
            for pair in range(first, min(first + step, every)):
                yield (*divmod(pair, units), position)


def by_sequences(
    sequence_tiles: Sequence[tuple[int, int]], units: int, n_blocks: int, concurrent_pairs: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """(sequence, unit, launch position among the sequence's own tiles) of each CTA, sequence after sequence.
    sequence_tiles: as for `launch_visits`; of a sequence that has fewer tiles than the n_blocks of the longest one more
    units are concurrent, so that their tiles are as many."""
    for number, tiles in sequence_tiles:
        pairs = None if concurrent_pairs is None or not tiles else concurrent_pairs * n_blocks // tiles
        for _, unit, position in launch_sequence(1, units, tiles, pairs):
            yield number, unit, position
