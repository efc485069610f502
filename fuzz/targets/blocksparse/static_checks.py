"""What can be said of a block-sparse case without running it: its lists as the oracles take them, its ordered adds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuzz.core.case import Case
from fuzz.targets.blocksparse.block_lists import HALVED, band_of, options_of, sides_of_band
from fuzz.targets.blocksparse.turned import TURNED
from kernels.blocksparse.lists.types import BlockSparse, SequenceOrder
from kernels.blocksparse.spec.variant import PAIR_KEYS
from oracles import block_lists, dq_visits
from oracles.problem import AnyProblem


def shapes_of(case: Case) -> tuple[Tensor, BlockSparse, dict[str, str | int | bool]]:
    """q without storage, block lists without lists, but the forward ones of a full mask and of a band: what the
    kernels' own functions choose variants by."""
    from kernels.blocksparse.lists.builder import dense
    from kernels.blocksparse.lists.schedule import ALIKE, ASCENDING
    from kernels.blocksparse.lists.types import OPEN, Band, Bits, BlockLists, Intervals

    p, options = case.problem, options_of(case)
    none: Any = None
    left, right, _ = sides_of_band(p)
    band = Band(OPEN if left is None else left, OPEN if right is None else right, none)
    masks: dict[str, Any] = {"bits": Bits(none, none), "intervals": Intervals(none), "band": band}
    mask = masks.get(str(options["mask"]))
    alike = options["mask"] == "none" and options["schedule"] in ("ascending", TURNED)
    schedule = ALIKE if alike else ASCENDING
    rows = (1,) if p.layout == "packed" else (1, 1)
    q = torch.empty((*rows, 1, p.dim), dtype=p.torch_dtype, device="meta")
    tile_m, tile_n, wide = (int(options[name]) for name in ("tile_m", "tile_n", "wide"))

    def forward(rows: int) -> Any:
        """Forward lists of tiles of so many queries, where they are said."""
        tiles: dict[str, Any] = {"tile_m": rows, "tile_n": tile_n, "backward": False}
        if options["mask"] == "band":
            return band_of(p, bool(options["nested"]), **tiles).forward
        if options["mask"] == "none":
            return dense(p.lengths_q, p.lengths_k, device="cpu", **tiles).forward
        return none

    beside = BlockSparse(forward(wide), none, mask, wide, tile_n, schedule) if wide else None
    keys = int(options["paired"])
    paired = BlockSparse(none, none, mask, 128, keys, schedule) if keys else None
    backward = BlockLists(none, none, halves=True) if keeps_halves(options) else none
    return (
        q,
        BlockSparse(forward(tile_m), backward, mask, tile_m, tile_n, schedule, wide=beside, paired=paired),
        options,
    )


def keeps_halves(options: dict[str, str | int | bool]) -> bool:
    """True for lists that say that rows are the halves of tiles, launched one after the other: a mask of bits is cut
    with its blocks, a permutation is one of halves."""
    return (
        options["lists"] == HALVED and options["mask"] != "bits" and options["schedule"] in ("ascending", "descending")
    )


def as_metadata(blocks: BlockSparse) -> block_lists.CheckedLists:
    from kernels.blocksparse.lists.types import Band, Bits, Intervals

    def lists(of) -> tuple[block_lists.BlockList, block_lists.BlockList]:
        return tuple(block_lists.BlockList(one.count, one.index, one.begin) for one in (of.partial, of.full))  # type: ignore

    mask, order, backward = blocks.mask, blocks.order, blocks.backward
    return block_lists.CheckedLists(
        blocks.tile_m,
        blocks.tile_n,
        lists(blocks.forward),
        None if backward is None else lists(backward),
        words=mask.words if isinstance(mask, Bits) else None,
        slot=mask.slot if isinstance(mask, Bits) else None,
        slot_backward=mask.slot_backward if isinstance(mask, Bits) else None,
        bounds=mask.bounds if isinstance(mask, Intervals) else None,
        band=(mask.left, mask.right, mask.offset) if isinstance(mask, Band) else None,
        ranks=None if order is None else (order.partial, order.full),
        launch_order=None if backward is None else blocks.schedule.launch_order(backward.rows, "cpu"),
    )


def visits_of(case: Case, blocks: BlockSparse, mutant: str) -> dq_visits.Visits | None:
    """The order in which the backward kernel's CTAs wait for and release semaphores, predicted from lists on the CPU. A
    pair of CTAs is one visitor. None where a mutant's protocol cannot be predicted."""
    from kernels.blocksparse.launch.by_length import order_of_keys
    from kernels.blocksparse.launch.concurrency import concurrent_pairs, group_split_of, last_group, reverses_last_group

    p = case.problem
    lists, schedule, merged, launched = blocks.backward, blocks.schedule, blocks.merged, blocks
    assert lists is not None
    if mutant:
        from kernels.mutants.blocksparse.table import MUTANTS as mutants
        from kernels.mutants.blocksparse.table import effective

        known = effective(mutant, blocks)
        if known is None or (blocks.tile_n == PAIR_KEYS and mutants[mutant].protocol is not None):
            return None  # a mutant's protocol is said for CTAs that wait for one value each
        order, releases = known
        changed = mutants[mutant].blocks(blocks)
        assert changed.backward is not None
        lists, schedule, merged, launched = changed.backward, changed.schedule, changed.merged, changed
    else:
        assert blocks.order is not None
        order, releases = blocks.order, None
    q, k = (_operand(p, *of) for of in ((p.heads_q, p.lengths_q), (p.heads_kv, p.lengths_k)))
    group_split = group_split_of(launched, p.batch, q, k, True)
    partial, full = lists.partial, lists.full
    pairs = concurrent_pairs(q, k, launched, True, group_split)
    by_length = order_of_keys(k, launched)
    reverses = reverses_last_group(launched) and by_length is None
    if reverses and mutant and "lock_of" in mutants[mutant].injection.backward.replacements:
        return None  # what such a mutant waits for does not count from the other end
    forward = launched.forward
    return dq_visits.launch_visits(
        (partial.count, partial.index, partial.begin),
        (full.count, full.index, full.begin),
        (order.partial, order.full),
        schedule.launch_order(lists.rows, "cpu"),
        batch=p.batch,
        heads_q=p.heads_q,
        heads_kv=p.heads_kv,
        m_blocks=blocks.m_blocks,
        concurrent_pairs=pairs,
        group_split=group_split,
        keys=p.lengths_k,
        tile_n=blocks.tile_n,
        releases=releases,
        merged=merged,
        reversed_from=last_group(pairs, p.batch * p.heads_kv * group_split) if reverses else None,
        contributors=forward.partial.count + forward.full.count,
        sequence_tiles=None if by_length is None else _tiles_of(by_length),
    )


def _tiles_of(order: SequenceOrder) -> list[tuple[int, int]]:
    """(sequence, its tiles), in order."""
    return list(zip(order.sequence.tolist(), order.start.diff().tolist(), strict=True))


def _operand(problem: AnyProblem, heads: int, lengths: tuple[int, ...]) -> Tensor:
    """An operand as the launcher takes it, without storage."""
    rows = (sum(lengths),) if problem.layout == "packed" else (problem.batch, max(lengths, default=0))
    return torch.empty((*rows, heads, problem.dim), dtype=problem.torch_dtype, device="meta")
