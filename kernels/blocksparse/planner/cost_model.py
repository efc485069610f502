"""A model of how long the CTAs of the deterministic backward pass wait for one another, and policies of what to launch
and to visit first.

NOTE [model] CTAs start in launch order, each when a slot is free. A CTA takes `start`, then for each entry `compute`,
and `masked` for a partial one; then it may add to the dQ tile once the CTA of the rank before has released it, which
takes `add`. It releases the tile `hold` later, while it computes its next entry. So a CTA depends on earlier ones only,
and its times follow in one pass over its entries. Policies make an order for one (sequence, unit), on its share of the
slots; what an order is worth is the time of the whole launch under it: launch_model.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import NamedTuple

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
    """Times of NOTE [model], in units of one block's products. masked is what a partial block takes more; add and hold
    together are how far one CTA is behind another that visits the same tiles. miss is what memory takes for an m block
    that the L2 cache does not hold, on a multiprocessor's share of it; sums what the whole GPU takes, of dK and dV of a
    tile of keys and a part, to write them and read them again. With a hold of 0.8 and this miss the model has the times
    of 190 launches of random blocks on an H200 best (`ci/results/launch_model_h200.json`); orders for a hold of 1 are
    as fast, and faster where rows are short (`ci/results/planned_reversed_h200.json`)."""

    start: float = 1.0
    compute: float = 1.0
    add: float = 0.15
    masked: float = 0.1
    hold: float = 1.0
    miss: float = 1.7
    sums: float = 0.012


def costs_of(dim: int) -> Costs:
    """The costs of a head dim, in units of its own blocks' products. Beyond 128 of the two CTAs that have the halves of
    a tile of keys; hold and miss are there those whose orders were fastest in the mean, of nine pairs over five
    problems on an H200: `ci/results/planned_dim_256_h200.json`."""
    if dim > 128:
        return Costs(start=1.25, compute=0.9, add=0.1, masked=0.05, hold=1.2, miss=2.8, sums=0.019)
    return Costs() if dim > 64 else Costs(miss=1.4, sums=0.0065)


Segments = list[list[np.ndarray]]  # for each n block, for each query head: partial tiles, full tiles
Visits = dict[int, list[np.ndarray]]  # of each n block: the order of its visits, positions in its segments


class LaunchOrder(NamedTuple):
    """An order of n blocks, and of each one's visits. visit: the policy of these."""

    order: list[int]
    visits: Visits
    visit: Order


def orders(segments: Segments, slots: int, costs: Costs, in_order: bool = False) -> dict[str, LaunchOrder]:
    """The orders that the policies make for one (sequence, unit) on so many slots, by name, the simplest policy first.
    in_order: rows are visited merged, and in no other order."""
    slots = max(min(slots, len(segments)), 1)
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
    made: dict[tuple[tuple[int, ...], Order], LaunchOrder] = {}

    def played(order: list[int], visit: Order) -> LaunchOrder:
        key = (tuple(order), as_listed if single and not in_order else visit)
        if key not in made:
            made[key] = played_alone(segments, order, slots, costs, key[1])
        return made[key]

    found = {}
    for launch, order in launches.items():
        for suffix, visit in visiting.items():
            found[launch + suffix] = played(order.tolist(), visit)
    for name, sign in (("greedy, longest", -1), ("greedy, shortest", 1)):
        visit = merged if in_order else as_listed if single else by_release
        found[name] = played(greedy(segments, sign * work, slots, costs, visit), visit)
    return found


def played_alone(segments: Segments, order: list[int], slots: int, costs: Costs, visit: Order) -> LaunchOrder:
    """A launch order of one (sequence, unit), with the visits that the policy chooses as it is played through."""
    release = np.zeros(tiles_of(segments))
    free = [0.0] * slots
    heapify(free)
    visits: Visits = {}
    for n in order:
        finish, visits[n] = visit_row(segments[n], free[0], release, costs, visit)
        heapreplace(free, finish)
    return LaunchOrder(order, visits, visit)


def greedy(segments: Segments, preference: np.ndarray, slots: int, costs: Costs, visit: Order) -> list[int]:
    """Launches, whenever a slot is free, the n block that would wait least now; of those, the first by preference.

    Compares `CANDIDATES` of them: the first ones by preference, and from both ends of those that are left."""
    release = np.zeros(tiles_of(segments))
    free = [0.0] * slots
    rows = [_merged_rows(parts, costs) if visit is merged else None for parts in segments]
    work = [work_of(parts, costs) for parts in segments]
    left = sorted(range(len(segments)), key=lambda n: (preference[n], n))
    by_number = list(range(len(segments)))
    order = []
    while left:
        few = CANDIDATES // 3
        choice = dict.fromkeys(left[:few] + by_number[:few] + by_number[-few:])
        keyed = []
        for n in choice if len(choice) > 1 else ():
            finish, _ = visit_row(segments[n], free[0], release.copy(), costs, visit, rows[n])
            keyed.append((round(finish - free[0] - work[n], 6), preference[n], n))
        n = min(keyed)[2] if keyed else left[0]
        finish, _ = visit_row(segments[n], free[0], release, costs, visit, rows[n])
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
    """Visits a row in ascending order; `visit_row` then takes the partial and the full part of a head as one."""
    return np.argsort(tiles)


MergedRows = list[tuple[np.ndarray, np.ndarray]]  # for each query head: tiles, times of their ends without waiting


def _merged_rows(parts: list[np.ndarray], costs: Costs) -> MergedRows:
    """Rows of an n block in the order in which `merged` visits them; releases do not change it."""
    found: MergedRows = []
    for i in range(0, len(parts), 2):
        both = parts[i : i + 2]
        tiles = np.concatenate(both)
        order = np.argsort(tiles)
        found.append((tiles[order], steps_of(both, costs)[order].cumsum()))
    return found


def visit_row(
    parts: list[np.ndarray],
    start: float,
    release: np.ndarray,
    costs: Costs,
    visit: Order,
    rows: MergedRows | None = None,
) -> tuple[float, list[np.ndarray]]:
    """Time at which a CTA that starts now ends, and the order of its visits; notes what it releases and when. rows:
    those of `merged`, where they are known."""
    now = start + costs.start
    orders: list[np.ndarray] = []
    if visit is merged:
        for tiles, ideal in _merged_rows(parts, costs) if rows is None else rows:
            now = _pass(tiles, ideal, now, release, costs)
        return now, [np.arange(len(part)) for part in parts]
    for i, tiles in enumerate(parts):
        if len(tiles) <= 1:  # one way to visit it, and numpy's calls would take longer than the work
            orders.append(_FIRST[: len(tiles)])
            if len(tiles):
                now = _pass_one(tiles, step_of(i, costs), now, release, costs)
            continue
        # Heads of a group that share a list have one order, the first one's.
        alike = (
            i > 1 and len(tiles) == len(parts[i - 2]) and (tiles - parts[i - 2] == tiles[:1] - parts[i - 2][:1]).all()
        )
        pace = Pace(now, step_of(i, costs) - costs.add, costs.add)
        order = orders[i - 2] if alike else visit(tiles, release[tiles], pace)
        orders.append(order)
        ideal = np.full(len(tiles), step_of(i, costs)).cumsum()
        now = _pass(tiles[order], ideal, now, release, costs)
    return now, orders


def _pass(
    tiles: np.ndarray,
    ideal: np.ndarray,
    now: float,
    release: np.ndarray,
    costs: Costs,
) -> float:
    """Time at which a CTA that is there now has visited these tiles in this order. ideal: the times of their ends
    without waiting, for a CTA that begins at 0."""
    if not len(tiles):
        return now
    # t[i] = max(t[i - 1] + compute, release[i]) + add, with t[i] = late[i] + ideal[i]
    late = np.maximum.accumulate(np.maximum(release[tiles] + costs.add - ideal, now))
    release[tiles] = late + ideal + costs.hold
    return float(late[-1] + ideal[-1])


def _pass_one(
    tiles: np.ndarray,
    step: float,
    now: float,
    release: np.ndarray,
    costs: Costs,
) -> float:
    """`_pass` for a single tile."""
    tile = int(tiles[0])
    done = max(float(release[tile]) + costs.add - step, now) + step
    release[tile] = done + costs.hold
    return done


def steps_of(parts: list[np.ndarray], costs: Costs) -> np.ndarray:
    """Times of the entries of a head's partial and full parts."""
    return np.concatenate([np.full(len(part), step_of(i, costs)) for i, part in enumerate(parts)])


def step_of(part: int, costs: Costs) -> float:
    """Time of an entry of a part, partial or full."""
    return costs.compute + costs.add + costs.masked * (part % 2 == 0)


def work_of(parts: list[np.ndarray], costs: Costs) -> float:
    """Time of a CTA's entries without waiting."""
    return sum(step_of(i, costs) * len(part) for i, part in enumerate(parts))


def tiles_of(segments: Segments) -> int:
    """One more than the largest tile."""
    return max((int(part.max()) + 1 for parts in segments for part in parts if len(part)), default=0)
