"""A schedule computed ahead of time, under which CTAs of the deterministic backward pass wait little for one another.

Finding the best order is hard (PR 2253 of flash-attention, where the question comes from, takes it for NP-complete), so
a handful of policies is tried on a model of the kernel and the best one taken. Ranks always follow the launch order, so
whatever is chosen cannot deadlock, with any number of resident CTAs (NOTE [write order]). Runs on the host, in numpy,
once for a mask; meant for lists of up to a few thousand n blocks.

NOTE [model] CTAs start in launch order, each when a slot is free. A CTA takes `start`, then for each entry `compute`,
and `masked` for a partial one; then it may add to the dQ tile once the CTA of the rank before has released it, which
takes `add`. It releases the tile `hold` later: the kernel adds one step late, and releases a barrier after that (NOTE
[who waits] of backward/kernel.py), while it computes its next entry. So a CTA depends on earlier ones only, and its
times follow in one pass over its entries.
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
from kernels.blocksparse.split import PAIRS, SLOTS, parts_of
from kernels.blocksparse.transpose import in_one_list
from kernels.blocksparse.write_order import with_order

IN_ONE, PARTIAL_FIRST = ", in one list", ", partial first"
CANDIDATES = 32  # n blocks that the greedy policy compares at each step

Order = Callable[[np.ndarray, np.ndarray], np.ndarray]  # tiles of a segment, their times of release -> positions


@dataclass(frozen=True)
class Costs:
    """Times of NOTE [model], in units of one block's products; the defaults are an H100's order of magnitude at dim
    128. masked is what a partial block takes more; add and hold together are how far one CTA is behind another that
    visits the same tiles, 1.2 blocks at dim 128 and 1.4 at dim 64, where a block is one step."""

    start: float = 1.0
    compute: float = 1.0
    add: float = 0.15
    masked: float = 0.1
    hold: float = 1.05


@dataclass(frozen=True)
class Run:
    """What the model says: time from start to end, time that CTAs spent waiting, and each n block's entries in the
    order in which they are visited (positions in its segments)."""

    makespan: float
    waiting: float
    visits: dict[int, list[np.ndarray]]


@dataclass(frozen=True)
class Plan:
    """blocks: with the schedule, the rows of the backward lists in the order of their visits (or merged), and ranks.
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
    slots: int = SLOTS,
    pairs: int = PAIRS,
    costs: Costs | None = None,
) -> Plan:
    """The best order of n blocks and of each one's m blocks that the policies find.

    blocks  with backward lists; on any device (its lists are copied to the host and back)
    batch   sequences; may be left at 1 where the lists have one for each
    slots   CTAs that are resident at once; pairs: (sequence, unit) pairs whose CTAs are launched side by side
    Groups are split into units as the launcher does (split.parts_of). Where heads have lists of their own, though, one
    order serves the units of a KV head, and is the best one for a CTA that has them all. Merged rows are tried merged,
    and with their partial blocks before their full ones, which may then come in any order. Where the mask is computed
    (Intervals, Band), lists of partial blocks alone are tried too (transpose.in_one_list): a row's blocks then come in
    any order. Raises ValueError without backward lists, or where heads_kv does not divide heads_q.
    """
    if blocks.backward is None:
        raise ValueError("blocks.backward: needs backward lists, got None")
    if heads_kv < 1 or heads_q % heads_kv:
        raise ValueError(f"heads_kv: needs a divisor of heads_q = {heads_q}, got {heads_kv}")
    costs = Costs() if costs is None else costs
    own, share = _own(blocks, heads_q, heads_kv, batch, slots, pairs)
    ways = {"": blocks}
    if blocks.merged:
        ways[PARTIAL_FIRST] = replace(blocks, merged=False)
    if isinstance(blocks.mask, Intervals | Band):
        ways[IN_ONE] = replace(in_one_list(blocks), merged=False)
    plans = {way: _planned(lists, share, heads_kv, own, costs) for way, lists in ways.items()}
    way = min(plans, key=lambda way: round(plans[way].makespan, 6))
    estimates = {name + way: time for way, plan in plans.items() for name, time in plan.estimates.items()}
    chosen = tuple(name + way for name in plans[way].chosen)
    return replace(plans[way], bound=plans[""].bound, estimates=estimates, chosen=chosen)


def _own(blocks: BlockSparse, heads_q: int, heads_kv: int, batch: int, slots: int, pairs: int) -> tuple[int, int]:
    """Slots that one (sequence, unit) has, and query heads that a CTA visits: of a unit where these are alike."""
    assert blocks.backward is not None
    lists = blocks.backward.partial
    batch = max(batch, lists.batch)
    parts = parts_of(batch, heads_q, heads_kv, blocks.m_blocks, lists.rows, True)
    own = max(1, slots // max(1, min(pairs, heads_kv * parts * batch)))
    return own, heads_q // heads_kv // (parts if lists.heads == 1 else 1)


def _planned(blocks: BlockSparse, share: int, heads_kv: int, own: int, costs: Costs) -> Plan:
    """The best plan for lists as they are; share: query heads of a CTA; own: slots for each (sequence, unit)."""
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
            first = 0 if heads == 1 else head * share
            heads_of_cta = [first + g * (lists[0].heads > 1) for g in range(share)]
            segments = _segments(rows, b, heads_of_cta, blocks.m_blocks)
            name, order, visits, found = best(segments, own, costs, blocks.merged)
            chosen.append(name)
            least += bound(segments, own, costs)
            makespan += found[name].makespan
            orders[b, head] = order
            for policy, run in found.items():
                estimates[policy] = estimates.get(policy, 0.0) + run.makespan
            _arrange(places, rows, b, list(dict.fromkeys(heads_of_cta)), visits)
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
    slots: int = SLOTS,
    pairs: int = PAIRS,
    costs: Costs | None = None,
) -> Run:
    """NOTE [model]'s times for one (sequence, unit), the first, under a schedule, visiting rows as the kernel does."""
    if blocks.backward is None:
        raise ValueError("blocks.backward: needs backward lists, got None")
    rows = [_rows(one) for one in (blocks.backward.partial, blocks.backward.full)]
    own, share = _own(blocks, heads_q, heads_kv, batch, slots, pairs)
    several = blocks.backward.partial.heads > 1
    segments = _segments(rows, 0, [g * several for g in range(share)], blocks.m_blocks)
    order = schedule.launch_order(blocks.backward.rows, "cpu")[0, 0].tolist()
    return run(segments, order, own, costs or Costs(), merged if blocks.merged else as_listed)


Segments = list[list[np.ndarray]]  # for each n block, for each query head: partial tiles, full tiles


def best(
    segments: Segments, slots: int, costs: Costs, in_order: bool = False
) -> tuple[str, np.ndarray, dict[int, list[np.ndarray]], dict[str, Run]]:
    """The policy with the least makespan (of equal ones the first, the simplest), its order, its visits, and all
    runs. in_order: rows are visited merged, and in no other order."""
    work = np.array([sum(len(part) for part in parts) for parts in segments])
    ladder = np.arange(len(segments))
    launches: dict[str, np.ndarray] = {
        "ascending": ladder,
        "descending": ladder[::-1],
        "longest": np.argsort(-work, kind="stable"),
        "shortest": np.argsort(work, kind="stable"),
    }
    visiting = {"": as_listed, ", rows reversed": reversed_rows, ", rows by release": by_release}
    if in_order:
        visiting = {"": merged}
    found: dict[str, Run] = {}
    of: dict[str, np.ndarray] = {}
    for launch, order in launches.items():
        for suffix, visit in visiting.items():
            found[launch + suffix], of[launch + suffix] = run(segments, order.tolist(), slots, costs, visit), order
    for name, sign in (("greedy, longest", -1), ("greedy, shortest", 1)):
        visit = merged if in_order else by_release
        of[name] = np.array(greedy(segments, sign * work, slots, costs, visit), dtype=np.int64)
        found[name] = run(segments, of[name].tolist(), slots, costs, visit)
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


def greedy(segments: Segments, preference: np.ndarray, slots: int, costs: Costs, visit: Order) -> list[int]:
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
            finish, _ = _visit(segments[n], free[0], release.copy(), costs, visit)
            keyed.append((round(finish - free[0] - _work(segments[n], costs), 6), preference[n], n))
        n = min(keyed)[2]
        finish, _ = _visit(segments[n], free[0], release, costs, visit)
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


def merged(tiles: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Visits a row in ascending order; `_visit` then takes the partial and the full part of a head as one."""
    return np.argsort(tiles)


def _visit(
    parts: list[np.ndarray], start: float, release: np.ndarray, costs: Costs, visit: Order
) -> tuple[float, list[np.ndarray]]:
    """When a CTA that starts now ends, and the order of its visits; notes what it releases and when."""
    now = start + costs.start
    orders: list[np.ndarray] = []
    if visit is merged:
        for i in range(0, len(parts), 2):
            tiles, steps = np.concatenate(parts[i : i + 2]), _steps(parts[i : i + 2], costs)
            order = visit(tiles, release)
            now = _pass(tiles[order], steps[order], now, release, costs)
        return now, [np.arange(len(part)) for part in parts]
    for i, tiles in enumerate(parts):
        # Heads of a group that share a list have one order, the first one's.
        alike = (
            i > 1 and len(tiles) == len(parts[i - 2]) and (tiles - parts[i - 2] == tiles[:1] - parts[i - 2][:1]).all()
        )
        order = orders[i - 2] if alike else visit(tiles, release[tiles])
        orders.append(order)
        now = _pass(tiles[order], np.full(len(tiles), _step(i, costs)), now, release, costs)
    return now, orders


def _pass(tiles: np.ndarray, steps: np.ndarray, now: float, release: np.ndarray, costs: Costs) -> float:
    """When a CTA that is there now has visited these tiles in this order."""
    if not len(tiles):
        return now
    ideal = steps.cumsum()
    # t[i] = max(t[i - 1] + compute, release[i]) + add, with t[i] = late[i] + ideal[i]
    late = np.maximum.accumulate(np.maximum(release[tiles] + costs.add - ideal, now))
    release[tiles] = late + ideal + costs.hold
    return float(late[-1] + ideal[-1])


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
