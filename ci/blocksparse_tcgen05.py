"""blocksparse with products by tcgen05 alone and its mutants, kernels of sm_100a: forward and backward; as
blocksparse.tcgen05_pairs, the forward kernel with two query tiles in a CTA; and as blocksparse.tcgen05_cta_pairs, the
backward kernel of pairs of CTAs.

    attnfuzz run --target blocksparse.tcgen05 --target-file ci/blocksparse_tcgen05.py --cases 1000 --size small
    attnfuzz run --target 'blocksparse.tcgen05!dq_of_wrong_columns' --target-file ci/blocksparse_tcgen05.py --cases 60

Without a GPU the kernels run on the emulated one, under all checks and in random schedules; on a B200 they run there.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.support import Rule
from fuzz.targets.blocksparse import cta_pairs
from fuzz.targets.blocksparse.block_lists import MASKS_OF, expressible, options_of
from fuzz.targets.blocksparse.catalog import CLASSES
from fuzz.targets.blocksparse.devices import emulator_there
from fuzz.targets.blocksparse.variants import free_choices
from kernels.blocksparse.spec.variant import PAIR, PAIR_KEYS
from kernels.mutants.names import BLOCKSPARSE
from oracles.problem import AnyProblem, Dtype

TILE, NAME, PAIRS = 128, "blocksparse.tcgen05", "blocksparse.tcgen05_pairs"
RANGES = ((40, 64), (104, 128))  # of head dims that are padded to 64 and to 128
DIMS = frozenset(dim for least, most in RANGES for dim in range(least, most + 1, 8))
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16")
# Each kernel is compiled: of a dtype those masks with ordered adds, and those without; a capped one has bits
ORDERED = {"bfloat16": ("bits", "band"), "float16": ("bits", "intervals")}
ATOMIC = {"bfloat16": ("bits", "intervals"), "float16": ("bits", "band")}


def kernels_of(dtype: str, softcap: bool) -> list[dict[str, Any]]:
    """The kernels of a dtype, at each head dim."""
    masks = [("bits", dtype == "float16")] if softcap else []
    masks += [] if softcap else [(mask, True) for mask in ORDERED[dtype]] + [(mask, False) for mask in ATOMIC[dtype]]
    return [
        {"tile_m": TILE, "tile_n": TILE, "mask": mask, "deterministic": ordered, "products": "tcgen05"}
        for mask, ordered in masks
    ]


PAIR_RANGES = {(8, 32): 64, (40, 64): 128, (72, 96): 64, (104, 128): 128}  # head dims → tile_n
PAIR_DIMS = frozenset(range(8, 129, 8))


def pair_kernels(tile_n: int, softcap: bool) -> list[dict[str, Any]]:
    """The forward kernels with two query tiles, of a dtype and at the head dims that have blocks of `tile_n` keys."""
    masks = ("bits",) if softcap else ("bits", "intervals", "band")
    tiles = {"tile_m": PAIR, "tile_n": tile_n, "deterministic": False, "products": "tcgen05"}
    return [tiles | {"mask": mask} for mask in masks]


def narrowed(base: type) -> type:
    """A class of targets of a device, which draws the kernels of one query tile alone."""

    class Tcgen05(base):  # type: ignore[misc, valid-type]
        def __init__(self, mutant: str = "") -> None:
            super().__init__(mutant)
            self.name = NAME + f"!{mutant}" * bool(mutant)
            self.summary = f"{self.summary}: products by tcgen05 alone"
            self.variants = ({"tile_m": TILE, "tile_n": TILE, "products": "tcgen05"},)
            self.support = replace(self.support, dims=DIMS)
            self.rules = (*self.rules, Rule("head dims or tiles without a backward kernel by tcgen05", _falls_back))

        @property
        def injection(self) -> str:
            """See BlockSparseTarget."""
            from kernels.mutants.blocksparse.table import INJECTIONS

            known = f"blocksparse!{self.mutant}"
            return known if known in INJECTIONS else ""

        def variants_for(self, problem: AnyProblem) -> tuple[dict[str, Any], ...]:
            """See BlockSparseTarget."""
            emulated = self.device == "emulator"
            kernels = kernels_of(problem.dtype, bool(problem.softcap))
            return tuple(
                kernel | free
                for kernel in kernels
                if expressible(problem, kernel["mask"])
                for free in free_choices(problem, kernel, emulated)
            )

        def kernel_choices(self) -> tuple[KernelChoice, ...]:
            """See Target."""
            return tuple(
                KernelChoice(kernel, dtype, (least, most), capped, MASKS_OF.get(kernel["mask"]), least_q, least_k)
                for dtype, (least, most), capped in product(DTYPES, RANGES, (False, True))
                for kernel in kernels_of(dtype, capped)
                for least_q, least_k in [(TILE + 1, TILE + 1) if kernel["deterministic"] else (0, 0)]
            )

        def draw_long_lists(self, draw: Any, repeats: int) -> None:
            """See Target: none."""

        def draw_cta_subset(self, draw: Any, repeats: int) -> None:
            """See Target: none."""

        def seed_cases(self) -> tuple:
            """See Target: none."""
            return ()

    return Tcgen05


def paired(base: type) -> type:
    """A class of targets made by `narrowed`, which draws the kernels of two query tiles instead: forward passes."""

    class Pairs(base):  # type: ignore[misc, valid-type]
        def __init__(self, mutant: str = "") -> None:
            super().__init__(mutant)
            self.name = PAIRS + f"!{mutant}" * bool(mutant)
            self.summary = f"{self.summary}, two query tiles in a CTA"
            self.variants = ({"tile_m": PAIR, "tile_n": TILE, "products": "tcgen05"},)
            self.support = replace(self.support, dims=PAIR_DIMS, backward=False)
            self.rules = (*self.rules[:-1], Rule("another kernel", _has_one_query_tile))

        def variants_for(self, problem: AnyProblem) -> tuple[dict[str, Any], ...]:
            """See BlockSparseTarget."""
            tile_n = next(tile_n for (_, most), tile_n in PAIR_RANGES.items() if problem.dim <= most)
            return tuple(
                kernel | free
                for kernel in pair_kernels(tile_n, bool(problem.softcap))
                if expressible(problem, str(kernel["mask"]))
                for free in free_choices(problem, kernel, self.device == "emulator")
            )

        def kernel_choices(self) -> tuple[KernelChoice, ...]:
            """See Target."""
            return tuple(
                KernelChoice(kernel, dtype, dims, capped, MASKS_OF.get(str(kernel["mask"])))
                for dtype, (dims, tile_n), capped in product(DTYPES, PAIR_RANGES.items(), (False, True))
                for kernel in pair_kernels(tile_n, capped)
            )

    return Pairs


def of_cta_pairs(base: type) -> type:
    """A class of targets made by `narrowed`, whose backward pass runs on pairs of CTAs: every case has one. The forward
    pass has the kernels of one query tile."""

    class CtaPairs(base):  # type: ignore[misc, valid-type]
        draws_cta_pairs = True

        def __init__(self, mutant: str = "") -> None:
            super().__init__(mutant)
            self.name = cta_pairs.TARGET + f"!{mutant}" * bool(mutant)
            self.summary = f"{self.summary}, the backward pass on pairs of CTAs"
            self.variants = ({"tile_m": TILE, "tile_n": TILE, "products": "tcgen05", "paired": PAIR_KEYS},)
            self.rules = (*self.rules, Rule("a backward pass by single CTAs, or none", _has_single_ctas))

        def variants_for(self, problem: AnyProblem) -> tuple[dict[str, Any], ...]:
            """See BlockSparseTarget."""
            return tuple(
                kernel | free
                for kernel in cta_pair_kernels(problem.dtype, bool(problem.softcap))
                if expressible(problem, kernel["mask"])
                for free in free_choices(problem, kernel | {"tile_n": PAIR_KEYS}, self.device == "emulator")
            )

        def kernel_choices(self) -> tuple[KernelChoice, ...]:
            """See Target."""
            return tuple(
                KernelChoice(kernel, dtype, dims, capped, MASKS_OF.get(kernel["mask"]), least_q, least_k)
                for dtype, dims, capped in product(DTYPES, RANGES, (False, True))
                for kernel in cta_pair_kernels(dtype, capped)
                for least_q, least_k in [(TILE + 1, PAIR_KEYS + 1) if kernel["deterministic"] else (0, 0)]
            )

    return CtaPairs


def cta_pair_kernels(dtype: str, softcap: bool) -> list[dict[str, Any]]:
    """The kernels of a dtype, at each head dim, with lists for pairs of CTAs."""
    return [kernel | {"paired": PAIR_KEYS} for kernel in kernels_of(dtype, softcap)]


def _has_single_ctas(case: Any) -> bool:
    return not options_of(case)["paired"]


def _has_one_query_tile(case: Any) -> bool:
    options = options_of(case)
    return (options["tile_m"], options.get("products")) != (PAIR, "tcgen05")


def _falls_back(case: Any) -> bool:
    options = options_of(case)
    tiles = (options["tile_m"], options["tile_n"], options.get("products"))
    return tiles != (TILE, TILE, "tcgen05") or case.problem.dim not in DIMS


_SINGLE = [narrowed(CLASSES[device]) for device in (("emulator", "cuda") if emulator_there() else ("host", "cuda"))]
_CLASSES = [*_SINGLE, *(paired(one) for one in _SINGLE), *(of_cta_pairs(one) for one in _SINGLE)]
TARGETS = [made(mutant) for made in _CLASSES for mutant in ("", *BLOCKSPARSE)]
