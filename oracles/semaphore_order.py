"""Does a deterministic backward pass end? Predicted from its metadata alone, and if not: who waits for whom, and why.

NOTE [the protocol] CTAs start in ticket order, at most `slots` of them at once; a CTA visits dQ tiles in the order of
its lists. At each visit it waits until the tile's semaphore equals its rank, adds, and releases: adds to the semaphore.

Where no two CTAs wait for the same value of one semaphore, at most one CTA can move it at any time, and what it enables
stays enabled until it is used: how far everyone gets does not depend on timing, so one run of the worklist below is the
answer for every run, in O(entries). Where two do (a duplicate), or something releases without waiting, the value may be
overtaken while its waiter looks elsewhere. Then the answer is "never" if even waiting for "at least the rank" would not
end, which every real run can do at best; else "depends".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, TypeAlias

from torch import Tensor

from oracles.finding import Finding, Location

FREE = -(2**31)  # as a rank: does not wait, only releases
Ends: TypeAlias = Literal["always", "never", "depends"]
Cause: TypeAlias = Literal["gap", "past", "not_launched", "circle"]


@dataclass(frozen=True)
class Visits:
    """All visits of all CTAs, by ticket. Visits begin[c] … begin[c + 1] - 1 are CTA c's, in its order.

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

    def place(self, tile: int) -> tuple[int, int, int]:
        """(batch, head_q, m_block)."""
        row, m_block = divmod(tile, self.m_blocks)
        return (*divmod(row, self.heads_q), m_block)


@dataclass(frozen=True)
class Wait:
    """A resident CTA that waits for ever. `cause` and `root` (a tile) are of the place where its chain of waits
    ends."""

    ticket: int
    batch: int
    head_kv: int
    n_block: int
    tile: tuple[int, int, int]
    rank: int
    value: int
    cause: Cause
    root: tuple[int, int, int]


@dataclass(frozen=True)
class Standing:
    """A dQ tile that does not get all its adds: its semaphore's last value, and how many of its visits are still to
    come."""

    tile: tuple[int, int, int]
    value: int
    left: int


@dataclass(frozen=True)
class Outcome:
    """ends: "always", "never", or "depends": on timing, or on more than is looked at (of small random ones of this kind
    half end in some runs, the others in all or in none). visits: how many are done. waits, standing: empty where it
    ends; of one possible run where it depends. semaphores: the last value of each tile."""

    ends: Ends
    visits: int
    waits: tuple[Wait, ...]
    standing: tuple[Standing, ...]
    semaphores: tuple[int, ...]
    text: str


def visits(
    partial: tuple[Tensor, Tensor, Tensor],
    full: tuple[Tensor, Tensor, Tensor],
    ranks: tuple[Tensor, Tensor],
    launch_order: Tensor,
    *,
    batch: int,
    heads_q: int,
    heads_kv: int,
    m_blocks: int,
    pairs: int | None = None,
    parts: int = 1,
    keys: Sequence[int] | None = None,
    tile_n: int = 1,
    releases: tuple[Tensor, Tensor] | None = None,
    merged: bool = False,
) -> Visits:
    """The visits of a launch from its metadata.

    partial, full  backward lists as (count, index, begin): count, begin (batch|1, heads_q|1, n_blocks), index flat
    ranks          parallel to the two index tensors: the values that are waited for
    launch_order   (batch|1, heads_kv|1, n_blocks): n block of each position
    pairs          (sequence, unit) pairs launched side by side: tickets run over `pairs` pairs, within these over the
                   positions, and within a position over the pairs; None: all of them
    parts          units of each KV head, which share its query heads evenly: each has a CTA for each n block
    keys           lengths of the key sequences: tiles of `tile_n` keys past the end are not visited; None: all are
    releases       parallel to the index tensors; None: 1 each
    merged         whether partial and full entries of a row are visited in ascending order; else partial ones first
    A CTA takes the query heads of its unit one after another, and of each row the entries as listed, or `merged`.
    An m block out of range is the tile of another head, as it is for a kernel. Raises ValueError for rows outside of an
    index tensor.
    """
    lists = [[x.tolist() for x in one] for one in (partial, full)]
    rank_of = [one.tolist() for one in ranks]
    release_of = None if releases is None else [one.tolist() for one in releases]
    order = launch_order.tolist()
    n_blocks, share = launch_order.shape[2], heads_q // (heads_kv * parts)
    begin, tile, rank, release, owner = [0], [], [], [], []
    for b, unit, position in tickets(batch, heads_kv * parts, n_blocks, pairs):
        head_kv = unit // parts
        n_block = order[b % len(order)][head_kv % len(order[0])][position]
        owner.append((b, head_kv, n_block))
        there = keys is None or n_block * tile_n < keys[b]
        for head in range(unit * share, (unit + 1) * share if there else unit * share):
            rows = [_row(kind, one, b, head, n_block) for kind, one in enumerate(lists)]
            for kind, place in _merged(rows, lists) if merged else [visit for row in rows for visit in row]:
                tile.append((b * heads_q + head) * m_blocks + lists[kind][1][place])
                rank.append(rank_of[kind][place])
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


def tickets(batch: int, units: int, n_blocks: int, pairs: int | None = None):
    """(sequence, unit, launch position) of each ticket, in order."""
    every = batch * units
    pairs = every if pairs is None else max(pairs, 1)
    for first in range(0, every, pairs):
        for position in range(n_blocks):
            for pair in range(first, min(first + pairs, every)):
                yield (*divmod(pair, units), position)


def predict(of: Visits, slots: int) -> Outcome:
    """Whether the launch ends with `slots` resident CTAs, for any timing, and who stands where if not.

    Raises ValueError for slots below 1, negative releases, or a tile out of range.
    """
    if slots < 1:
        raise ValueError(f"slots: needs at least 1, got {slots}")
    if any(not 0 <= tile < of.tiles for tile in of.tile):
        raise ValueError(f"tile: needs 0 … {of.tiles - 1}, got {[t for t in of.tile if not 0 <= t < of.tiles][:8]}")
    if any(added < 0 for added in of.release):
        raise ValueError("release: needs no negative value")
    at, value, launched = _run(of, slots)
    done = sum(now - start for now, start in zip(at, of.begin, strict=False))
    over = done == len(of.tile)
    sure = not _timing_matters(of)
    ends: Ends = ("always" if over else "never") if sure else "depends"
    if not sure and not _ends_at_best(of, slots):
        ends = "never"
    waits = () if over else _waits(of, at, value, launched)
    standing = () if over else _standing(of, at, value)
    return Outcome(ends, done, waits, standing, tuple(value), _text(ends, over, waits, standing, slots, of))


def findings(outcome: Outcome) -> list[Finding]:
    """The outcome as a protocol oracle's complaint; none where the launch always ends."""
    if outcome.ends == "always":
        return []
    kind = "hang" if outcome.ends == "never" else "nondeterministic"
    first = outcome.standing[0].tile if outcome.standing else (None, None, None)
    numbers = {"tiles": float(len(outcome.standing)), "waiting": float(len(outcome.waits))}
    place = Location(batch=first[0], head=first[1], tile=None if first[2] is None else (first[2], first[2] + 1))
    return [Finding("semaphore_order", kind, outcome.text, "dq", place, numbers)]


def _run(of: Visits, slots: int) -> tuple[list[int], list[int], int]:
    """Runs every CTA as far as it gets: next visit of each, semaphores, how many CTAs started. O(entries)."""
    at, value = list(of.begin[:-1]), [0] * of.tiles
    asleep: dict[tuple[int, int], list[int]] = {}
    launched = min(slots, of.ctas)
    ready = list(range(launched - 1, -1, -1))
    while ready:
        cta = ready.pop()
        end = of.begin[cta + 1]
        here = at[cta]
        while here < end:
            tile, rank = of.tile[here], of.rank[here]
            if rank != value[tile] and rank != FREE:
                asleep.setdefault((tile, rank), []).append(cta)
                break
            if of.release[here]:
                value[tile] += of.release[here]
                ready += asleep.pop((tile, value[tile]), ())
            here += 1
        at[cta] = here
        if here == end and launched < of.ctas:
            ready.append(launched)
            launched += 1
    return at, value, launched


def _timing_matters(of: Visits) -> bool:
    """Whether two CTAs wait for one value of a tile, or one releases a tile that another waits for without waiting."""
    waiter: dict[tuple[int, int], int] = {}
    free: dict[int, set[int]] = {}
    for cta in range(of.ctas):
        for here in range(of.begin[cta], of.begin[cta + 1]):
            tile, rank = of.tile[here], of.rank[here]
            if rank == FREE:
                if of.release[here]:
                    free.setdefault(tile, set()).add(cta)
            elif waiter.setdefault((tile, rank), cta) != cta:
                return True
    return any(free.get(tile, {cta}) != {cta} for (tile, _), cta in waiter.items())


def _ends_at_best(of: Visits, slots: int) -> bool:
    """Whether it would end if a CTA waited for "at least its rank". Every real run is a run of that too."""
    at, value = list(of.begin[:-1]), [0] * of.tiles
    asleep: list[list[tuple[int, int]]] = [[] for _ in range(of.tiles)]
    launched = min(slots, of.ctas)
    ready = list(range(launched))
    finished = 0
    while ready:
        cta = ready.pop()
        while at[cta] < of.begin[cta + 1]:
            tile, rank = of.tile[at[cta]], of.rank[at[cta]]
            if rank > value[tile]:
                heappush(asleep[tile], (rank, cta))
                break
            value[tile] += of.release[at[cta]]
            while asleep[tile] and asleep[tile][0][0] <= value[tile]:
                ready.append(heappop(asleep[tile])[1])
            at[cta] += 1
        else:
            finished += 1
            if launched < of.ctas:
                ready.append(launched)
                launched += 1
    return finished == of.ctas and all(rank >= 0 or rank == FREE for rank in of.rank)


def _waits(of: Visits, at: list[int], value: list[int], launched: int) -> tuple[Wait, ...]:
    """Every CTA that stands, and where its chain of waits ends."""
    movers: dict[int, int] = {}  # tile -> the CTA whose coming visit would move it on
    for cta in range(of.ctas):
        for here in range(at[cta], of.begin[cta + 1]):
            if of.rank[here] in (value[of.tile[here]], FREE) and of.release[here]:
                movers.setdefault(of.tile[here], cta)
    standing = [cta for cta in range(launched) if at[cta] < of.begin[cta + 1]]
    ends: dict[int, tuple[Cause, int]] = {}
    for first in standing:
        path: dict[int, None] = {}
        cta = first
        while cta not in ends:
            tile, rank = of.tile[at[cta]], of.rank[at[cta]]
            path[cta] = None
            mover = movers.get(tile)
            if rank < value[tile]:
                ends[cta] = ("past", tile)
            elif mover is None:
                ends[cta] = ("gap", tile)
            elif mover >= launched:
                ends[cta] = ("not_launched", tile)
            elif mover in path:
                ends[cta] = ("circle", tile)
            else:
                cta = mover
        for on in path:
            ends[on] = ends[cta]
    return tuple(
        Wait(
            cta,
            *of.owner[cta],
            of.place(of.tile[at[cta]]),
            of.rank[at[cta]],
            value[of.tile[at[cta]]],
            ends[cta][0],
            of.place(ends[cta][1]),
        )
        for cta in standing
    )


def _standing(of: Visits, at: list[int], value: list[int]) -> tuple[Standing, ...]:
    left: dict[int, int] = {}
    for cta in range(of.ctas):
        for here in range(at[cta], of.begin[cta + 1]):
            left[of.tile[here]] = left.get(of.tile[here], 0) + 1
    return tuple(Standing(of.place(tile), value[tile], left[tile]) for tile in sorted(left))


def _text(
    ends: Ends, over: bool, waits: tuple[Wait, ...], standing: tuple[Standing, ...], slots: int, of: Visits
) -> str:
    if ends == "always":
        return f"ends: all {len(of.tile)} adds of {of.ctas} CTAs, with {slots} resident"
    if over:
        return "may hang: two CTAs wait for one value of a semaphore, or one is released without a wait"
    head = "never ends" if ends == "never" else "may hang"
    used = len(set(of.tile))
    lines = [f"{head}: {len(standing)} of {used} dQ tiles do not get all their adds, with {slots} resident CTAs"]
    places: dict[tuple[int, int, int], list[Wait]] = {}
    for wait in waits:
        places.setdefault(wait.tile, []).append(wait)
    for (b, h, m), here in sorted(places.items())[:8]:
        who = ", ".join(f"{wait.n_block} for {wait.rank}" for wait in here[:8]) + (" …" if len(here) > 8 else "")
        stands = f"(batch {b}, head {h}, m_block {m}) stands at {here[0].value}"
        lines.append(f"{stands}; n_blocks wait there: {who}; {_why(here[0])}")
    return "\n".join(lines)


def _why(wait: Wait) -> str:
    b, h, m = wait.root
    where = "it" if wait.root == wait.tile else f"(batch {b}, head {h}, m_block {m})"
    return {
        "gap": f"no coming visit has the value at which {where} stands as its rank and releases it, so it never moves",
        "past": f"the value waited for at {where} is past",
        "not_launched": f"the CTA that would move {where} has not started, and no resident one ends",
        "circle": f"the CTA that would move {where} waits, in the end, for itself",
    }[wait.cause]
