"""Kernels of blocksparse that are mutated, and the cases that look for what is wrong with them.

A configuration is a choice of dtype, head dims, softcap, tiles, mask and determinism that gives one forward,
preprocess, backward and postprocess kernel each. Its cases are drawn as a session draws them (fuzz/generate/cases.py),
from the emulated target narrowed to the configuration; they carry the plain target's name and can be replayed with it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, product, zip_longest
from typing import Any

from msgspec.structs import replace as with_fields

from fuzz.compiling import Build, obtain
from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.refusal import refusal
from fuzz.generate import cases as strategies
from fuzz.generate.more_sequences import with_more_sequences
from fuzz.score.ptx_mutants.survey import Kernel, Survey
from fuzz.session.draw import explore
from fuzz.session.plan import SHARD_CASES, Shard
from fuzz.targets.blocksparse.block_lists import LISTS, SCHEDULES
from fuzz.targets.blocksparse.by_head import causal_by_head
from fuzz.targets.blocksparse.devices import arch_without_gpu
from fuzz.targets.blocksparse.emulated import EmulatedBlockSparse
from fuzz.targets.blocksparse.turned import TURNED
from fuzz.targets.blocksparse.variants import has_pairs_of_tiles
from kernels.blocksparse.launch.forward import EMULATED, MANY_TILES
from kernels.blocksparse.launch.split_tiles import FREE, split_of
from kernels.blocksparse.planner.group_split import choose_group_split
from oracles.masks import Causal, Full, Intervals, Mask, PerHead, Window
from oracles.problem import AnyProblem, Dtype, Problem

REPEATS = 2  # of every case: once as its variant says, once with warps and dispatch at random
_SIZE = Size(1 << 15, 8, 4096, 1 << 18)  # three tiles of 64 on a side, or very many queries of a few keys
_LARGE = Size(1 << 19, 4, 4096, 1 << 19)  # with room for RUN queries of several heads; of others, _MOST_PAIRS
_MOST_PAIRS = 1 << 17  # three tiles of 128 on a side
_SHARDS = {False: 15, True: 60}  # by whether they are of wgmma: of SHARD_CASES cases, to choose among
_SPLIT_SHARDS = 120  # for kernels that may split tiles, as few cases split some
RUN = 640 + 127  # queries among which five whole tiles of 128 lie, for steps of 80
_ORDERS = (1, 2, 3)  # seeds of the orders of CTAs and warps, for what depends on them
_MOST_INTERVALS = 5  # of a row
_LONG = 35  # entries of a list of blocks that the kernels' pipelines do not hold at once
_MANY = 4  # blocks of keys, which the kernels' loops have steps between the first and the last ones for
# Keys of a window that whole tiles of queries see between others that see them in part; and more than NARROW ones of
# launch/backward_tuning.py
_WIDE = 9 * 128 + 16
# Entries in four windows of 32, which Hopper's backward kernels hold two of. Of an odd number of tiles the last one is
# half of a pair, and of so many there is an odd number of pairs.
_WINDOWS = 97


@dataclass(frozen=True)
class Config:
    """One set of four kernels: problems of `dtype` and head dims `dims` (least, most), with or without a softcap."""

    name: str
    dtype: Dtype
    dims: tuple[int, int]
    softcap: bool
    tile_m: int
    tile_n: int
    mask: str
    deterministic: bool
    products: str = ""  # "": those that the kernels have by themselves, by mma.sync
    nested: bool = False  # its lists promise nested rows

    @property
    def target(self) -> str:
        """The target's name, with the products where they are named."""
        return "blocksparse" + f".{self.products}" * bool(self.products)

    @property
    def options(self) -> dict[str, str | int | bool]:
        """Options as a case's variant has them."""
        names = ("tile_m", "tile_n", "mask", "deterministic") + ("products",) * bool(self.products)
        names += ("nested",) * self.nested
        return {name: getattr(self, name) for name in names}

    @property
    def full(self) -> bool:
        """True if its kernels are those of a full mask."""
        return self.mask == "none"

    @property
    def splits(self) -> bool:
        """True if its kernels of both passes may split tiles, as those of a full mask do with atomic adds."""
        return self.full and not self.deterministic

    @property
    def splits_forward(self) -> bool:
        """True if the forward kernel alone may split tiles, as that of a full mask does with ordered adds. The backward
        one takes whole blocks of keys."""
        return self.full and self.deterministic

    def cases(self, count: int, seed: int) -> list[Case]:
        """See KernelConfig and `cases_of`."""
        return cases_of(self, count, seed)

    def kernels(self, survey: Survey) -> dict[str, Kernel]:
        """See KernelConfig: one kernel of each kind, of any survey. Raises CompileError."""
        return {kind: Kernel(build.key, _text(build)) for kind, build in builds_of(self).items()}


CONFIGS = (
    Config("bf16_d32_bits_ordered", "bfloat16", (8, 32), False, 64, 64, "bits", True),
    Config("fp16_d64_band_atomic", "float16", (40, 64), False, 64, 128, "band", False),
    Config("bf16_d64_intervals_ordered", "bfloat16", (40, 64), False, 128, 64, "intervals", True),
    Config("fp16_d32_bits_cap_atomic", "float16", (8, 32), True, 64, 64, "bits", False),
    Config("fp16_d96_bits_ordered", "float16", (72, 96), False, 64, 64, "bits", True),
)
# Hopper's, at head dims that need all columns of tiles (`depth_of`): forward kernels with persistent CTAs and loads
# by TMA; backward kernels with dQ transposed, those of ordered adds, and those with runs of 80 queries (full blocks
# without a softcap, at head dim 128). Those of a full mask run forward in clusters, and split tiles in both passes:
# NOTE [split tiles] of common/split_tiles.py; ordered adds have a semaphore for each step of 80 there: NOTE [ordered
# runs] of backward/transposed/runs_dq_warps.py. Those of nested rows run forward in clusters: NOTE [nested rows] of
# forward/tile_scheduler.py.
WGMMA = (
    Config("bf16_d64_bits_ordered_wgmma", "bfloat16", (56, 64), False, 128, 128, "bits", True, "wgmma"),
    Config("fp16_d128_band_atomic_wgmma", "float16", (120, 128), False, 128, 128, "band", False, "wgmma"),
    Config("bf16_d128_bits_cap_atomic_wgmma", "bfloat16", (120, 128), True, 128, 64, "bits", False, "wgmma"),
    Config("bf16_d128_intervals_ordered_wgmma", "bfloat16", (120, 128), False, 128, 128, "intervals", True, "wgmma"),
    Config("fp16_d64_intervals_atomic_wgmma", "float16", (56, 64), False, 64, 128, "intervals", False, "wgmma"),
    Config("bf16_d128_full_atomic_wgmma", "bfloat16", (120, 128), False, 128, 128, "none", False, "wgmma"),
    Config("fp16_d128_full_ordered_wgmma", "float16", (120, 128), False, 128, 128, "none", True, "wgmma"),
    Config(
        "bf16_d128_nested_ordered_wgmma", "bfloat16", (120, 128), False, 128, 128, "band", True, "wgmma", nested=True
    ),
)


class _Narrowed(EmulatedBlockSparse):
    """The emulated target, for the cases of one configuration only."""

    def __init__(self, chosen: Config) -> None:
        super().__init__()
        self._config = chosen
        self.session_size = _LARGE if chosen.products else _SIZE
        self.support = replace(self.support, dtypes=(chosen.dtype,), dim=(*chosen.dims, 8), softcap=chosen.softcap)
        if chosen.full:
            self.support = replace(self.support, layouts=("padded",), ragged=False, masks=frozenset({"full"}))
        if chosen.nested:
            self.support = replace(self.support, layouts=("padded",), ragged=False, masks=frozenset({"causal", "full"}))

    def draw_cta_subset(self, draw: random.Random, repeats: int) -> None:
        """None: their kernels are not the configuration's."""

    def native_masks(self, dtype: Dtype, dim: int) -> tuple[str, ...]:
        """See Target."""
        if self._config.nested:
            return ("causal",)
        return ("full",) if self._config.full else super().native_masks(dtype, dim)

    def variants_for(self, problem: AnyProblem) -> tuple[dict[str, Any], ...]:
        """The configuration's kernels, with everything that costs no compile. Those of a full mask have one order."""
        orders = ("in_order", "random", "starve_oldest", "one_first")
        schedules = ("ascending",) if self._config.full else SCHEDULES
        return tuple(
            self._config.options
            | {
                "lists": lists,
                "schedule": schedule,
                "slots": slots,
                "warps": orders[(i + j) % 4],
                "seed": 7 * i + slots,
            }
            for i, (lists, schedule) in enumerate(product(LISTS, schedules))
            for j, slots in enumerate((1, 2, 3, 8))
        )


def cases_of(chosen: Config, count: int, seed: int) -> list[Case]:
    """`count` different cases of the configuration, by turns of each `size`, as far as there are some among what a
    session of that seed draws and that the configuration's kernels compute; of kernels by wgmma also of those of
    `made`. Of kernels that may split tiles by turns of `_by_passes`, some with fewer heads than were drawn; where the
    forward one alone may, some without the backward pass that was drawn. Fewer begin with the same cases."""
    target = _Narrowed(chosen)
    keys = {build.key for build in builds_of(chosen).values()}
    found: dict[str, Case] = {}

    def keep(case: Case) -> None:
        if chosen.splits and not any(split_passes(chosen, case.problem)):
            if case.problem.batch > 1 or case.problem.heads_q % 2 == 0:
                keep(_with_odd_heads(case))
            return
        if refusal(target, case) is None and bool(case.problem.softcap) == chosen.softcap:
            builds = target.builds(case, arch_without_gpu("emulator"))
            if all(build.key in keys for build in first_of_kinds(builds).values()):
                found.setdefault(case.id, case)
            elif case.problem.backward and size(chosen, case.problem) >= 8:
                keep(with_fields(case, problem=with_fields(case.problem, backward=False)))

    drawn = strategies.drawer(target, strategies.LARGE if chosen.products else strategies.SMALL, REPEATS)
    if chosen.products:
        drawn = with_more_sequences(target, drawn)
    for shard in range(_SPLIT_SHARDS if chosen.splits else _SHARDS[bool(chosen.products)]):
        explore(Shard(chosen.name, shard, SHARD_CASES, 1000 * seed + shard), drawn, keep)
    if chosen.splits:
        return list(islice(_by_turns(*_by_passes(chosen, found.values()), made(chosen)), count))
    by_size: list[list[Case]] = [[] for _ in range(11)]
    if chosen.products:
        by_size += [made(chosen)[::2], made(chosen)[1::2]]  # two a turn, so that all of them are among LISTS
    for case in found.values():
        number = size(chosen, case.problem)
        if number >= 5 or case.problem.pairs <= _MOST_PAIRS:
            by_size[number].append(case)
    return list(islice(_by_turns(*by_size), count))


def _by_turns(*lists: list[Case]) -> Iterator[Case]:
    return (case for turn in zip_longest(*lists) for case in turn if case is not None)


def _by_passes(chosen: Config, cases: Iterable[Case]) -> list[list[Case]]:
    """Cases whose tiles are split in both passes, in the forward one, in the backward one; of each those whose keys end
    with a block, those of _MANY blocks of keys or more, and the others."""
    passes = ((True, True), (True, False), (False, True))
    found: dict[tuple[tuple[bool, bool], int], list[Case]] = {at: [] for at in product(passes, range(3))}
    for case in cases:
        keys = case.problem.len_k
        kind = 0 if keys % chosen.tile_n == 0 else 1 if keys > (_MANY - 1) * chosen.tile_n else 2
        found[split_passes(chosen, case.problem), kind].append(case)
    return list(found.values())


def size(chosen: Config, problem: AnyProblem) -> int:
    """0: at most one tile in every sequence, 1: two or three, 2: more, 3: a block of keys with a long list of tiles,
    4: a shorter one, in parts that share a KV head (NOTE [group split] of group_split.py). Of kernels by wgmma, 5: a
    block of 128 keys that RUN queries see whole, 6: two or more that a tile of queries sees whole, and no key beyond
    the last whole block, 7: three packed sequences or more, whose tiles are launched by an order of them, if lists have
    one (NOTE [sequences by length] of lists/lpt.py). Where the forward kernel alone may split tiles, 8: it does, and
    keys end within a block, 9: and there are _MANY blocks of keys or more, 10: as many, and keys end with a block."""
    if chosen.splits_forward and split_passes(chosen, problem)[0]:
        long, cut = problem.len_k > (_MANY - 1) * chosen.tile_n, problem.len_k % chosen.tile_n > 0
        if long or cut:
            return 8 + long if cut else 10
    sizes = list(zip(problem.lengths_q, problem.lengths_k, strict=True))
    if chosen.products and any(_see_whole(problem, *one) >= RUN for one in sizes):
        return 5
    if chosen.products and any(_sees_blocks(problem, *one) >= 2 for one in sizes):
        return 6
    if chosen.products and problem.layout == "packed" and problem.batch >= 3 and _by_length(chosen, problem):
        return 7
    found = 0
    for len_q, len_k in zip(problem.lengths_q, problem.lengths_k, strict=True):
        rows, columns = -(-len_q // chosen.tile_m), -(-len_k // chosen.tile_n)
        many = sum(rows * columns >= least for least in (2, 4))
        found = max(found, 3 if columns and problem.group * rows >= _LONG else many)
    return 4 if found < 3 and _parts(chosen, problem) > 1 else found


def made(chosen: Config) -> list[Case]:
    """Cases for kernels by wgmma of problems that no session without a GPU draws, or few."""
    if chosen.splits:
        return [_with_windows(chosen), _with_low_scores(chosen)]
    if chosen.full:
        return [
            _with_windows(chosen, keys=2 * chosen.tile_n),
            _with_turned_rows(chosen),
            _with_turned_rows(chosen, tiles=4, heads=5),
            *(_with_runs(chosen, seed) for seed in _ORDERS),
        ]
    if chosen.nested:
        return [_with_windows(chosen), _with_low_scores(chosen), _with_orders(chosen), _with_lists_of_heads(chosen)]
    alike = [_with_windows(chosen), _with_wide_window(chosen), _with_short_sequences(chosen), _with_few_tiles(chosen)]
    alike += [_with_low_scores(chosen)] * (not chosen.softcap)
    if chosen.mask == "band":  # narrow windows have another backward kernel
        return [*alike, _with_lists_of_heads(chosen)]
    alike += [_with_many_intervals(chosen)] * (chosen.mask == "intervals") + [_with_partial_blocks(chosen)]
    return [*alike, *(_with_empty_sequence(chosen, seed) for seed in _ORDERS)]


def _with_windows(chosen: Config, keys: int | None = None) -> Case:
    """A case with more windows of entries than a backward kernel by wgmma holds, of so many keys or of few."""
    return _of_few_keys(chosen, (_WINDOWS * chosen.tile_m - 3,), Full(), keys=keys)


def _with_runs(chosen: Config, seed: int) -> Case:
    """A case of a full mask with runs of tiles of queries, whole tiles and one that is cut off behind them, and more
    tiles of keys than there are CTAs, of heads that share a KV head. Of every second seed the head dim is that which
    kernels are compiled for: what products of the last columns do shows there alone."""
    case = _of_few_keys(chosen, (2 * RUN,), Full(), heads=2, keys=(EMULATED + 1) * chosen.tile_n)
    dim = chosen.dims[seed % 2]
    problem = with_fields(case.problem, dim=dim, dim_v=dim)
    return with_fields(case, problem=problem, variant=case.variant | {"slots": EMULATED, "seed": seed})


def _with_orders(chosen: Config) -> Case:
    """A case of nested rows with an order of pairs for each head of two sequences, and a pair that is cut off."""
    case = _of_few_keys(chosen, (5 * chosen.tile_m - 5,) * 2, Full(), heads=2)
    return with_fields(case, problem=with_fields(case.problem, mask=Causal("bottom_right"), heads_kv=2))


def _with_lists_of_heads(chosen: Config) -> Case:
    """A case of two sequences whose heads have lists of their own, of a band (by_head.py): every second one does not
    see the first block of keys. Lists of bits and intervals differ by head and sequence in `_with_empty_sequence`."""
    rows = 3 * chosen.tile_m - 5
    mask = causal_by_head(0, chosen.tile_n)
    case = _of_few_keys(chosen, (rows, rows), mask, heads=4, keys=rows)
    return with_fields(case, problem=with_fields(case.problem, heads_kv=2))


def _with_turned_rows(chosen: Config, tiles: float = 6 - 5 / 128, heads: int = 2) -> Case:
    """A case of heads in one unit whose rows begin with their third block (turned.py): runs have tiles that are not
    adjacent, of one head where it has five whole tiles, else of several."""
    case = _of_few_keys(chosen, (int(tiles * chosen.tile_m),), Full(), heads=heads, keys=2 * chosen.tile_n)
    return with_fields(case, variant=case.variant | {"schedule": TURNED})


def _with_wide_window(chosen: Config) -> Case:
    """A case with a block of keys that has several full blocks of queries between partial ones. The backward kernel
    visits them merged, and looks for the place of each by bisection, in several steps."""
    return _of_few_keys(chosen, (_WIDE + 2 * 128 - 3,), Window(_WIDE, 0, "top_left"))


def _with_short_sequences(chosen: Config) -> Case:
    """A case of packed sequences of which the longest has fewer tiles of queries than there are CTAs: the first tile
    of one of these is the first one of the next sequence in their order, which is not the one behind it."""
    rows = (chosen.tile_m - 5, 7, 2 * chosen.tile_m - 3, chosen.tile_m // 2)
    case = _of_few_keys(chosen, rows, Full())
    return with_fields(case, problem=with_fields(case.problem, lengths_k=rows, layout="packed"))


def _with_few_tiles(chosen: Config) -> Case:
    """A case of padded sequences with no more tiles of queries than there are CTAs. One has no queries: its CTA has no
    tile to go on to, and no counter to take the number of one from."""
    return _of_few_keys(chosen, (0, chosen.tile_m - 5), Full())


def _with_partial_blocks(chosen: Config) -> Case:
    """A case of a window that both edges of cross a block's bound within a tile of queries: four partial blocks, which
    the forward kernel counts as it goes through their steps, and keys that end with a block."""
    return _of_few_keys(chosen, (3 * 128,), Window(128 + 96, 32, "top_left"), keys=4 * 128)


def _with_many_intervals(chosen: Config) -> Case:
    """A case whose rows have _MOST_INTERVALS intervals each, that begin and end anywhere: kernels make words of bits of
    the second one on in a loop that has two of them a turn, and one that is left."""
    keys = 2 * 128 + 40
    edges = (sorted(random.Random(row).sample(range(keys + 1), 2 * _MOST_INTERVALS)) for row in range(2 * 128 - 5))
    mask = Intervals(tuple(tuple(zip(row[::2], row[1::2], strict=True)) for row in edges))
    return _of_few_keys(chosen, (len(mask.rows),), mask, keys=keys)


def _with_low_scores(chosen: Config) -> Case:
    """A case of three keys and large numbers: rows whose scores are all so low that a key past the end, whose score is
    0, has an infinite probability where it is not hidden. Five whole tiles of queries are among its rows."""
    case = _of_few_keys(chosen, (RUN,), Full(), heads=4, keys=3)
    problem = with_fields(case.problem, heads_kv=4, scale=2.0)
    return with_fields(case, problem=problem, inputs=with_fields(case.inputs, distribution="large"))


def _with_empty_sequence(chosen: Config, seed: int) -> Case:
    """A case whose persistent CTAs all begin with tiles of a padded sequence without queries, pass over them, and come
    to tiles of heads that are launched in different orders: which CTA to which of them depends on the seed."""
    later = Window(0, None, "top_left")
    mask = PerHead((Full(), later, later))
    case = _of_few_keys(chosen, (0, 4 * chosen.tile_m - 3), mask, heads=len(mask.of))
    return with_fields(case, variant=case.variant | {"slots": EMULATED, "seed": seed})


def _of_few_keys(
    chosen: Config, lengths_q: tuple[int, ...], mask: Mask, heads: int = 1, keys: int | None = None
) -> Case:
    """A case of so many queries and keys; None: two more keys than a block has."""
    dim = chosen.dims[0]
    softcap = 5.0 if chosen.softcap else 0.0
    lengths = (lengths_q, (chosen.tile_n + 2 if keys is None else keys,) * len(lengths_q))
    problem = Problem(*lengths, heads, 1, dim, dim, chosen.dtype, mask=mask, softcap=softcap)
    return Case("blocksparse", problem, variant=chosen.options | {"slots": 2, "warps": "random"}, repeats=REPEATS)


def _see_whole(problem: AnyProblem, len_q: int, len_k: int) -> int:
    """How many queries see the first 128 keys, under a full or a causal mask."""
    mask = problem.mask
    if len_k < 128 or not isinstance(mask, Full | Causal):
        return 0
    ahead = len_k - len_q if isinstance(mask, Causal) and mask.align == "bottom_right" else 0
    first = max(0, 127 - ahead) if isinstance(mask, Causal) else 0
    return max(0, len_q - first)


def _sees_blocks(problem: AnyProblem, len_q: int, len_k: int) -> int:
    """How many blocks of 128 keys the last tile of queries sees whole, under a full or a causal mask; 0 where keys are
    left over."""
    mask = problem.mask
    if not len_q or len_k % 128 or not isinstance(mask, Full | Causal):
        return 0
    if isinstance(mask, Full):
        return len_k // 128
    return min(len_k, len_k if mask.align == "bottom_right" else len_q) // 128 - 1


def _by_length(chosen: Config, problem: AnyProblem) -> bool:
    """True if an order of the sequences launches fewer tiles of queries, and of keys, than the longest sequence has for
    each (`order_of_queries` of launch/by_length.py)."""
    sides = ((problem.lengths_q, chosen.tile_m), (problem.lengths_k, chosen.tile_n))
    return all(sum(rows) // tile + len(rows) < len(rows) * -(-max(rows) // tile) for rows, tile in sides)


def _with_odd_heads(case: Case) -> Case:
    """A case with the first sequence of another one and with an odd number of query heads, which share a KV head: of
    pairs of tiles that CTAs take two at once, one may be left."""
    first = {name: getattr(case.problem, name)[:1] for name in ("lengths_q", "lengths_k")}
    heads = case.problem.heads_q - 1 + case.problem.heads_q % 2
    return with_fields(case, problem=with_fields(case.problem, **first, heads_q=heads, heads_kv=1))


def split_passes(chosen: Config, problem: AnyProblem) -> tuple[bool, bool]:
    """(forward, backward): True for a pass of a full mask in which the emulated GPU splits tiles. The forward pass
    splits pairs of tiles of queries, the backward pass tiles of keys."""
    rows, columns = -(-problem.len_q // chosen.tile_m), -(-problem.len_k // chosen.tile_n)
    if not (has_pairs_of_tiles(problem) or rows >= MANY_TILES) or not columns:
        return False, False
    forward = split_of(problem.batch * problem.heads_q * -(-rows // 2), EMULATED, columns, FREE)
    backward = split_of(problem.batch * problem.heads_kv * columns, EMULATED, rows * problem.group, FREE)
    return forward.tiles > 0, problem.backward and backward.tiles > 0 and _parts(chosen, problem) == 1


def _parts(chosen: Config, problem: AnyProblem) -> int:
    blocks = (-(-problem.len_q // chosen.tile_m), -(-problem.len_k // chosen.tile_n))
    return choose_group_split(problem.batch, problem.heads_q, problem.heads_kv, *blocks, chosen.deterministic)


@lru_cache
def _text(build: Build) -> str:
    return obtain(build).ptx.read_text()


def builds_of(chosen: Config) -> dict[str, Build]:
    """The kernels of a configuration by kind."""
    low, _ = chosen.dims
    two_tiles = (2 * chosen.tile_m,)  # of which one cluster has both
    problem = Problem(
        lengths_q=two_tiles, lengths_k=two_tiles, heads_q=1, heads_kv=1, dim=low, dim_v=low, dtype=chosen.dtype,
        softcap=30.0 if chosen.softcap else 0.0,
    )  # fmt: skip
    case = Case("blocksparse", problem, variant=chosen.options)
    return first_of_kinds(EmulatedBlockSparse().builds(case, arch_without_gpu("emulator")))


def first_of_kinds(builds: tuple[Build, ...]) -> dict[str, Build]:
    """The first kernel of each kind: of two that differ in it, the one that may split tiles."""
    found: dict[str, Build] = {}
    for build in builds:
        found.setdefault(str(json.loads(build.options)["kind"]), build)
    return found
