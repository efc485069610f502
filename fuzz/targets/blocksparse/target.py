"""blocksparse: the bundled block-sparse attention in CuTe DSL, and its mutants.

Where a case can be said to be wrong without running it, it is: its block lists against the token predicate, and whether
the ordered adds of its deterministic backward pass end, with one resident CTA as with all. What is common to all
devices stands here; gpu.py and emulated.py run the kernels.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from fuzz.compiling import Build, Compiled, obtain
from fuzz.core.case import Case, attention_of
from fuzz.core.kernel_choice import KernelChoice
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.support import Rule, Support
from fuzz.core.surface import Apart, Surface
from fuzz.core.target import METADATA_ONLY, Tensors
from fuzz.core.verdict import Finding
from fuzz.devices.emulator.config import CONTRACTIONS
from fuzz.devices.present import cuda_present
from fuzz.targets import merge_by_lse
from fuzz.targets.autograd import AutogradTarget
from fuzz.targets.blocksparse import by_head, cta_pairs, cta_subset, long_lists, nested, turned, two_calls
from fuzz.targets.blocksparse.block_lists import (
    FASTEST,
    HALVED,
    LISTS,
    MASKS,
    PAIRED,
    SCHEDULES,
    SOURCES,
    TILES,
    WIDE_TILES,
    as_ranges,
    default_variant,
    expressible,
    keys_without_lengths,
    lengths_on,
    options_of,
    products_of,
    source_of,
)
from fuzz.targets.blocksparse.case_blocks import case_blocks
from fuzz.targets.blocksparse.devices import arch_without_gpu, toolchain_there
from fuzz.targets.blocksparse.static_checks import as_metadata, shapes_of
from fuzz.targets.blocksparse.variants import kernel_choices, native_masks, variants_for
from kernels.blocksparse.spec.variant import LARGE_TILES, PRODUCTS, Injection, Variant, padded_dim
from oracles import block_lists, semaphore_order
from oracles.metamorphic.relations import Equality
from oracles.numerics import TENSOR_CORES, Numerics
from oracles.problem import AnyProblem, Dtype, Problem

SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    layouts=("padded", "packed"),
    softcap=True,
    dim=(8, 256, 8),
    dim_often=128,
    dim_v_differs=False,
    lse=True,
)
_SURFACE = Surface.declared(
    "block_sparse_attention(q, k, v, blocks, *, scale=None, softcap=0.0, deterministic=None, schedule=None, "
    "cu_seqlens_q=None, cu_seqlens_k=None, lengths_q=None, lengths_k=None, products=None)",
    never={"schedule": "the lists are made with the case's schedule, so that they can be checked before a run"},
    apart=(
        Apart(
            ("cu_seqlens_q", "cu_seqlens_k"),
            ("lengths_q", "lengths_k"),
            "packed sequences have cumulative lengths, padded ones lengths; both at once are refused",
        ),
    ),
)
_KNOWN = {
    "tile_m": (*TILES, *WIDE_TILES),
    "tile_n": TILES,
    "mask": MASKS,
    "lists": (*LISTS, HALVED),
    "source": SOURCES,
    "schedule": (*SCHEDULES, turned.TURNED),
    "deterministic": (False, True),
    "products": (FASTEST, *PRODUCTS),
    "wide": (0, *WIDE_TILES),
    "paired": PAIRED,
    "nested": (False, True),
    "keys": two_calls.KEYS,
    "slots": range(1, 1025),
    "warps": ("in_order", "random", "starve_oldest", "one_first"),
    "seed": range(1 << 31),
    "contraction": CONTRACTIONS,
    "ctas": cta_subset.Ctas(),
    METADATA_ONLY: (False, True),
}


class BlockSparseTarget(AutogradTarget, Compiled):
    """kernels.blocksparse, or one of its mutants (named blocksparse!MUTANT), on no device: cases are compiled and
    inspected. Subclasses run them."""

    kernel_names = "kernel_cutlass"
    proof: tuple[str, ...] = ("forward_",)
    support = SUPPORT
    executable = False
    numerics = TENSOR_CORES
    clears_padding = True
    pairs_per_second = 2e4
    # A row's rescaling waits for its warp's other rows, whose keys may be later ones: same value, other rounding.
    relations: Mapping[str, Equality] = {"future_changed": "within_budget"}
    runs_cta_subsets = False
    draws_cta_pairs = False

    def __init__(self, mutant: str = "") -> None:
        self.name = "blocksparse" + f"!{mutant}" * bool(mutant)
        self.mutant = mutant
        self.summary = "kernels.blocksparse" + (f" with the mutant {mutant}" if mutant else "")
        self.variants = (default_variant(),)
        too_large = Rule(
            "tiles or products that the architecture has no room or no instructions for",
            lambda case: not self.fits(case),
        )
        large = [self._rule_of(products, *sizes) for products, sizes in LARGE_TILES.items()]
        self.rules = (*_RULES, *large, two_calls.rule(), *cta_subset.rules(self.runs_cta_subsets), too_large)

    def uncompilable(self) -> str | None:
        """See Compiled."""
        return None if toolchain_there() else "needs nvidia-cutlass-dsl (pip install nvidia-cutlass-dsl)"

    def missing(self) -> str | None:
        """Reason why it cannot run on this machine, or None."""
        if (why := self.uncompilable()) is not None:
            return why
        if self.device != "cuda" and cuda_present():
            return "kernels run on the GPU where there is one"
        if not self.draws_cta_pairs and (why := cta_pairs.missing(self.mutant)) is not None:
            return why
        return super().missing()

    def variants_for(self, problem: AnyProblem) -> tuple[dict[str, Any], ...]:
        """What a session draws from for a problem: few kernels, everything that costs no compile."""
        return variants_for(problem, emulated=False, on_gpu=self.device == "cuda")

    def kernel_choices(self) -> tuple[KernelChoice, ...]:
        """See Target."""
        return _fitting(self, emulated=self.device == "emulator")

    def native_masks(self, dtype: Dtype, dim: int) -> tuple[str, ...]:
        """See Target."""
        return native_masks(dtype, dim)

    def arch(self) -> str:
        """What its kernels are compiled for on this machine."""
        return arch_without_gpu(self.device)

    def arch_of(self, variant: Variant, arch: str) -> str:
        """What one kernel of a case is compiled for."""
        return arch

    def builds(self, case: Case, arch: str) -> tuple[Build, ...]:
        """The kernels that a case launches, for `arch`; none where one of them does not fit it."""
        if not self.runs(case):
            return ()
        from fuzz.devices.cuda import build_of
        from kernels.blocksparse.compile.supported import fits

        kernels = [(variant, self.arch_of(variant, arch), injection) for variant, injection in self.kernels(case, arch)]
        if not all(fits(variant, at) for variant, at, _ in kernels):
            return ()
        return tuple(build_of(*kernel) for kernel in kernels)

    def fits(self, case: Case) -> bool:
        """True if the arch has room and instructions for every kernel of the case."""
        from kernels.blocksparse.compile.supported import fits

        arch = self.arch()
        return all(fits(variant, self.arch_of(variant, arch)) for variant, _ in self.kernels(case, arch))

    def _rule_of(self, products: str, tile_m: int, most: int) -> Rule:
        """The rule of tiles of so many queries, which forward kernels with these products have, and no backward one."""

        def refused(case: Case) -> bool:
            p, options = case.problem, options_of(case)
            if options["tile_m"] != tile_m:
                return False
            if p.backward or padded_dim(p.dim) > most:
                return True
            named = options["products"]  # a session for another machine's GPU is planned where there is none
            return (products_of(case, self.arch()) if named == FASTEST else named) != products

        return Rule(f"tiles of {tile_m} queries but for a forward pass by {products} up to head dim {most}", refused)

    def kernels(self, case: Case, arch: str) -> list[tuple[Variant, Injection]]:
        """The kernels that a case launches, each with the replaced parts of a mutant; of one that may split tiles also
        that which splits none: how many CTAs a GPU runs at once decides."""
        from kernels.blocksparse.launch.backward import backward_lists, backward_variants
        from kernels.blocksparse.launch.forward import forward_variant
        from kernels.blocksparse.launch.split_tiles import may_split, without_splits
        from kernels.blocksparse.spec.injection import find_injections

        q, blocks, options = shapes_of(case)
        softcap = case.problem.softcap or None
        injection = find_injections(self.injection)
        found = [(forward_variant(q, blocks, softcap, products=products_of(case, arch)), injection.forward)]
        if case.problem.backward:
            products = products_of(case, arch)
            lists = backward_lists(q, blocks, products)
            ordered, keys = bool(options["deterministic"]), keys_without_lengths(case.problem)
            kernels = backward_variants(q, lists, softcap, ordered, products=products, keys=keys)
            found += [(variant, injection.backward.part(variant.kind)) for variant in kernels]
        return found + [(without_splits(variant), injected) for variant, injected in found if may_split(variant)]

    def planned(self, case: Case) -> frozenset[str]:
        """See Target."""
        arch = self.arch()
        return frozenset(f"{variant.name} {self.arch_of(variant, arch)}" for variant, _ in self.kernels(case, arch))

    def inspect(self, case: Case) -> list[Finding]:
        """The case's block lists against the token predicate, then whether the backward pass ends."""
        blocks = case_blocks(case, self.mutant)
        launched = blocks.launched
        lists = [one for one in (launched, launched.wide, launched.paired) if one is not None]
        found = [finding for one in lists for finding in block_lists.check(attention_of(case), as_metadata(one))]
        if found and not (
            self.mutant and self.executable and self.runs(case)
        ):  # a mutant is to be found by a run, where there is one
            return found
        visits = blocks.visits
        if visits is None or not visits.ctas:
            return []
        outcomes = (semaphore_order.predict(visits, resident) for resident in sorted({1, visits.ctas}))
        return next((f for outcome in outcomes if (f := semaphore_order.findings(outcome))), [])

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles or loads every kernel that the case launches, and makes its block lists."""
        for build in self.builds(case, self.arch()):
            obtain(build)

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and LSE."""
        p, options = case.problem, options_of(case)
        device = tensors.q.device
        call = partial(
            _SURFACE.call,
            _kernel(self.mutant),
            tensors.q,
            tensors.k,
            tensors.v,
            scale=p.scale,
            softcap=p.softcap,
            deterministic=bool(options["deterministic"]),
            products=products_of(case, self.arch()),
            **lengths_on(p, device),
        )
        parts = [call(blocks) for blocks in case_blocks(case, self.mutant).calls(device)]
        return parts[0] if len(parts) == 1 else merge_by_lse.merged(parts)

    def numerics_of(self, case: Case) -> Numerics:
        """See Target: where keys are in two calls, more is rounded."""
        return replace(self.numerics, merged=self.tile_keys(case)) if two_calls.splits(case) else self.numerics

    def surfaces(self) -> tuple[Surface, ...]:
        """See Target."""
        return (_SURFACE,)

    def launched(self) -> Iterable[str]:
        """Names of the kernels that the run at hand has launched."""
        return ()

    def executed(self, case: Case, o: Tensor) -> str:
        """The kernels that were launched by this case's forward and backward, by name."""
        launched = ", ".join(self.launched())
        if "forward_" not in launched and not sum(case.problem.lengths_q):
            return f"forward_: nothing to launch without queries; {launched}"
        return launched

    def script_call(self, case: Case) -> Text:
        """See Target: on a GPU only."""
        raise ScriptError(f"{self.name} runs in a script on a GPU only: --device cuda")

    def may_differ(self, case: Case) -> frozenset[str]:
        """dQ is summed in any order unless asked for otherwise."""
        ordered = bool(options_of(case)["deterministic"])
        return frozenset() if ordered else frozenset({"dq"})

    def ctas_of(self, case: Case) -> tuple[int, ...]:
        """See Target; a value that is not known is refused by the rules."""
        return () if _unknown(case) else cta_subset.ctas_of(case)

    def tile_rows(self, case: Case) -> int:
        """See Target."""
        return int(options_of(case)["tile_m"])

    def tile_keys(self, case: Case) -> int:
        """Keys of a block."""
        return int(options_of(case)["tile_n"])

    def runs(self, case: Case) -> bool:
        """See Target."""
        return long_lists.runs(case)

    def draw_long_lists(self, draw: random.Random, repeats: int) -> Case | None:
        """See Target. Kernels run on them on a GPU only."""
        return long_lists.draw_case(draw, self.name, repeats, run=self.device == "cuda")

    def draw_cta_subset(self, draw: random.Random, repeats: int) -> Case | None:
        """See Target: on the emulated GPU only."""
        return None

    @property
    def injection(self) -> str:
        """Name of its injections; a bug in the metadata has none."""
        if not self.mutant:
            return ""
        from kernels.mutants.blocksparse.table import INJECTIONS

        return self.name if self.name in INJECTIONS else ""


@functools.cache
def _fitting(target: BlockSparseTarget, *, emulated: bool) -> tuple[KernelChoice, ...]:
    """The kernels of a session that the target's arch has room and instructions for."""
    found = []
    for choice in kernel_choices(emulated=emulated):
        assert choice.dims is not None and choice.dtype is not None
        sample = Problem(
            (1,), (1,), 1, 1, choice.dims[1], choice.dims[1], choice.dtype, softcap=float(bool(choice.softcap))
        )
        if target.fits(Case(target.name, sample, variant=choice.variant)):
            found.append(choice)
    return tuple(found)


@functools.cache
def _kernel(mutant: str) -> Callable[..., tuple[Tensor, Tensor]]:
    if mutant:
        from kernels.mutants.blocksparse.table import MUTANTS as mutants

        return mutants[mutant]
    from kernels.blocksparse.api import block_sparse_attention

    return block_sparse_attention


def _unknown(case: Case) -> bool:
    return any(name not in _KNOWN or value not in _KNOWN[name] for name, value in case.variant.items())


def _inexpressible(case: Case) -> bool:
    return not expressible(case.problem, str(options_of(case)["mask"]))


def _bad_scale(case: Case) -> bool:
    return case.problem.scale is not None and case.problem.scale <= 0


_RULES = (
    Rule(f"variants other than {_KNOWN}", _unknown),
    Rule("a variant whose mask kind cannot express the mask", _inexpressible),
    Rule(
        "lists by way of ranges or tuples for masks other than intervals",
        lambda case: source_of(case) != "builder" and options_of(case)["mask"] != "intervals",
    ),
    Rule(
        "lists by way of ranges for sequences or heads that differ",
        lambda case: source_of(case) == "ranges" and not as_ranges(case.problem),
    ),
    Rule(
        "lists whose blocks were halved, over tiles of other than 64 keys",
        lambda case: options_of(case)["lists"] == HALVED and options_of(case)["tile_n"] != 64,
    ),
    Rule(
        "lists of wide tiles beside lists of tiles that are as wide",
        lambda case: bool(options_of(case)["wide"]) and options_of(case)["tile_m"] in WIDE_TILES,
    ),
    cta_pairs.rule(),
    turned.rule(),
    by_head.rule(),
    nested.rule(),
    Rule("a scale that is not positive", _bad_scale, "refuses"),
)
