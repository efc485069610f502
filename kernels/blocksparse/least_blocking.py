"""A schedule computed ahead of time, under which CTAs of the deterministic backward pass wait little for one another.

Finding the best order is hard (PR 2253 of flash-attention, where the question comes from, takes it for NP-complete), so
a handful of policies is tried on a model of the kernel and the best one taken. Ranks always follow the launch order, so
whatever is chosen cannot deadlock, with any number of resident CTAs (NOTE [write order]). Runs on the host, in numpy,
once for a mask; meant for lists of up to a few thousand n blocks.

NOTE [model] CTAs start in launch order, each when a slot is free. A CTA takes `start`, then for each entry `compute`,
and `masked` for a partial one; then it may add to the dQ tile once the CTA of the rank before has, which takes `add`.
So a CTA depends on earlier ones only, and its times follow in one pass over its entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np
import torch
from torch import Tensor

from kernels.blocksparse.lists import Band, Bits, BlockList, BlockLists, BlockSparse, Intervals
from kernels.blocksparse.schedule import ASCENDING, DESCENDING, Schedule, permutation
from kernels.blocksparse.transpose import in_one_list
from kernels.blocksparse.write_order import with_order

IN_ONE = ", in one list"
PAIRS = 16  # as launch_backward.side_by_side has it for ordered adds
CANDIDATES = 32  # n blocks that the greedy policy compares at each step

Order = Callable[[np.ndarray, np.ndarray], np.ndarray]  # tiles of a segment, their times of release -> positions


@dataclass(frozen=True)
class Costs:
    """Times of NOTE [model], in units of one block's products; the defaults are an H100's order of magnitude at dim
    128. masked is what a partial block takes more."""

    start: float = 1.0
    compute: float = 1.0
    add: float = 0.15
    masked: float = 0.1


@dataclass(frozen=True)
class Run:
    """What the model says: time from start to end, time that CTAs spent waiting, and each n block's entries in the
    order in which they are visited (positions in its segments)."""

    makespan: float
    waiting: float
    visits: dict[int, list[np.ndarray]]


@dataclass(frozen=True)
class Plan:
    """blocks: with the schedule, the rows of the backward lists in the order of their visits, and ranks.
    estimates: model time of each policy, summed over (sequence, KV head)s; chosen: the policy of each of them;
    makespan: model time of what was chosen; bound: of each, summed, what no order can beat."""

    blocks: BlockSparse
    makespan: float
    bound: float
    estimates: dict[str, float]
    chosen: tuple[str, ...]


def least_blocking(
    blocks: BlockSparse,
    *,
    heads_q: int,
    heads_kv: int,
    batch: int = 1,
    slots: int = 132,
    pairs: int = PAIRS,
    costs: Costs | None = None,
) -> Plan:
    """The best order of n blocks and of each one's m blocks that the policies find.

    blocks  with backward lists; on any device (its lists are copied to the host and back)
    batch   sequences; may be left at 1 where the lists have one for each
    slots   CTAs that are resident at once; pairs: (sequence, KV head) pairs whose CTAs are launched side by side
    Where the mask is computed (Intervals, Band), lists of partial blocks alone are tried too (transpose.in_one_list):
    a row's blocks then come in any order, for instance those of a window one after another. Raises ValueError without
    backward lists, or where heads_kv does not divide heads_q.
    """
    if blocks.backward is None:
        raise ValueError("blocks.backward: needs backward lists, got None")
    if heads_kv < 1 or heads_q % heads_kv:
        raise ValueError(f"heads_kv: needs a divisor of heads_q = {heads_q}, got {heads_kv}")
    costs = Costs() if costs is None else costs
    own = max(1, slots // max(1, min(pairs, heads_kv * max(batch, blocks.backward.partial.batch))))
    plan = _planned(blocks, heads_q, heads_kv, own, costs)
    if isinstance(blocks.mask, Intervals | Band):
        joined = _planned(in_one_list(blocks), heads_q, heads_kv, own, costs)
        estimates = plan.estimates | {name + IN_ONE: time for name, time in joined.estimates.items()}
        if joined.makespan < plan.makespan * (1 - 1e-6):
            plan = replace(joined, bound=plan.bound, chosen=tuple(name + IN_ONE for name in joined.chosen))
        plan = replace(plan, estimates=estimates)
    return plan


def _planned(blocks: BlockSparse, heads_q: int, heads_kv: int, own: int, costs: Costs) -> Plan:
    """The best plan for lists as they are; own: slots for each (sequence, KV head)."""
    assert blocks.backward is not None
    lists = (blocks.backward.partial, blocks.backward.full)
    batch, heads = lists[0].batch, 1 if lists[0].heads == 1 else heads_kv
    rows = [_rows(one) for one in lists]
    orders = np.zeros((batch, heads, lists[0].rows), dtype=np.int32)
    places = [np.arange(one.capacity) for one in lists]
    estimates: dict[str, float] = {}
    chosen, least, makespan = [], 0.0, 0.0
    for b in range(batch):
        for head in range(heads):
            group = range(heads_q // heads_kv)
            first = 0 if heads == 1 else head * len(group)
            segments = _segments(rows, b, [first if lists[0].heads == 1 else first + g for g in group], blocks.m_blocks)
            name, order, visits, found = best(segments, own, costs)
            chosen.append(name)
            least += bound(segments, own, costs)
            makespan += found[name].makespan
            orders[b, head] = order
            for policy, run in found.items():
                estimates[policy] = estimates.get(policy, 0.0) + run.makespan
            _arrange(places, rows, b, [first] if lists[0].heads == 1 else [first + g for g in group], visits)
    positions = torch.from_numpy(orders).to(blocks.device)
    arranged = _rearranged(blocks, [torch.from_numpy(place).to(blocks.device) for place in places])
    simple = {0: ASCENDING, 1: DESCENDING}
    ladder = np.arange(lists[0].rows)
    alike = next((simple[i] for i, o in enumerate((ladder, ladder[::-1])) if (orders == o).all()), None)
    return Plan(with_order(arranged, alike or permutation(positions)), makespan, least, estimates, tuple(chosen))


def estimate(
    blocks: BlockSparse,
    schedule: Schedule,
    *,
    heads_q: int,
    heads_kv: int,
    batch: int = 1,
    slots: int = 132,
    pairs: int = PAIRS,
    costs: Costs | None = None,
) -> Run:
    """NOTE [model]'s times for one (sequence, KV head), the first, under a schedule, visiting rows as they are
    listed."""
    if blocks.backward is None:
        raise ValueError("blocks.backward: needs backward lists, got None")
    rows = [_rows(one) for one in (blocks.backward.partial, blocks.backward.full)]
    shared = blocks.backward.partial.heads == 1
    segments = _segments(rows, 0, [0 if shared else g for g in range(heads_q // heads_kv)], blocks.m_blocks)
    order = schedule.launch_order(blocks.backward.rows, "cpu")[0, 0].tolist()
    own = max(1, slots // max(1, min(pairs, heads_kv * max(batch, blocks.backward.partial.batch))))
    return run(segments, order, own, costs or Costs(), as_listed)


Segments = list[list[np.ndarray]]  # for each n block, for each query head: partial tiles, full tiles


def best(
    segments: Segments, slots: int, costs: Costs
) -> tuple[str, np.ndarray, dict[int, list[np.ndarray]], dict[str, Run]]:
    """The policy with the least makespan (of equal ones the first, the simplest), its order, its visits, and all
    runs."""
    work = np.array([sum(len(part) for part in parts) for parts in segments])
    ladder = np.arange(len(segments))
    launches: dict[str, np.ndarray] = {
        "ascending": ladder,
        "descending": ladder[::-1],
        "longest": np.argsort(-work, kind="stable"),
        "shortest": np.argsort(work, kind="stable"),
    }
    visiting = {"": as_listed, ", rows reversed": reversed_rows, ", rows by release": by_release}
    found: dict[str, Run] = {}
    of: dict[str, np.ndarray] = {}
    for launch, order in launches.items():
        for suffix, visit in visiting.items():
            found[launch + suffix], of[launch + suffix] = run(segments, order.tolist(), slots, costs, visit), order
    for name, sign in (("greedy, longest", -1), ("greedy, shortest", 1)):
        of[name] = np.array(greedy(segments, sign * work, slots, costs), dtype=np.int64)
        found[name] = run(segments, of[name].tolist(), slots, costs, by_release)
    name = min(found, key=lambda policy: round(found[policy].makespan, 6))
    return name, of[name], found[name].visits, found


def run(segments: Segments, order: list[int], slots: int, costs: Costs, visit: Order) -> Run:
    """NOTE [model] for one launch order. O(entries log entries)."""
    release = np.zeros(_tiles(segments))
    free = [0.0] * slots
    heapify(free)
    waiting, end, visits = 0.0, 0.0, {}
    for n in order:
        finish, visits[n] = _visit(segments[n], free[0], release, costs, visit)
        waiting += finish - free[0] - costs.start - _work(segments[n], costs)
        end = max(end, finish)
        heapreplace(free, finish)
    return Run(end, waiting, visits)


def bound(segments: Segments, slots: int, costs: Costs) -> float:
    """What no order can beat: all work shared evenly, or the longest CTA alone."""
    work = [costs.start + _work(parts, costs) for parts in segments]
    return max(sum(work) / slots, max(work, default=0.0))


def greedy(segments: Segments, preference: np.ndarray, slots: int, costs: Costs) -> list[int]:
    """Launches, whenever a slot is free, the n block that would wait least now; of those, the first by preference.

    Compares `CANDIDATES` of them: the first ones by preference, and from both ends of those that are left."""
    release = np.zeros(_tiles(segments))
    free = [0.0] * slots
    left = sorted(range(len(segments)), key=lambda n: (preference[n], n))
    by_number = list(range(len(segments)))
    order = []
    while left:
        few = CANDIDATES // 3
        choice = dict.fromkeys(left[:few] + by_number[:few] + by_number[-few:])
        keyed = []
        for n in choice:
            finish, _ = _visit(segments[n], free[0], release.copy(), costs, by_release)
            keyed.append((round(finish - free[0] - _work(segments[n], costs), 6), preference[n], n))
        n = min(keyed)[2]
        finish, _ = _visit(segments[n], free[0], release, costs, by_release)
        heapreplace(free, finish)
        left.remove(n)
        by_number.remove(n)
        order.append(n)
    return order


def as_listed(tiles: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Visits a row as it is listed."""
    return np.arange(len(tiles))


def reversed_rows(tiles: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Visits a row from its end."""
    return np.arange(len(tiles) - 1, -1, -1)


def by_release(tiles: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Visits first what is free first, which is the least wait of one CTA by itself; of equals, the last m block."""
    return np.lexsort((-tiles, released))


def _visit(
    parts: list[np.ndarray], start: float, release: np.ndarray, costs: Costs, visit: Order
) -> tuple[float, list[np.ndarray]]:
    """When a CTA that starts now ends, and the order of its visits; notes what it releases and when."""
    now = start + costs.start
    orders: list[np.ndarray] = []
    for i, tiles in enumerate(parts):
        # Heads of a group that share a list have one order, the first one's.
        alike = (
            i > 1 and len(tiles) == len(parts[i - 2]) and (tiles - parts[i - 2] == tiles[:1] - parts[i - 2][:1]).all()
        )
        order = orders[i - 2] if alike else visit(tiles, release[tiles])
        orders.append(order)
        if not len(tiles):
            continue
        here, step = tiles[order], _step(i, costs)
        ideal = step * np.arange(1, len(here) + 1)
        # t[i] = max(t[i - 1] + compute, release[i]) + add, with t[i] = late[i] + ideal[i]
        late = np.maximum.accumulate(np.maximum(release[here] + costs.add - ideal, now))
        release[here] = late + ideal
        now = float(late[-1] + ideal[-1])
    return now, orders


def _step(part: int, costs: Costs) -> float:
    """Time of an entry of a part, partial or full."""
    return costs.compute + costs.add + costs.masked * (part % 2 == 0)


def _work(parts: list[np.ndarray], costs: Costs) -> float:
    """Time of a CTA's entries without waiting."""
    return sum(_step(i, costs) * len(part) for i, part in enumerate(parts))


def _tiles(segments: Segments) -> int:
    return max((int(part.max()) + 1 for parts in segments for part in parts if len(part)), default=0)


def _rows(blocks: BlockList) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(count, begin, index) on the host."""
    return blocks.count.cpu().numpy(), blocks.begin.cpu().numpy(), blocks.index.cpu().numpy().astype(np.int64)


def _segments(rows, b: int, heads: list[int], m_blocks: int) -> Segments:
    found: Segments = []
    for n in range(rows[0][0].shape[2]):
        parts = []
        for g, head in enumerate(heads):
            for count, begin, index in rows:
                at = int(begin[b, head, n])
                parts.append(index[at : at + int(count[b, head, n])] + g * m_blocks)
        found.append(parts)
    return found


def _arrange(places: list[np.ndarray], rows, b: int, heads: list[int], visits: dict[int, list[np.ndarray]]) -> None:
    """Notes, for each element of the two index tensors, which element comes there."""
    for n, orders in visits.items():
        for g, head in enumerate(heads):
            for kind, (count, begin, _) in enumerate(rows):
                at, size = int(begin[b, head, n]), int(count[b, head, n])
                places[kind][at : at + size] = at + orders[2 * g + kind]


def _rearranged(blocks: BlockSparse, places: list[Tensor]) -> BlockSparse:
    assert blocks.backward is not None
    lists = (blocks.backward.partial, blocks.backward.full)
    turned = BlockLists(*(replace(one, index=one.index[place]) for one, place in zip(lists, places, strict=True)))
    mask = blocks.mask
    if isinstance(mask, Bits) and mask.slot_backward is not None:
        mask = replace(mask, slot_backward=mask.slot_backward[places[0]])
    return replace(blocks, backward=turned, mask=mask, order=None)
