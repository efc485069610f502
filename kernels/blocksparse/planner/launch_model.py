"""The time of a whole launch of the deterministic backward pass under an order of its CTAs and of their visits.

NOTE [launch] All (sequence, unit)s share the slots: the CTAs of so many pairs are launched side by side, then those of
the next ones, each when a slot is free. So a pair's CTAs do not begin at once, but where those of the pairs before
end, and an order that lets nobody wait on a share of the slots alone may not do so here. Times of a CTA: NOTE [model]
of cost_model.py. All units are taken to have the lists of one, which the heads of a launch do have in most cases; of
sequences by length (lists/lpt.py) all units of a sequence those of its first one.

NOTE [memory] Q, dO and the sums of dQ of an m block come from the L2 cache where it still holds them. It is taken to
hold the last ones that were visited; all others take `miss` of a multiprocessor's share of the memory's time. Waiting
and memory hide each other in part: the time is the root of the sum of their squares.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from kernels.blocksparse.planner.cost_model import (
    Costs,
    LaunchOrder,
    Order,
    Segments,
    Visits,
    merged,
    steps_of,
    tiles_of,
    visit_row,
    work_of,
)

GROUPS = 2  # of concurrent pairs that are played through; the others take as long as the last of these


@dataclass(frozen=True)
class Launch:
    """Sizes of a launch. slots: CTAs that are resident at once; pairs: concurrent (sequence, unit) pairs, of `units` in
    all; held: m blocks that the cache holds, of all pairs together; reverses: the last group of concurrent pairs is
    reversed, NOTE [reversed groups] of backward/tile_iterator.py."""

    slots: int
    pairs: int = 1
    units: int = 1
    held: int = 1 << 30
    reverses: bool = False

    @property
    def side_by_side(self) -> int:
        """Pairs that there are side by side."""
        return max(1, min(self.pairs, self.units))

    @property
    def played(self) -> Launch:
        """The launch of the first groups of concurrent pairs, which is played through for that of all: GROUPS of them,
        and the last one where it is reversed."""
        step = self.side_by_side
        if not self.reverses:
            return replace(self, units=min(self.units, GROUPS * step))
        before = max(self.units - 1, 0) // step
        return replace(self, units=self.units - max(before - GROUPS, 0) * step)


@dataclass(frozen=True)
class SequenceLaunch:
    """A sequence of a launch by length. segments: of its first unit; launch: its concurrent pairs, of its units."""

    segments: Segments
    chosen: LaunchOrder
    launch: Launch


@dataclass(frozen=True)
class Run:
    """Result of the model: the estimate of the time from start to end, what CTAs spent waiting, and what memory
    needs."""

    makespan: float
    waiting: float
    memory: float


@dataclass(frozen=True)
class _Row:
    """A CTA's visits. tiles: in their order; ends: when each is added, without waiting, from its first one on."""

    tiles: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True)
class _Group:
    """Concurrent pairs, `pairs` from the one with number `first`: the rows of each one's CTAs, and their order."""

    rows: list[_Row]
    order: list[int]
    first: int
    pairs: int


class _Played:
    """A launch as it was played through: when it ends, what CTAs spent waiting, for how long CTAs of each group of
    concurrent pairs were resident, and the visits with their times."""

    def __init__(self) -> None:
        self.end, self.waiting, self.busy = 0.0, 0.0, list[float]()
        self._times, self._tiles = list[np.ndarray](), list[np.ndarray]()

    def note(self, times: np.ndarray, tiles: np.ndarray) -> None:
        """Visits of a CTA of each pair: (pairs, tiles)."""
        self._times.append(times.ravel())
        self._tiles.append(tiles.ravel())

    @cached_property
    def distinct(self) -> int:
        """M blocks that are visited."""
        return len(np.unique(np.concatenate(self._tiles))) if self._tiles else 0

    def missed(self, held: int) -> int:
        """Visits whose m block is not among the `held` last ones."""
        if held >= self.distinct:
            return self.distinct
        tiles, times = np.concatenate(self._tiles), np.concatenate(self._times)
        cache: OrderedDict[int, None] = OrderedDict()
        found = 0
        for tile in tiles[np.argsort(times, kind="stable")].tolist():
            if tile in cache:
                cache.move_to_end(tile)
                continue
            found += 1
            cache[tile] = None
            if len(cache) > held:
                cache.popitem(last=False)
        return found


def run(segments: Segments, chosen: LaunchOrder, launch: Launch, costs: Costs, least: float | None = None) -> Run:
    """NOTE [launch] and NOTE [memory] for an order. O(entries log entries) for each unit. least: a makespan that is
    known; where this one is no less, it may be less than it should be, but not less than that one."""
    units = launch.played.units
    groups = _groups(segments, chosen, launch.played, costs)
    played = _play(groups, launch.slots, costs, tiles_of(segments))
    others = (launch.units - units) / launch.side_by_side
    of_one = played.busy[min(GROUPS, len(groups)) - 1]
    end, waiting = played.end + others * of_one / launch.slots, played.waiting * launch.units / units
    of_miss = costs.miss * launch.units / units / launch.slots
    memory = of_miss * played.distinct
    if of_miss and (least is None or np.hypot(end, memory) < least):
        memory = of_miss * played.missed(launch.held)
    return Run(float(np.hypot(end, memory)), waiting, memory)


def run_by_length(sequences: list[SequenceLaunch], costs: Costs) -> Run:
    """NOTE [launch] and NOTE [memory] for sequences that are launched one after the other, played through to the end.
    Their launches have the same slots and the same cache."""
    groups = list[_Group]()
    for one in sequences:
        first = groups[-1].first + groups[-1].pairs if groups else 0
        groups += _groups(one.segments, one.chosen, one.launch, costs, first)
    launch, tiles = sequences[0].launch, max(tiles_of(one.segments) for one in sequences)
    played = _play(groups, launch.slots, costs, tiles)
    memory = costs.miss / launch.slots * played.missed(launch.held)
    return Run(float(np.hypot(played.end, memory)), played.waiting, memory)


def bound(segments: Segments, launch: Launch, costs: Costs) -> float:
    """Lower bound of all orders: all work shared evenly, or the longest CTA alone."""
    work = [costs.start + work_of(parts, costs) for parts in segments]
    return max(launch.units * sum(work) / launch.slots, max(work, default=0.0))


def chosen_again(segments: Segments, known: LaunchOrder, launch: Launch, costs: Costs, visit: Order) -> LaunchOrder:
    """A launch order with the visits that a policy chooses for the second group of concurrent pairs, or for the
    first where there is one: its CTAs begin where others end."""
    found: Visits = {}

    def choose(n: int, begin: float, released: np.ndarray) -> _Row:
        _, found[n] = visit_row(segments[n], begin, released.copy(), costs, visit)
        return _row(segments[n], found[n], visit, costs)

    groups = _groups(segments, known, replace(launch, reverses=False).played, costs)
    _play(groups, launch.slots, costs, tiles_of(segments), choose)
    return LaunchOrder(known.order, found, visit)


def _groups(segments: Segments, chosen: LaunchOrder, launch: Launch, costs: Costs, first: int = 0) -> list[_Group]:
    """The groups of concurrent pairs of a launch, whose pairs are numbered from `first`."""
    rows = [_row(parts, chosen.visits[n], chosen.visit, costs) for n, parts in enumerate(segments)]
    end, step = first + launch.units, launch.side_by_side
    groups = [_Group(rows, chosen.order, pair, min(step, end - pair)) for pair in range(first, end, step)]
    if launch.reverses and groups:
        rows = [_row(parts, chosen.visits[n], chosen.visit, costs, True) for n, parts in enumerate(segments)]
        groups[-1] = replace(groups[-1], rows=rows, order=chosen.order[::-1])
    return groups


def _row(
    parts: list[np.ndarray], orders: list[np.ndarray], visit: Order, costs: Costs, backwards: bool = False
) -> _Row:
    """The visits of an n block: head by head, of each part by part, or its parts merged; backwards: of each from the
    last to the first."""
    tiles, steps = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for i in range(0, len(parts), 2):
        of_head, of_steps = parts[i : i + 2], steps_of(parts[i : i + 2], costs)
        if visit is merged:
            both = np.concatenate(of_head)
            order = np.argsort(both)
            both, of_steps = both[order], of_steps[order]
        else:
            both = np.concatenate([part[order] for part, order in zip(of_head, orders[i : i + 2], strict=True)])
        tiles.append(both[::-1] if backwards else both)
        steps.append(of_steps[::-1] if backwards else of_steps)
    return _Row(np.concatenate(tiles), np.concatenate(steps).cumsum())


def _play(
    groups: list[_Group],
    slots: int,
    costs: Costs,
    tiles: int,
    choose: Callable[[int, float, np.ndarray], _Row] | None = None,
) -> _Played:
    """The launch of groups of concurrent pairs, one after the other; tiles: m blocks of a pair at most. choose: of the
    last group, makes the row of an n block from the time at which the first pair's CTA begins, and what that pair has
    released."""
    played, free = _Played(), [0.0] * slots
    heapify(free)
    for group in groups:
        released = np.zeros((group.pairs, tiles))
        played.busy.append(0.0)
        for n in group.order:
            row = group.rows[n]
            for first in range(0, group.pairs, slots):  # as many at a time as there are slots
                some = slice(first, min(first + slots, group.pairs))
                begin = np.array([heappop(free) for _ in range(some.stop - some.start)])
                if choose is not None and group is groups[-1] and first == 0:
                    row = choose(n, float(begin[0]), released[0])
                offsets = (group.first + np.arange(some.start, some.stop)) * tiles
                ends = _visit(row, released[some], begin + costs.start, costs, played, offsets)
                played.end = max(played.end, float(ends.max()))
                played.busy[-1] += float((ends - begin).sum())
                for end in ends.tolist():
                    heappush(free, end)
    return played


def _visit(
    row: _Row, released: np.ndarray, now: np.ndarray, costs: Costs, played: _Played, offsets: np.ndarray
) -> np.ndarray:
    """Times at which the CTAs of so many pairs end that begin at `now`, (pairs,); notes what they release and when.
    offsets: what tells the tiles of different pairs apart."""
    if not len(row.tiles):
        return now
    # t[i] = max(t[i - 1] + compute, released[i]) + add, with t[i] = late[i] + ends[i]
    late = np.maximum(released[:, row.tiles] + (costs.add - row.ends), now[:, None])
    np.maximum.accumulate(late, axis=1, out=late)
    times = late + row.ends
    released[:, row.tiles] = times + costs.hold
    played.waiting += float((late[:, -1] - now).sum())
    played.note(times, offsets[:, None] + row.tiles)
    return times[:, -1]
