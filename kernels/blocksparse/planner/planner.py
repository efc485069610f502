"""A schedule computed ahead of time, under which CTAs of the deterministic backward pass wait little for one another.

Finding the best order is hard (PR 2253 of flash-attention, where the question comes from, takes it for NP-complete), so
a handful of policies is tried on a model of the launch and the best one taken. Ranks always follow the launch order, so
whatever is chosen cannot deadlock, with any number of resident CTAs (NOTE [write order]). Runs on the host, in numpy,
once for a mask; meant for lists of up to a few thousand n blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.blocksparse.lists.builder import ceil_div
from kernels.blocksparse.lists.schedule import ASCENDING, DESCENDING, Schedule, permutation, schedule_of
from kernels.blocksparse.lists.transpose import in_one_list
from kernels.blocksparse.lists.types import Band, Bits, BlockList, BlockLists, BlockSparse, Intervals
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.planner.cost_model import (
    WARM,
    Costs,
    LaunchOrder,
    Segments,
    as_listed,
    by_release,
    costs_of,
    merged,
    orders,
    warm_first,
)
from kernels.blocksparse.planner.group_split import (
    L2_BYTES,
    PAIRS,
    SLOTS,
    choose_group_split,
    ordered_concurrent_pairs,
    unit_bytes,
)
from kernels.blocksparse.planner.launch_model import (
    Launch,
    Run,
    SequenceLaunch,
    bound,
    chosen_again,
    run,
    run_by_length,
)
from kernels.blocksparse.spec.variant import LARGEST_DIM

IN_ONE, PARTIAL_FIRST, AGAIN = ", in one list", ", partial first", ", visits chosen again"
REVERSED = ", last group reversed"
LEAST = 4  # units, where there are fewer than the launcher would have
ROUNDS = 3  # of choosing visits again
TURNED = 3  # orders, the best ones, that are tried with the last group reversed
MARGIN = 1.08  # by which that may bring an order below another one
WORTH = 0.04  # of the time, that fewer units should save at least for being looked at


@dataclass(frozen=True)
class Plan:
    """blocks: with the schedule, the rows of the backward lists in the order of their visits (or merged), and ranks.
    estimates: model time of the launch under each policy that was tried for all (sequence, KV head)s that have lists of
    their own, summed over these; chosen: the policy of each of them; makespan: model time of what was chosen; bound: of
    each, summed, what no order can beat; pairs: concurrent (sequence, unit) pairs, and group_split: units of each KV
    head, which the schedule holds too; total: model time of the whole pass, by which these were chosen."""

    blocks: BlockSparse
    makespan: float
    bound: float
    estimates: dict[str, float]
    chosen: tuple[str, ...]
    pairs: int
    group_split: int
    total: float


def least_blocking(
    blocks: BlockSparse,
    *,
    heads_q: int,
    heads_kv: int,
    batch: int = 1,
    dim: int = 128,
    slots: int = SLOTS,
    pairs: int | None = None,
    costs: Costs | None = None,
    packed: bool = True,
) -> Plan:
    """The best order of n blocks and of each one's m blocks that the policies find.

    blocks  with backward lists; on any device (its lists are copied to the host and back)
    batch   sequences; may be left at 1 where the lists have one for each
    dim     head dim, by which memory is counted, and its time
    slots   CTAs that are resident at once
    pairs   concurrent (sequence, unit) pairs; None: of `_numbers_of_pairs` the one that takes the least time
    packed  False: sequences are padded, and launched with as many tiles each as the longest has. Packed ones of unequal
            lengths that have lists of their own are launched by length. Either plan is right for either layout
    Groups are split into units as the launcher does (`choose_group_split`), or into fewer where those take less time:
    there is less to start and to sum up then. Where heads have lists of their own, though, one order serves the units
    of a KV head, and is the best one for a CTA that has them all. Merged rows are tried merged, and with their partial
    blocks before their full ones, which may then come in any order. Where the mask is computed (Intervals, Band), lists
    of partial blocks alone are tried too (transpose.in_one_list): a row's blocks then come in any order. The best
    orders are tried with the last group of concurrent pairs reversed too, but for sequences by length. Raises
    ValueError without backward lists, for heads or sequences that these are not for, where heads_kv does not divide
    heads_q, and for slots or pairs below 1.
    """
    if blocks.backward is None:
        raise ValueError("blocks.backward: needs backward lists, got None")
    if pairs is not None and pairs < 1:
        raise ValueError(f"pairs: needs None or a positive number, got {pairs}")
    costs = costs_of(dim) if costs is None else costs
    usual = Sizes.of(blocks, heads_q, heads_kv, batch, dim, slots, packed)
    plans = list[Plan]()
    for sizes in (usual, *_fewer(blocks, usual, costs)):
        most = ordered_concurrent_pairs(sizes.concurrent, sizes.bytes_of(blocks.m_blocks * blocks.tile_m))
        for number in (pairs,) if pairs else _numbers_of_pairs(most, sizes.concurrent):
            plans.append(_with_pairs(blocks, sizes, number, costs, min((plan.total for plan in plans), default=None)))
    return min(plans, key=lambda plan: round(plan.total, 6))


def _numbers_of_pairs(most: int, units: int) -> list[int]:
    """Concurrent (sequence, unit) pairs to try: `most`, and that halved twice; at most as many as there are."""
    return list(dict.fromkeys(min(max(most // part, 1), max(units, 1)) for part in (1, 2, 4)))


def _fewer(blocks: BlockSparse, usual: Sizes, costs: Costs) -> list[Sizes]:
    """Splits into fewer units, LEAST at least, that save more than WORTH of the time by what they need not start and
    sum up."""
    assert blocks.backward is not None
    lists = (blocks.backward.partial, blocks.backward.full)
    entries = sum(int(one.count.sum()) for one in lists) / (lists[0].batch * lists[0].heads)
    work = usual.batch * usual.group * usual.heads_kv * entries * costs.compute / usual.slots
    needed = usual.fixed(costs)
    splits = [
        replace(usual, group_split=split) for split in range(1, usual.group_split) if usual.group_split % split == 0
    ]
    saved = {few: needed - few.fixed(costs) for few in splits if few.units >= LEAST}
    return [few for few, time in saved.items() if time > WORTH * (work + needed)]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a problem and of a GPU, and the group split of each KV head. lengths: tiles of keys of each sequence,
    where these are launched by length (NOTE [sequences by length] of lists/lpt.py); else none."""

    heads_kv: int
    group: int
    batch: int
    dim: int
    slots: int  # of CTAs, or beyond head dim 128 of two, which have the halves of a tile of keys (lists/halves.py)
    group_split: int
    shared: bool  # lists, by the heads
    n_blocks: int
    lengths: tuple[int, ...]

    @classmethod
    def of(
        cls, blocks: BlockSparse, heads_q: int, heads_kv: int, batch: int, dim: int, slots: int, packed: bool
    ) -> Sizes:
        """Those of `least_blocking`'s arguments."""
        assert blocks.backward is not None
        lists = blocks.backward.partial
        if heads_kv < 1 or heads_q % heads_kv:
            raise ValueError(f"heads_kv: needs a divisor of heads_q = {heads_q}, got {heads_kv}")
        if lists.heads not in (1, heads_q):
            raise ValueError(f"heads_q: needs {lists.heads}, as the lists, got {heads_q}")
        if batch != 1 and lists.batch not in (1, batch):
            raise ValueError(f"batch: needs 1 or {lists.batch}, as the lists, got {batch}")
        if slots < 1:
            raise ValueError(f"slots: needs a positive number, got {slots}")
        batch = max(batch, lists.batch)
        halves = 2 if dim > LARGEST_DIM[128] and blocks.tile_n == 128 else 1
        lengths = _lengths(blocks, batch) if packed else ()
        alike = ceil_div(sum(lengths), 2 * lists.rows) if lengths else batch  # as `group_split_of` of the launcher
        group_split = choose_group_split(alike, heads_q, heads_kv, blocks.m_blocks, halves * lists.rows, True)
        slots = max(1, slots // halves)
        shared = lists.heads == 1
        return cls(heads_kv, heads_q // heads_kv, batch, dim, slots, group_split, shared, lists.rows, lengths)

    @property
    def heads_of_unit(self) -> int:
        """Query heads."""
        return self.group // self.group_split

    @property
    def heads_of_cta(self) -> int:
        """Query heads that an order is computed for: of a unit where these share lists, else of its KV head."""
        return self.heads_of_unit if self.shared else self.group

    @property
    def units(self) -> int:
        """(sequence, unit) pairs."""
        return self.batch * self.heads_kv * self.group_split

    @property
    def concurrent(self) -> int:
        """(sequence, unit) pairs that may be concurrent: by length those of one sequence."""
        return self.units // self.batch if self.lengths else self.units

    @property
    def tiles(self) -> int:
        """Tiles of keys of all units."""
        return self.heads_kv * self.group_split * (sum(self.lengths) if self.lengths else self.batch * self.n_blocks)

    def bytes_of(self, rows: int) -> int:
        """Bytes of the cache that so many rows of a unit's queries take."""
        return unit_bytes(rows, self.heads_of_unit, self.dim)

    def fixed(self, costs: Costs) -> float:
        """Time for starting CTAs and for summing up what they leave."""
        return self.tiles * costs.start / self.slots + self.sums(costs)

    def sums(self, costs: Costs) -> float:
        """Time for summing up what CTAs leave."""
        return self.tiles * costs.sums if self.group_split > 1 else 0.0

    def launch(self, blocks: BlockSparse, pairs: int, sequence: int) -> Launch:
        """The launch with so many concurrent pairs, of CTAs that an order is computed for: of all sequences, taken to
        be as this one. By length, as many pairs more of a sequence as it is shorter than the longest."""
        if self.lengths:
            pairs = min(pairs * self.n_blocks // max(self.lengths[sequence], 1), self.concurrent)
        units = max(1, self.units * self.heads_of_unit // self.heads_of_cta)
        return Launch(self.slots, pairs, units, max(1, L2_BYTES // unit_bytes(blocks.tile_m, 1, self.dim)))

    def by_length(self) -> list[int]:
        """The sequences as they are launched by length."""
        return sorted(range(len(self.lengths)), key=lambda sequence: -self.lengths[sequence])


def _lengths(blocks: BlockSparse, batch: int) -> tuple[int, ...]:
    """Tiles of keys of each sequence where these are launched by length, as launch/by_length.py has it; else none. Only
    where each has lists of its own: an order of n blocks fits one length."""
    assert blocks.backward is not None
    order = None if blocks.lpt is None else blocks.lpt.keys
    if order is None or not 1 < batch == blocks.backward.partial.batch == order.sequence.numel():
        return ()
    lengths = torch.empty(batch, dtype=torch.int64)
    lengths[order.sequence.cpu().long()] = order.start.cpu().long().diff()
    return tuple(lengths.tolist()) if lengths.sum() < batch * blocks.backward.rows else ()


def _with_pairs(blocks: BlockSparse, sizes: Sizes, pairs: int, costs: Costs, least: float | None) -> Plan:
    """The best plan for so many concurrent pairs. least: the total of another plan; times that are no less may be less
    than they should be, but not less than that one."""
    ways = {"": blocks}
    if blocks.merged:
        ways[PARTIAL_FIRST] = replace(blocks, merged=False)
    if isinstance(blocks.mask, Intervals | Band):
        ways[IN_ONE] = replace(in_one_list(blocks), merged=False)
    plans = {way: _planned(lists, sizes, pairs, costs, least) for way, lists in ways.items()}
    way = min(plans, key=lambda way: round(plans[way].total, 6))
    estimates = {name + way: time for way, plan in plans.items() for name, time in plan.estimates.items()}
    chosen = tuple(name + way for name in plans[way].chosen)
    return replace(plans[way], bound=plans[""].bound, estimates=estimates, chosen=chosen)


def _planned(blocks: BlockSparse, sizes: Sizes, pairs: int, costs: Costs, least_total: float | None) -> Plan:
    """The best plan for lists as they are. least_total: as `least` of `_with_pairs`."""
    assert blocks.backward is not None
    lists = (blocks.backward.partial, blocks.backward.full)
    batch, heads = lists[0].batch, 1 if lists[0].heads == 1 else sizes.heads_kv
    times = list[dict[str, float]]()
    launches, least = list[SequenceLaunch](), 0.0
    straight, turned = list[_Choice](), list[_Choice]()
    known = None if least_total is None or batch * heads > 1 else least_total - sizes.sums(costs)
    for number, of_rows in enumerate(segments_of(blocks, heads, sizes.heads_of_cta)):
        sequence = number // heads
        segments = of_rows[: sizes.lengths[sequence]] if sizes.lengths else of_rows
        launch = sizes.launch(blocks, pairs, sequence)
        choices, of_policies = _best(segments, launch, costs, blocks.merged, known)
        times.append(of_policies)
        straight.append(choices[0])
        turned.append(choices[-1])
        launches.append(SequenceLaunch(segments, choices[0].order, replace(launch, units=launch.units // batch)))
        least += bound(segments, launch, costs)
    best = straight if sizes.lengths else min(straight, turned, key=lambda found: round(_time(found), 6))
    total = _time(best) / max(len(best), 1)
    if sizes.lengths:
        total = run_by_length([launches[sequence * heads] for sequence in sizes.by_length()], costs).makespan
    found = [_with_past_end(choice.order, lists[0].rows) for choice in best]
    reverses = any(choice.reverses for choice in best)
    planned = under(blocks, found, heads, pairs, sizes.group_split, own_first=bool(sizes.lengths), reverses=reverses)
    total += sizes.sums(costs)
    chosen = tuple(choice.name for choice in best)
    tried_by_all = [name for name in times[0] if all(name in one for one in times)]
    estimates = {name: sum(one[name] for one in times) for name in tried_by_all}
    return Plan(planned, _time(best), least, estimates, chosen, pairs, sizes.group_split, total)


def _time(choices: list[_Choice]) -> float:
    """The sum of their times."""
    return sum(choice.time for choice in choices)


def _with_past_end(order: LaunchOrder, rows: int) -> LaunchOrder:
    """An order of a sequence's own n blocks, with those past its end behind them."""
    return order._replace(order=[*order.order, *range(len(order.order), rows)])


def segments_of(blocks: BlockSparse, heads: int, heads_of_cta: int) -> Iterator[Segments]:
    """The segments of each sequence and each of `heads` KV heads; heads_of_cta: query heads that a CTA visits."""
    assert blocks.backward is not None
    lists = (blocks.backward.partial, blocks.backward.full)
    rows = [_rows(one) for one in lists]
    for b in range(lists[0].batch):
        for head in range(heads):
            yield _segments(rows, b, _heads_of(blocks, head, heads, heads_of_cta), blocks.m_blocks)


def _heads_of(blocks: BlockSparse, head: int, heads: int, heads_of_cta: int) -> list[int]:
    """The heads of the lists that a CTA visits."""
    assert blocks.backward is not None
    first = 0 if heads == 1 else head * heads_of_cta
    return [first + g * (blocks.backward.partial.heads > 1) for g in range(heads_of_cta)]


def under(
    blocks: BlockSparse,
    found: list[LaunchOrder],
    heads: int,
    pairs: int,
    group_split: int,
    own_first: bool = False,
    reverses: bool = False,
) -> BlockSparse:
    """The lists and their schedule under orders, one for each that `segments_of` makes; own_first, reverses: as
    `Schedule` has them."""
    assert blocks.backward is not None
    lists = (blocks.backward.partial, blocks.backward.full)
    positions = np.zeros((lists[0].batch, heads, lists[0].rows), dtype=np.int32)
    rows, places = [_rows(one) for one in lists], [np.arange(one.capacity) for one in lists]
    for number, order in enumerate(found):
        b, head = divmod(number, heads)
        positions[b, head] = order.order
        of_rows = next(iter(order.visits.values()), [])
        listed = _heads_of(blocks, head, heads, len(of_rows) // 2)
        _arrange(places, rows, b, list(dict.fromkeys(listed)), order.visits)
    arranged = _rearranged(blocks, [torch.from_numpy(place).to(blocks.device) for place in places])
    simple = {0: ASCENDING, 1: DESCENDING}
    ladder = np.arange(lists[0].rows)
    alike = next((simple[i] for i, o in enumerate((ladder, ladder[::-1])) if (positions == o).all()), None)
    order_of_all = alike or permutation(torch.from_numpy(positions).to(blocks.device))
    schedule = replace(order_of_all, pairs=pairs, group_split=group_split, own_first=own_first, reverses=reverses)
    return with_order(arranged, schedule)


class _Choice(NamedTuple):
    """An order with its name and the model time of its launch; reverses: with the last group of concurrent pairs
    reversed."""

    name: str
    order: LaunchOrder
    time: float
    reverses: bool = False


def _best(
    segments: Segments, launch: Launch, costs: Costs, in_order: bool, least: float | None
) -> tuple[list[_Choice], dict[str, float]]:
    """The order with the least time of the launch (of equal ones the first, the simplest), then, where the launch has
    several groups of concurrent pairs, the one with the least time with the last group reversed; and the times of all.
    in_order: rows are visited merged, and in no other order; least: as for `run`."""
    made = orders(segments, max(1, launch.slots // launch.side_by_side), costs, in_order)
    times: dict[str, float] = {}
    known: dict[int, float] = {}
    for name, one in made.items():
        if id(one) not in known:
            known[id(one)] = run(segments, one, launch, costs, least and MARGIN * least).makespan
            least = min(known[id(one)], least or known[id(one)])
        times[name] = known[id(one)]
    best = min(times, key=lambda name: round(times[name], 6))
    if made[best].visit in (by_release, warm_first, as_listed) and not in_order:
        now, name = made[best], best
        for _ in range(ROUNDS):
            now = chosen_again(segments, now, launch, costs, warm_first if best.endswith(WARM) else by_release)
            time = run(segments, now, launch, costs, least).makespan
            if time < times[name] - 1e-6:
                name = best + AGAIN
                made[name], times[name] = now, time
    ranked = sorted(times, key=lambda name: round(times[name], 6))
    choices = [_Choice(ranked[0], made[ranked[0]], times[ranked[0]])]
    if launch.units > launch.side_by_side:
        backwards, least = replace(launch, reverses=True), times[ranked[0]]
        distinct = {id(made[name]): name for name in reversed(ranked)}  # the first name of each order
        turned = [name for name in ranked if distinct[id(made[name])] == name][:TURNED]
        times |= {name + REVERSED: run(segments, made[name], backwards, costs, least).makespan for name in turned}
        best = min(turned, key=lambda name: round(times[name + REVERSED], 6))
        choices.append(_Choice(best + REVERSED, made[best], times[best + REVERSED], True))
    return choices, times


def estimate(
    blocks: BlockSparse,
    schedule: Schedule | str | Tensor,
    *,
    heads_q: int,
    heads_kv: int,
    batch: int = 1,
    dim: int = 128,
    slots: int = SLOTS,
    pairs: int | None = None,
    costs: Costs | None = None,
    packed: bool = True,
) -> Run:
    """The launch's time (NOTE [launch]) under a schedule, visiting rows as the kernel does, where all have the lists of
    the first (sequence, unit). Units are the schedule's, or the launcher's; pairs: None for the schedule's, or
    PAIRS; packed: as for `least_blocking`."""
    if blocks.backward is None:
        raise ValueError("blocks.backward: needs backward lists, got None")
    schedule = schedule_of(schedule)
    pairs = pairs or schedule.pairs or PAIRS
    rows = [_rows(one) for one in (blocks.backward.partial, blocks.backward.full)]
    sizes = Sizes.of(blocks, heads_q, heads_kv, batch, dim, slots, packed)
    sizes = replace(sizes, group_split=schedule.group_split or sizes.group_split)
    several = blocks.backward.partial.heads > 1
    segments = _segments(rows, 0, [g * several for g in range(sizes.heads_of_cta)], blocks.m_blocks)
    order = schedule.launch_order(blocks.backward.rows, "cpu")[0, 0].tolist()
    as_they_are = {n: [np.arange(len(part)) for part in parts] for n, parts in enumerate(segments)}
    chosen = LaunchOrder(order, as_they_are, merged if blocks.merged else as_listed)
    launch = replace(sizes.launch(blocks, pairs, 0), reverses=schedule.reverses)
    return run(segments, chosen, launch, costs or costs_of(dim))


def _rows(blocks: BlockList) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(count, begin, index) on the host."""
    return blocks.count.cpu().numpy(), blocks.begin.cpu().numpy(), blocks.index.cpu().numpy().astype(np.int64)


def _segments(rows, b: int, heads: list[int], m_blocks: int) -> Segments:
    segments: Segments = []
    for n in range(rows[0][0].shape[2]):
        parts = []
        for g, head in enumerate(heads):
            for count, begin, index in rows:
                at = int(begin[b, head, n])
                parts.append(index[at : at + int(count[b, head, n])] + g * m_blocks)
        segments.append(parts)
    return segments


def _arrange(places: list[np.ndarray], rows, b: int, heads: list[int], visits: dict[int, list[np.ndarray]]) -> None:
    """Notes, for each element of the two index tensors, which element comes there."""
    for n, visited in visits.items():
        for g, head in enumerate(heads):
            for kind, (count, begin, _) in enumerate(rows):
                at, size = int(begin[b, head, n]), int(count[b, head, n])
                places[kind][at : at + size] = at + visited[2 * g + kind]


def _rearranged(blocks: BlockSparse, places: list[Tensor]) -> BlockSparse:
    assert blocks.backward is not None
    lists = (blocks.backward.partial, blocks.backward.full)
    turned = BlockLists(*(replace(one, index=one.index[place]) for one, place in zip(lists, places, strict=True)))
    mask = blocks.mask
    if isinstance(mask, Bits) and mask.slot_backward is not None:
        mask = replace(mask, slot_backward=mask.slot_backward[places[0]])
    return replace(blocks, backward=turned, mask=mask, order=None)
