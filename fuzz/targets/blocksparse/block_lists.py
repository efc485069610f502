"""From a Case to the block lists that the block-sparse kernels take: only the token predicate is read of its mask.

The oracle shares nothing with what is made here but the Problem. Lists are laid out as the variant says, and whatever
no entry uses is filled with numbers that a kernel which reads them cannot survive.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from msgspec.structs import replace as with_fields
from torch import Tensor

from fuzz.core.case import Case
from fuzz.targets.blocksparse import two_calls
from fuzz.targets.blocksparse.by_head import by_head, first_blocks, hidden_keys
from fuzz.targets.blocksparse.turned import TURNED, turned
from kernels.blocksparse.lists import bands, from_mask, intervals, linear, ranges
from kernels.blocksparse.lists.builder import Align, dense
from kernels.blocksparse.lists.halves import halve_keys
from kernels.blocksparse.lists.schedule import ALIKE, ASCENDING, DESCENDING, Schedule, permutation
from kernels.blocksparse.lists.types import Bits, BlockList, BlockLists, BlockSparse
from kernels.blocksparse.lists.write_order import with_order
from kernels.blocksparse.planner.planner import least_blocking
from kernels.blocksparse.spec.variant import LARGE_TILES, LARGEST_DIM, PAIR_KEYS, forward_products
from oracles.masks import Causal, Full, Window, kinds, varies_by_batch, varies_by_head
from oracles.problem import AnyProblem, cumulative, dense_mask

MASKS = ("bits", "intervals", "band", "none")
LISTS = ("csr", "padded", "compact")
HALVED = "halved"  # lists over tiles of 128 keys, of which halve_keys makes such over 64
FASTEST = "fastest"  # products of the forward kernel: what the arch has best
SCHEDULES = ("ascending", "descending", "shuffled", "planned")
TILES = (64, 128)
WIDE_TILES = tuple(tile_m for tile_m, _ in LARGE_TILES.values())  # queries of those that forward kernels alone have
PAIRED = (0, PAIR_KEYS)  # keys of the tiles of lists beside others, for a backward kernel of pairs of CTAs; 0: none
SOURCES = ("builder", "ranges", "linear")  # of lists for intervals: bounds, ranges, or LinearBlockSparse tuples
UNUSED = 0x3FFFFFF  # a block number, slot or rank that nothing has
Options: TypeAlias = tuple[tuple[str, str | int | bool], ...]
_ROWS = frozenset({"full", "causal", "window", "prefix", "documents", "intervals", "per_head", "per_batch"})


def default_variant() -> dict[str, str | int | bool]:
    """Every option of the target with its default; a Case's variant names those that differ."""
    return {
        "tile_m": 128,
        "tile_n": 128,
        "mask": "bits",
        "lists": "csr",
        "schedule": "ascending",
        "deterministic": True,
        "products": FASTEST,
        "wide": 0,
        "paired": 0,
        "nested": False,
    }


def options_of(case: Case) -> dict[str, str | int | bool]:
    """Every option of a case. Where its variant does not say it, tile_n is 64 for gradients of dims that need that."""
    p = case.problem
    smaller = {"tile_n": 64} if p.backward and p.dim > LARGEST_DIM[128] else {}
    return default_variant() | smaller | case.variant


def source_of(case: Case) -> str:
    """The source of its lists; the builder where the variant does not say it."""
    return str(case.variant.get("source", "builder"))


def products_of(case: Case, arch: str) -> str:
    """The products of its forward kernel, where kernels are compiled for `arch`."""
    options = options_of(case)
    named = str(options["products"])
    return forward_products(arch, int(options["tile_m"])) if named == FASTEST else named


MASKS_OF: dict[str, frozenset[str]] = {
    "band": frozenset({"full", "causal", "window"}),
    "intervals": _ROWS,
    "none": frozenset({"full"}),
}
"""The kinds of masks that partial blocks can be masked by, where these are not all."""


def expressible(problem: AnyProblem, mask: str) -> bool:
    """True if partial blocks of this problem can be masked that way: bits always; a band where the mask is one;
    intervals where every row has few of them; none where there are no partial blocks, as every key is seen."""
    if mask == "none":
        return isinstance(problem.mask, Full)
    if mask == "band":
        return isinstance(problem.mask, Full | Causal | Window) or bool(hidden_keys(problem.mask))
    return mask == "bits" or kinds(problem.mask) <= _ROWS


def blocks_of(case: Case) -> BlockSparse:
    """Block lists of a case on the CPU, both directions, with the ranks of its schedule; made once for all who ask
    for them, and not to be changed in place. Those of all keys, whether or not they are in two calls."""
    return _made(*_key(case))


def calls_on(case: Case, device: torch.device) -> tuple[BlockSparse, ...]:
    """Block lists of each of the case's calls on `device`, one or two: the same objects for all runs of a case, so that
    their contents are checked once."""
    parities = (0, 1) if two_calls.splits(case) else (None,)
    return tuple(_moved(*_key(case), parity, device) for parity in parities)


def _key(case: Case) -> tuple[AnyProblem, Options, int]:
    """What decides the lists of a case: a follow-up case that only changes numbers has those of its source."""
    options = options_of(case)
    p = with_fields(case.problem, dim=8, dim_v=8, dtype="float16", layout="padded", scale=None, softcap=0.0, bias=None)
    names = ("tile_m", "tile_n", "mask", "lists", "schedule", "wide", "paired", "nested")
    named = (*((name, options[name]) for name in names), ("source", source_of(case)))
    seed = {"shuffled": case.inputs.seed, "planned": int(reverses(case))}.get(str(options["schedule"]), 0)
    return p, named, seed


def reverses(case: Case) -> bool:
    """True for 'planned' cases whose inputs have an odd seed. Their launches have one concurrent (sequence, unit) pair,
    and a last group that is reversed, whatever the planner's model says. Launches of other small cases have one group,
    which is not reversed."""
    return options_of(case)["schedule"] == "planned" and case.inputs.seed % 2 == 1


@functools.lru_cache(maxsize=8)
def _made(p: AnyProblem, named: Options, seed: int, parity: int | None = None) -> BlockSparse:
    options = dict(named)
    halved, schedule = options["lists"] == HALVED, _schedule(p, options, seed)
    tiles: dict[str, Any] = {
        "tile_m": int(options["tile_m"]),
        "tile_n": int(options["tile_n"]) * (2 if halved else 1),
        "schedule": ASCENDING if halved else schedule,
        "backward": p.backward,
    }
    made = _built(p, options, tiles)
    if halved:
        made = halve_keys(made, p.lengths_k)
        made = with_order(made, schedule) if p.backward else replace(made, schedule=schedule)
    if options["schedule"] == TURNED and p.backward:
        made = turned(made)
    if options["wide"]:
        sizes = {"tile_m": int(options["wide"]), "tile_n": int(options["tile_n"]), "backward": False}
        made = replace(made, wide=_built(p, options, sizes))
    if parity is not None:
        made = two_calls.keys_of_parity(made, parity)
    made = _planned(p, options, made, seed)
    if options["paired"]:
        made = replace(made, paired=_planned(p, options, _paired(p, options, seed), seed))
    return laid_out(made, str(options["lists"]))


def _paired(p: AnyProblem, options: Mapping[str, str | int | bool], seed: int) -> BlockSparse:
    """Lists for pairs of CTAs, with a schedule of their own tiles."""
    tile_n = int(options["paired"])
    schedule = _schedule(p, {**options, "tile_n": tile_n}, seed)
    return _built(p, options, {"tile_m": 128, "tile_n": tile_n, "schedule": schedule, "backward": True})


def _planned(p: AnyProblem, options: Mapping[str, str | int | bool], made: BlockSparse, seed: int) -> BlockSparse:
    """The lists with the schedule that the planner computes from them, where that is asked for. seed: 1 where the case
    `reverses`."""
    if options["schedule"] != "planned" or not p.backward:
        return made
    sizes: dict[str, Any] = {"heads_q": p.heads_q, "heads_kv": p.heads_kv, "batch": p.batch}
    plan = least_blocking(made, **sizes, packed=p.layout == "packed", pairs=1 if seed else None)
    return replace(plan.blocks, schedule=replace(plan.blocks.schedule, reverses=True)) if seed else plan.blocks


def _built(p: AnyProblem, options: Mapping[str, str | int | bool], tiles: dict[str, Any]) -> BlockSparse:
    """Lists of these tiles by the builder of the mask's kind. tiles: sizes, directions and schedule."""
    if options["mask"] == "none":
        return dense(p.lengths_q, p.lengths_k, device="cpu", **tiles)
    if options["mask"] == "band":
        return band_of(p, bool(options["nested"]), **tiles)
    if options["mask"] == "intervals":
        return _from_intervals(p, str(options["source"]), **tiles)
    return _from_tokens(p, str(options["lists"]), **tiles)


def band_of(p: AnyProblem, nested: bool, **tiles: Any) -> BlockSparse:
    """Lists of a causal mask or a window. nested: they say that their rows are nested, however few they are."""
    left, right, align = sides_of_band(p)
    sides: dict[str, Any] = {"left": left, "right": right, "align": align, "nested": nested or None}
    made = bands.band(p.lengths_q, p.lengths_k, device="cpu", **sides, **tiles)
    first = first_blocks(p, made.tile_n)
    return by_head(made, first, -(-p.len_k // made.tile_n)) if first else made


def as_ranges(p: AnyProblem) -> bool:
    """True if ranges can say the mask: all sequences and heads are alike."""
    return not (p.ragged or varies_by_batch(p.mask) or varies_by_head(p.mask))


def _from_intervals(p: AnyProblem, source: str, **tiles: Any) -> BlockSparse:
    """Lists and bounds from the runs of each query's keys; by way of ranges, or of LinearBlockSparse tuples, which
    carry the ranks of a schedule that is no permutation."""
    bounds = runs(dense_mask(p))
    if source == "ranges":
        bounds = ranges.range_bounds(*ranges.bounds_ranges(bounds), p.len_q, p.len_k)
    made = intervals.intervals(bounds, p.lengths_q, p.lengths_k, **tiles)
    if source == "linear":
        sizes = made.tile_m, made.tile_n
        back = linear.from_linear(*linear.to_linear(made), made.mask, p.lengths_q, p.lengths_k, tiles=sizes)
        made = replace(back, schedule=made.schedule)
        if made.backward is not None and made.order is None:
            made = with_order(made)
    return made


def _from_tokens(p: AnyProblem, layout: str, **tiles: Any) -> BlockSparse:
    """Lists and bits from the token predicate: as a tensor, or where they are to be padded as a function, which is the
    other way that their builder has to take it."""
    kept = dense_mask(p)
    if layout != "padded":
        return from_mask.from_mask(kept, p.lengths_q, p.lengths_k, **tiles)
    batch, heads = kept.shape[:2]
    return from_mask.from_predicate(
        lambda b, h, q, k: kept[b, h][q, k], p.lengths_q, p.lengths_k, heads=heads, batch=batch, **tiles
    )


@functools.lru_cache(maxsize=4)
def _moved(p: AnyProblem, named: Options, seed: int, parity: int | None, device: torch.device) -> BlockSparse:
    return _made(p, named, seed, parity).to(device)


@functools.lru_cache(maxsize=1)
def lengths_on(p: AnyProblem, device: torch.device) -> dict[str, Tensor]:
    """Lengths as tensors, the same ones for all repeats of a case: with others its lists would be checked again."""
    given: dict[str, tuple[int, ...]] = {}
    if p.layout == "packed":
        given = {"cu_seqlens_q": cumulative(p.lengths_q), "cu_seqlens_k": cumulative(p.lengths_k)}
    elif p.ragged:
        given = {"lengths_q": p.lengths_q, "lengths_k": p.lengths_k}
    return {name: torch.tensor(x, dtype=torch.int32, device=device) for name, x in given.items()}


def keys_without_lengths(p: AnyProblem) -> int | None:
    """Keys of every sequence where `lengths_on` gives no lengths, else None."""
    return None if p.layout == "packed" or p.ragged else p.len_k


def schedule_of(case: Case, *, paired: bool = False) -> Schedule:
    """The variant's schedule; paired: the one of its lists for pairs of CTAs. 'shuffled' is a permutation from the
    inputs' seed, per sequence and KV head where those have lists of their own, and not its own inverse where there are
    three blocks or more, so that who mistakes one for the other shows; 'planned' is ascending until `least_blocking`
    has computed one from the lists; with a last group that is reversed where the case `reverses`."""
    options = options_of(case)
    return _schedule(case.problem, options | {"tile_n": options["paired"]} if paired else options, case.inputs.seed)


def _schedule(p: AnyProblem, options: Mapping[str, str | int | bool], seed: int) -> Schedule:
    if options["schedule"] != "shuffled":
        ascending = ALIKE if options["mask"] == "none" else ASCENDING
        return DESCENDING if options["schedule"] == "descending" else ascending
    n_blocks = -(-p.len_k // int(options["tile_n"]))
    draw = torch.Generator().manual_seed(seed)
    # An order has an axis only where the lists have it.
    batch = p.batch if p.ragged or varies_by_batch(p.mask) else 1
    heads = p.heads_kv if varies_by_head(p.mask) else 1
    orders = [_one_way(n_blocks, draw) for _ in range(batch * heads)]
    return permutation(torch.stack(orders).view(batch, heads, n_blocks).to(torch.int32))


def _one_way(n_blocks: int, draw: torch.Generator) -> Tensor:
    """A random permutation; of three blocks and more one that is not its own inverse."""
    while True:
        order = torch.randperm(n_blocks, generator=draw)
        if n_blocks < 3 or not torch.equal(order[order], torch.arange(n_blocks)):
            return order


def runs(mask: Tensor) -> Tensor:
    """The `Intervals` encoding of a token mask (batch|1, heads|1, len_q, len_k): int32 (batch|1, heads|1, n_func,
    len_q), n_func as small as the row with most runs allows."""
    batch, heads, len_q, _ = mask.shape
    edge = mask.new_zeros((batch, heads, len_q, 1))
    before, after = torch.cat((edge, mask), -1), torch.cat((mask, edge), -1)
    where_start, where_stop = ((after & ~before), (before & ~after))
    number = where_start.sum(-1)
    most = max(int(number.max()) if number.numel() else 0, 1)
    start, stop = (_positions(where, most) for where in (where_start, where_stop))
    first = (start[..., 0] == 0) & (stop[..., 0] > 0)  # a run from key 0 may stand in F[0]
    bounds = torch.zeros((batch, heads, 2 * most + 1, len_q), dtype=torch.int32, device=mask.device)
    bounds[:, :, 0] = torch.where(first, stop[..., 0], 0)
    for run in range(most):
        mine = ~first if run == 0 else torch.ones_like(first)
        bounds[:, :, 2 * run + 1] = torch.where(mine, start[..., run], 0)
        bounds[:, :, 2 * run + 2] = torch.where(mine, stop[..., run], 0)
    return bounds


def laid_out(blocks: BlockSparse, layout: str) -> BlockSparse:
    """The blocks with their lists laid out in CSR, padded to the whole grid, or to the longest row (compact); what
    runs parallel to an index tensor (slots, ranks) moves with it. Compact ones have no LPT orders, as lists that no
    builder of the kernels' own has made."""
    if layout in ("csr", HALVED):
        return blocks
    forward, backward, mask, order = blocks.forward, blocks.backward, blocks.mask, blocks.order
    rows = blocks.m_blocks
    columns = backward.partial.rows if backward is not None else _largest(forward) + 1
    if isinstance(mask, Bits):
        mask = replace(mask, slot=_parallel(forward.partial, mask.slot, layout, columns))
        if backward is not None:
            assert mask.slot_backward is not None
            mask = replace(mask, slot_backward=_parallel(backward.partial, mask.slot_backward, layout, rows))
    if backward is not None and order is not None:
        order = replace(
            order,
            partial=_parallel(backward.partial, order.partial, layout, rows),
            full=_parallel(backward.full, order.full, layout, rows),
        )
    if backward is not None:
        backward = BlockLists(*(_padded(one, layout, rows) for one in (backward.partial, backward.full)))
    laid = (_padded(one, layout, columns) for one in (forward.partial, forward.full))
    forward = BlockLists(*laid, alike=forward.alike, nested=forward.nested)
    lpt = None if layout == "compact" else blocks.lpt
    wide, paired = (None if other is None else laid_out(other, layout) for other in (blocks.wide, blocks.paired))
    return replace(
        blocks, forward=forward, backward=backward, mask=mask, order=order, lpt=lpt, wide=wide, paired=paired
    )


def sides_of_band(problem: AnyProblem) -> tuple[int | None, int | None, Align]:
    """(left, right, align) of a causal mask or a window, as `bands.band` takes them."""
    match problem.mask:
        case Causal(align):
            return None, 0, align
        case Window(left, right, align):
            return left, right, align
        case mask if hidden_keys(mask):
            return None, 0, "bottom_right"
    return None, None, "top_left"


def _positions(where: Tensor, most: int) -> Tensor:
    """Position of the n-th True of each row, (..., most); 0 where there is none."""
    at = where.nonzero()
    found = torch.zeros((*where.shape[:-1], most), dtype=torch.int32, device=where.device)
    which = (where.cumsum(-1) - 1)[where]
    found[at[:, 0], at[:, 1], at[:, 2], which] = at[:, 3].to(torch.int32)
    return found


def _width(one: BlockList, layout: str, columns: int) -> int:
    longest = int(one.count.max()) if one.count.numel() else 0
    return max(columns if layout == "padded" else longest, 1)


def _padded(one: BlockList, layout: str, columns: int) -> BlockList:
    count, index = one.to_padded(_width(one, layout, columns), UNUSED)
    return BlockList.padded(count, index)


def _parallel(one: BlockList, beside: Tensor, layout: str, columns: int) -> Tensor:
    """A tensor parallel to `one.index`, laid out as `_padded` lays out the index."""
    _, laid = BlockList(one.count, beside, one.begin).to_padded(_width(one, layout, columns), UNUSED)
    flat = laid.reshape(-1)
    return flat if flat.numel() else flat.new_zeros(1)


def _largest(lists: BlockLists) -> int:
    """The largest block number in forward lists."""
    tops = [one.to_padded(_width(one, "compact", 0), -1)[1] for one in (lists.partial, lists.full)]
    return max([int(top.max()) for top in tops if top.numel()], default=0)
