"""A model of how long the CTAs of the deterministic backward pass wait for one another, and policies of what to launch
and to visit first.

NOTE [model] CTAs start in launch order, each when a slot is free. A CTA takes `start`, then for each entry `compute`,
and `masked` for a partial one; then it may add to the dQ tile once the CTA of the rank before has released it, which
takes `add`. It releases the tile `hold` later, while it computes its next entry: the kernel adds one step late, and
releases when all its threads have (NOTE [acquire and release] of backward/mainloop_mma.py). So a CTA depends on earlier
ones only, and its times follow in one pass over its entries. That five descending tiles may be visited ascending (NOTE
[pieces] of backward/transposed/runs_loads.py) is left out.

NOTE [memory] Q, dO and the sums of dQ of an m block come from the L2 cache where it still holds them. It is taken to
hold the last ones that were visited, as many as are this pair's share; all others take `miss` of the memory's time.
Waiting and memory hide each other in part: the estimate is the cube root of the sum of their cubes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from typing import Any, NamedTuple

import numpy as np

WARM = ", warm first"
CANDIDATES = 32  # n blocks that the greedy policy compares at each step


class Pace(NamedTuple):
    """Pace of a CTA that begins a segment: the time, and what each entry takes before its add and during it."""

    now: float
    compute: float
    add: float


_FIRST = np.zeros(1, dtype=np.int64)  # the order of a single entry


Order = Callable[[np.ndarray, np.ndarray, Pace], np.ndarray]  # tiles of a segment, their releases -> positions


@dataclass(frozen=True)
class Costs:
    """Times of NOTE [model], in units of one block's products; the defaults are an H100's order of magnitude at dim
    128. masked is what a partial block takes more; add and hold together are how far one CTA is behind another that
    visits the same tiles. miss is what memory takes for an m block that the cache does not hold, on its share of a
    multiprocessor: 192 KiB of 2.3 TB/s / 132, where a block takes 5.1 us. sums is what the whole GPU takes, of dK and
    dV of a tile of keys and a part, to read what was written while others computed: 128 KiB of 2.8 TB/s."""

    start: float = 1.0
    compute: float = 1.0
    add: float = 0.15
    masked: float = 0.1
    hold: float = 0.8
    miss: float = 2.2
    sums: float = 0.009


def costs_of(dim: int) -> Costs:
    """The costs of a head dim. Beyond 128 of the two CTAs that have the halves of a tile of keys, whose steps take 2.5
    us: a CTA that visits the tiles of another one is half a step to a step behind it, and so half a block to a block
    behind two. hold is on the high side: an order that leaves no time to spare waits wherever a step takes longer."""
    if dim > 128:
        return Costs(start=1.25, compute=0.9, add=0.1, masked=0.05, hold=1.0, miss=1.2, sums=0.019)
    return Costs() if dim > 64 else Costs(miss=1.6, sums=0.0065)


@dataclass(frozen=True)
class Run:
    """Result of the model: the estimate of the time from start to end; what CTAs spent waiting, and what memory needs;
    for which launch order, and each n block's entries in the order of their visits (positions in its segments)."""

    makespan: float
    waiting: float
    memory: float
    order: list[int]
    visits: dict[int, list[np.ndarray]]


Segments = list[list[np.ndarray]]  # for each n block, for each query head: partial tiles, full tiles


@dataclass(frozen=True)
class Share:
    """Share of the GPU of one (sequence, unit): CTAs that are resident at once, and m blocks that the cache holds."""

    slots: int
    held: int = 1 << 30


Passes = dict[str, "Pass"]  # by policy


def best(
    segments: Segments, share: Share, costs: Costs, in_order: bool = False, known: dict[Any, Passes] | None = None
) -> tuple[str, dict[str, Run]]:
    """The policy with the least makespan (of equal ones the first, the simplest), and the runs of all. in_order: rows
    are visited merged, and in no other order. known: passes of calls before with the same segments, which is added to:
    they do not depend on the cache's share, nor on slots that are more than the CTAs."""
    slots = max(min(share.slots, len(segments)), 1)
    key = (slots, costs, in_order, tuple(tuple(part.tobytes() for part in parts) for parts in segments))
    known = {} if known is None else known
    if key not in known:
        known[key] = _passes(segments, slots, costs, in_order)
    results = {policy: one.run(share, costs) for policy, one in known[key].items()}
    return min(results, key=lambda policy: round(results[policy].makespan, 6)), results


def _passes(segments: Segments, slots: int, costs: Costs, in_order: bool) -> Passes:
    """Passes of all policies; those that launch and visit alike share one."""
    work = np.array([sum(len(part) for part in parts) for parts in segments])
    ladder = np.arange(len(segments))
    launches: dict[str, np.ndarray] = {
        "ascending": ladder,
        "descending": ladder[::-1],
        "longest": np.argsort(-work, kind="stable"),
        "shortest": np.argsort(work, kind="stable"),
    }
    visiting = {"": as_listed, ", rows reversed": reversed_rows, ", rows by release": by_release, WARM: warm_first}
    if in_order:
        visiting = {"": merged}
    single = all(len(part) <= 1 for parts in segments for part in parts)  # then there is one way to visit a row
    made: dict[tuple[tuple[int, ...], Order], Pass] = {}

    def passed(order: list[int], visit: Order) -> Pass:
        key = (tuple(order), as_listed if single and not in_order else visit)
        if key not in made:
            made[key] = _pass_of(segments, order, slots, costs, key[1])
        return made[key]

    passes: Passes = {}
    for launch, order in launches.items():
        for suffix, visit in visiting.items():
            passes[launch + suffix] = passed(order.tolist(), visit)
    for name, sign in (("greedy, longest", -1), ("greedy, shortest", 1)):
        visit = merged if in_order else as_listed if single else by_release
        passes[name] = passed(greedy(segments, sign * work, slots, costs, visit), visit)
    return passes


@dataclass(frozen=True)
class Pass:
    """One launch order played through: when it ends, what CTAs spent waiting, and the tiles in the order in which they
    were visited by all."""

    end: float
    waiting: float
    order: list[int]
    visits: dict[int, list[np.ndarray]]
    tiles: list[int]

    def run(self, share: Share, costs: Costs) -> Run:
        """With the memory's time (NOTE [memory])."""
        memory = costs.miss * self._missed(share.held) / share.slots
        makespan = (self.end**3 + memory**3) ** (1 / 3)
        return Run(makespan, self.waiting, memory, self.order, self.visits)

    def _missed(self, held: int) -> int:
        """Visits whose m block is not among the `held` last ones."""
        if held >= self._distinct:
            return self._distinct
        cache: OrderedDict[int, None] = OrderedDict()
        missed = 0
        for tile in self.tiles:
            if tile in cache:
                cache.move_to_end(tile)
                continue
            missed += 1
            cache[tile] = None
            if len(cache) > held:
                cache.popitem(last=False)
        return missed

    @cached_property
    def _distinct(self) -> int:
        return len(set(self.tiles))


def run(segments: Segments, order: list[int], share: Share, costs: Costs, visit: Order) -> Run:
    """NOTE [model] and NOTE [memory] for one launch order. O(entries log entries)."""
    return _pass_of(segments, order, share.slots, costs, visit).run(share, costs)


def _pass_of(segments: Segments, order: list[int], slots: int, costs: Costs, visit: Order) -> Pass:
    release = np.zeros(_tiles(segments))
    free = [0.0] * slots
    heapify(free)
    waiting, end, visits, seen = 0.0, 0.0, {}, []
    for n in order:
        finish, visits[n], visited = _visit(segments[n], free[0], release, costs, visit)
        seen += visited
        waiting += finish - free[0] - costs.start - _work(segments[n], costs)
        end = max(end, finish)
        heapreplace(free, finish)
    tiles = list[int]()
    if seen:
        times, visited_tiles = (np.concatenate(part) for part in zip(*seen, strict=True))
        tiles = visited_tiles[np.argsort(times, kind="stable")].tolist()
    return Pass(end, waiting, order, visits, tiles)


def bound(segments: Segments, slots: int, costs: Costs) -> float:
    """Lower bound of all orders: all work shared evenly, or the longest CTA alone."""
    work = [costs.start + _work(parts, costs) for parts in segments]
    return max(sum(work) / slots, max(work, default=0.0))


def greedy(segments: Segments, preference: np.ndarray, slots: int, costs: Costs, visit: Order) -> list[int]:
    """Launches, whenever a slot is free, the n block that would wait least now; of those, the first by preference.

    Compares `CANDIDATES` of them: the first ones by preference, and from both ends of those that are left."""
    release = np.zeros(_tiles(segments))
    free = [0.0] * slots
    rows = [_merged_rows(parts, costs) if visit is merged else None for parts in segments]
    work = [_work(parts, costs) for parts in segments]
    left = sorted(range(len(segments)), key=lambda n: (preference[n], n))
    by_number = list(range(len(segments)))
    order = []
    while left:
        few = CANDIDATES // 3
        choice = dict.fromkeys(left[:few] + by_number[:few] + by_number[-few:])
        keyed = []
        for n in choice if len(choice) > 1 else ():
            finish, *_ = _visit(segments[n], free[0], release.copy(), costs, visit, rows[n])
            keyed.append((round(finish - free[0] - work[n], 6), preference[n], n))
        n = min(keyed)[2] if keyed else left[0]
        finish, *_ = _visit(segments[n], free[0], release, costs, visit, rows[n])
        heapreplace(free, finish)
        left.remove(n)
        by_number.remove(n)
        order.append(n)
    return order


def as_listed(tiles: np.ndarray, released: np.ndarray, pace: Pace) -> np.ndarray:
    """Visits a row as it is listed."""
    return np.arange(len(tiles))


def reversed_rows(tiles: np.ndarray, released: np.ndarray, pace: Pace) -> np.ndarray:
    """Visits a row from its end."""
    return np.arange(len(tiles) - 1, -1, -1)


def by_release(tiles: np.ndarray, released: np.ndarray, pace: Pace) -> np.ndarray:
    """Visits first what is free first, which is the least wait of one CTA by itself; of equals, the last m block."""
    return np.lexsort((-tiles, released))


def warm_first(tiles: np.ndarray, released: np.ndarray, pace: Pace) -> np.ndarray:
    """Visits, whenever it could add, of the m blocks that are free by then the one that was released last, which the
    cache still holds, or else the one that is free first. O(entries²)."""
    left = np.argsort(tiles, kind="stable")
    order, now = np.empty(len(tiles), dtype=np.int64), pace.now
    for i in range(len(tiles)):
        times = np.maximum(released[left], now + pace.compute)
        at = int(np.lexsort((-released[left], times))[0])
        order[i], now = left[at], times[at] + pace.add
        left = np.delete(left, at)
    return order


def merged(tiles: np.ndarray, released: np.ndarray, pace: Pace) -> np.ndarray:
    """Visits a row in ascending order; `_visit` then takes the partial and the full part of a head as one."""
    return np.argsort(tiles)


MergedRows = list[tuple[np.ndarray, np.ndarray]]  # for each query head: tiles, times of their ends without waiting


def _merged_rows(parts: list[np.ndarray], costs: Costs) -> MergedRows:
    """Rows of an n block in the order in which `merged` visits them; releases do not change it."""
    found: MergedRows = []
    for i in range(0, len(parts), 2):
        both = parts[i : i + 2]
        tiles = np.concatenate(both)
        order = np.argsort(tiles)
        found.append((tiles[order], _steps(both, costs)[order].cumsum()))
    return found


def _visit(
    parts: list[np.ndarray],
    start: float,
    release: np.ndarray,
    costs: Costs,
    visit: Order,
    rows: MergedRows | None = None,
) -> tuple[float, list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """Time at which a CTA that starts now ends, the order of its visits, and (times, tiles) of them; notes what it
    releases and when. rows: those of `merged`, where they are known."""
    now = start + costs.start
    orders: list[np.ndarray] = []
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    if visit is merged:
        for tiles, ideal in _merged_rows(parts, costs) if rows is None else rows:
            now = _pass(tiles, ideal, now, release, costs, seen)
        return now, [np.arange(len(part)) for part in parts], seen
    for i, tiles in enumerate(parts):
        if len(tiles) <= 1:  # one way to visit it, and numpy's calls would take longer than the work
            orders.append(_FIRST[: len(tiles)])
            if len(tiles):
                now = _pass_one(tiles, _step(i, costs), now, release, costs, seen)
            continue
        # Heads of a group that share a list have one order, the first one's.
        alike = (
            i > 1 and len(tiles) == len(parts[i - 2]) and (tiles - parts[i - 2] == tiles[:1] - parts[i - 2][:1]).all()
        )
        pace = Pace(now, _step(i, costs) - costs.add, costs.add)
        order = orders[i - 2] if alike else visit(tiles, release[tiles], pace)
        orders.append(order)
        ideal = np.full(len(tiles), _step(i, costs)).cumsum()
        now = _pass(tiles[order], ideal, now, release, costs, seen)
    return now, orders, seen


def _pass(
    tiles: np.ndarray,
    ideal: np.ndarray,
    now: float,
    release: np.ndarray,
    costs: Costs,
    seen: list[tuple[np.ndarray, np.ndarray]],
) -> float:
    """Time at which a CTA that is there now has visited these tiles in this order. ideal: the times of their ends
    without waiting, for a CTA that begins at 0."""
    if not len(tiles):
        return now
    # t[i] = max(t[i - 1] + compute, release[i]) + add, with t[i] = late[i] + ideal[i]
    late = np.maximum.accumulate(np.maximum(release[tiles] + costs.add - ideal, now))
    release[tiles] = late + ideal + costs.hold
    seen.append((late + ideal, tiles))
    return float(late[-1] + ideal[-1])


def _pass_one(
    tiles: np.ndarray,
    step: float,
    now: float,
    release: np.ndarray,
    costs: Costs,
    seen: list[tuple[np.ndarray, np.ndarray]],
) -> float:
    """`_pass` for a single tile."""
    tile = int(tiles[0])
    done = max(float(release[tile]) + costs.add - step, now) + step
    release[tile] = done + costs.hold
    seen.append((np.array([done]), tiles))
    return done


def _steps(parts: list[np.ndarray], costs: Costs) -> np.ndarray:
    """Times of the entries of a head's partial and full parts."""
    return np.concatenate([np.full(len(part), _step(i, costs)) for i, part in enumerate(parts)])


def _step(part: int, costs: Costs) -> float:
    """Time of an entry of a part, partial or full."""
    return costs.compute + costs.add + costs.masked * (part % 2 == 0)


def _work(parts: list[np.ndarray], costs: Costs) -> float:
    """Time of a CTA's entries without waiting."""
    return sum(_step(i, costs) * len(part) for i, part in enumerate(parts))


def _tiles(segments: Segments) -> int:
    return max((int(part.max()) + 1 for parts in segments for part in parts if len(part)), default=0)
