"""blocksparse: the bundled block-sparse attention in CuTe DSL, on a GPU, or compiled for one and emulated on a CPU; and
its planted bugs.

Where a case can be said to be wrong without running it, it is: its block lists against the token predicate, and whether
the ordered adds of its deterministic backward pass end, with one resident CTA as with all.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuzz.compiling import Build, Compiled, obtain
from fuzz.core.case import Case
from fuzz.core.case_limits import Size
from fuzz.core.script_call import ScriptError, Text
from fuzz.core.support import Rule, Support
from fuzz.core.target import Device, DeviceError, Execution, Tensors
from fuzz.core.verdict import Finding
from fuzz.targets.autograd import AutogradTarget, cuda_present
from fuzz.targets.blocksparse import cta_subset
from fuzz.targets.blocksparse.block_lists import (
    FASTEST,
    LISTS,
    MASKS,
    SCHEDULES,
    TILES,
    blocks_of,
    blocks_on,
    default_variant,
    expressible,
    lengths_on,
    options_of,
    products_of,
)
from fuzz.targets.blocksparse.devices import (
    SLOTS,
    arch_with_gpu,
    arch_without_gpu,
    connect,
    emulated,
    emulator_of,
    emulator_there,
    toolchain_there,
)
from fuzz.targets.blocksparse.hang_report import hanging_emulated, hanging_on_gpu
from fuzz.targets.blocksparse.script import blocksparse_text
from fuzz.targets.blocksparse.static_checks import as_metadata, shapes_of, visits_of
from fuzz.targets.blocksparse.variants import native_masks, variants_for
from kernels.blocksparse.lists.types import BlockSparse
from kernels.blocksparse.spec.variant import PRODUCTS, Seams, Variant, arch_for_products
from kernels.mutants.names import BLOCKSPARSE as MUTANTS  # made by python -m kernels.mutants
from oracles import block_lists, dq_visits, semaphore_order
from oracles.metamorphic.relations import Equality
from oracles.numerics import FUSED
from oracles.outputs import Outputs
from oracles.problem import Dtype, Problem

_SUPPORT = Support(
    dtypes=("bfloat16", "float16"),
    layouts=("padded", "packed"),
    softcap=True,
    dim=(8, 256, 8),
    dim_often=128,
    dim_v_differs=False,
    lse=True,
)
EMULATED_SIZE = Size(1 << 17, 4, 1 << 13, 1 << 19)  # 0.3 s a case; lists of more than 64 blocks among them
CROWD = 320  # tiles of 128 keys: a GPU of 148 multiprocessors holds two CTAs on each at most
_KNOWN = {
    "tile_m": TILES,
    "tile_n": TILES,
    "mask": MASKS,
    "lists": LISTS,
    "schedule": SCHEDULES,
    "deterministic": (False, True),
    "products": (FASTEST, *PRODUCTS),
    "slots": range(1, 1025),
    "warps": ("in_order", "random", "starve_oldest", "one_first"),
    "seed": range(1 << 31),
    "ctas": cta_subset.Ctas(),
}


class BundledBlockSparse(AutogradTarget, Compiled):
    """kernels.blocksparse, or one of its mutants (named blocksparse!MUTANT)."""

    kernel_names = "kernel_cutlass"  # what is looked at under a sanitizer
    proof: tuple[str, ...] = ("forward_",)

    def __init__(self, device: Device, mutant: str = "") -> None:
        self.name = "blocksparse" + f"!{mutant}" * bool(mutant)
        self.device = device
        self.executable = device != "host"
        self.mutant = mutant
        self.summary = "kernels.blocksparse" + (f" with the planted bug {mutant}" if mutant else "")
        # Of what a session draws this limits nothing; a case of the corpus may be larger on a GPU.
        self.support = replace(_SUPPORT, max_pairs=1 << 29) if device == "cuda" else _SUPPORT
        self.numerics = FUSED
        too_large = Rule(
            "tiles or products that the architecture has no room or no instructions for",
            lambda case: not self._fits(case),
        )
        self.oversubscribed = CROWD if device == "cuda" else 0
        self.rules = (*_RULES, *cta_subset.rules(device == "emulator"), too_large)
        self.variants = (default_variant(),)
        # A row's rescaling waits for its warp's other rows, whose keys may be later ones: same value, other rounding.
        self.relations: dict[str, Equality] = {"future_changed": "within_budget"}
        self.clears_padding = True
        self.pairs_per_second = 1e9 if device == "cuda" else 2e4
        self._visited: dq_visits.Visits | None = None  # of the case at hand
        self._repeat = 0
        if device == "emulator":
            self.session_size = EMULATED_SIZE

    def uncompilable(self) -> str | None:
        """See Compiled."""
        return None if toolchain_there() else "needs nvidia-cutlass-dsl (pip install nvidia-cutlass-dsl)"

    def missing(self) -> str | None:
        """Why it cannot run on this machine, or None."""
        if (why := self.uncompilable()) is not None:
            return why
        if self.device != "cuda" and cuda_present():
            return "kernels run on the GPU where there is one"
        return super().missing()

    def variants_for(self, problem: Problem) -> tuple[dict[str, Any], ...]:
        """What a session draws from for a problem: few kernels, everything that costs no compile."""
        return variants_for(problem, emulated=self.device == "emulator")

    def native_masks(self, dtype: Dtype, dim: int) -> tuple[str, ...]:
        """See Target."""
        return native_masks(dtype, dim)

    def builds(self, case: Case, arch: str) -> tuple[Build, ...]:
        """The kernels that a case launches, for `arch`; none where one of them does not fit it."""
        from fuzz.devices.cuda import build_of
        from kernels.blocksparse.compile.supported import fits

        kernels = [(variant, self._arch_of(variant, arch), planted) for variant, planted in self._kernels(case, arch)]
        if not all(fits(variant, at) for variant, at, _ in kernels):
            return ()
        return tuple(build_of(*kernel) for kernel in kernels)

    def arch(self) -> str:
        """What its kernels are compiled for on this machine."""
        return arch_with_gpu() if self.device == "cuda" else arch_without_gpu(self.device)

    def _fits(self, case: Case) -> bool:
        from kernels.blocksparse.compile.supported import fits

        if self.device == "cuda" and not cuda_present():  # planned for another machine: `builds` is told its arch
            return True
        arch = self.arch()
        return all(fits(variant, self._arch_of(variant, arch)) for variant, _ in self._kernels(case, arch))

    def _arch_of(self, variant: Variant, arch: str) -> str:
        """What a kernel is compiled for: the emulated GPU runs those of every arch."""
        return arch_for_products(variant.products, arch) if self.device == "emulator" else arch

    def _kernels(self, case: Case, arch: str) -> list[tuple[Variant, Seams]]:
        from kernels.blocksparse.launch.backward import backward_variants, seams_of
        from kernels.blocksparse.launch.forward import forward_variant
        from kernels.blocksparse.spec.seams import find_seams

        q, blocks, options = shapes_of(case)
        softcap = case.problem.softcap or None
        seams = find_seams(self._seams)
        found = [(forward_variant(q, blocks, softcap, products=products_of(case, arch)), seams.forward)]
        if case.problem.backward:
            products = products_of(case, arch)
            kernels = backward_variants(q, blocks, softcap, bool(options["deterministic"]), products=products)
            found += [(variant, seams_of(seams.backward, variant.kind)) for variant in kernels]
        return found

    def inspect(self, case: Case) -> list[Finding]:
        """The case's block lists against the token predicate, then whether the backward pass ends."""
        blocks = blocks_of(case)
        changed = self._changed(blocks)
        found = block_lists.check(case.problem, as_metadata(changed))
        if found and not (self.mutant and self.executable):  # a mutant is to be found by a run, where there is one
            return found
        of = self._visits(case, blocks, self.mutant)
        if of is None or not of.ctas:
            return []
        outcomes = {slots: semaphore_order.predict(of, slots) for slots in sorted({1, of.ctas})}
        return next((f for outcome in outcomes.values() if (f := semaphore_order.findings(outcome))), [])

    def prepare(self, case: Case, tensors: Tensors) -> None:
        """Compiles or loads every kernel that the case launches; keeps what explains a hang."""
        for build in self.builds(case, self.arch()):
            obtain(build)
        if self.executable:
            connect(self.device)
            if self.device == "cuda":
                self._load(case)
            self._blocks(case, tensors.q.device)
            blocks = blocks_of(case)
            self._visited = self._visits(case, blocks, self.mutant) or self._visits(case, blocks, "")
        self._repeat = 0

    def _load(self, case: Case) -> None:
        """Into the GPU: importing the toolchain and loading a module take seconds, which are not the kernel's; nor are
        those of the import that an operator's first call does in some versions of PyTorch."""
        import torch._dynamo  # noqa: F401

        from kernels.blocksparse.compile.runtime import function

        arch = self.arch()
        for variant, planted in self._kernels(case, arch):
            function(variant, arch, planted).load()

    def forward(self, case: Case, tensors: Tensors) -> tuple[Tensor, Tensor | None]:
        """O and LSE."""
        p, options = case.problem, options_of(case)
        device = tensors.q.device
        return _kernel(self.mutant)(
            tensors.q,
            tensors.k,
            tensors.v,
            self._blocks(case, device),
            scale=p.scale,
            softcap=p.softcap,
            deterministic=bool(options["deterministic"]),
            products=products_of(case, self.arch()),
            **lengths_on(p, device),
        )

    def script_call(self, case: Case) -> Text:
        """`forward` as text, for a GPU; the lists' layout is left at CSR."""
        if self.device != "cuda":
            raise ScriptError(f"{self.name} runs in a script on a GPU only: --device cuda")
        return blocksparse_text(case, self.mutant)

    def planned(self, case: Case) -> frozenset[str]:
        """See Target."""
        arch = self.arch()
        return frozenset(f"{variant.name} {self._arch_of(variant, arch)}" for variant, _ in self._kernels(case, arch))

    def executed(self, case: Case, o: Tensor) -> str:
        """The kernels that were launched by this case's forward and backward, by name."""
        launched = ", ".join(self._launched())
        if "forward_" not in launched and not sum(case.problem.lengths_q):
            return f"forward_: nothing to launch without queries; {launched}"
        return launched

    def run(self, case: Case, tensors: Tensors) -> Execution:
        """See AutogradTarget. On the emulated GPU each repeat runs its warps in another order."""
        self._forget()
        if self.device != "emulator":
            return super().run(case, tensors)
        options = options_of(case)
        emulated().begin(emulator_of(options, self._repeat))
        self._repeat += 1
        try:
            return super().run(case, tensors)
        except DeviceError as error:
            raise hanging_emulated(error, self._visited, int(options.get("slots", SLOTS))) from error

    def run_around(self, case: Case, tensors: Tensors, others: Tensors) -> Execution:
        """See AutogradTarget."""
        self._forget()
        return super().run_around(case, tensors, others)

    def ctas_of(self, case: Case) -> tuple[int, ...]:
        """See Target; a value that is not known is refused by the rules."""
        return () if _strange(case) else cta_subset.ctas_of(case)

    def tile_rows(self, case: Case) -> int:
        """See Target."""
        return int(options_of(case)["tile_m"])

    def prepare_cta_subset(self, case: Case) -> None:
        """See Target."""
        for build in self.builds(case, self.arch()):
            obtain(build)
        self._part = cta_subset.prepare(case, self._changed)

    def run_cta_subset(self, case: Case, tensors: Tensors, into: Outputs, repeat: int) -> Execution:
        """See Target."""
        from kernels.blocksparse.spec.seams import find_seams

        seams = find_seams(self._seams)
        return Execution(into, cta_subset.run(case, tensors, into, repeat, self._part, seams))

    def seed_cases(self) -> tuple[Case, ...]:
        """See Target; on the emulated GPU only."""
        return cta_subset.seed_cases(self.name) if self.device == "emulator" else ()

    def draw_cta_subset(self, draw: random.Random, repeats: int) -> Case | None:
        """See Target; on the emulated GPU only."""
        return cta_subset.draw_case(draw, self.name, repeats) if self.device == "emulator" else None

    def trace_to(self, path: str) -> None:
        """See Target; of the emulated GPU only."""
        if self.device == "emulator":
            emulated().trace_to(path)

    def may_differ(self, case: Case) -> frozenset[str]:
        """dQ is summed in any order unless asked for otherwise."""
        ordered = bool(options_of(case)["deterministic"])
        return frozenset() if ordered else frozenset({"dq"})

    def expected_seconds(self, case: Case) -> float:
        """Emulated time goes with the number of tiles."""
        if self.device == "cuda":
            return super().expected_seconds(case)
        p = case.problem
        tiles = p.heads_q * sum((q // 64 + 1) * (k // 64 + 1) for q, k in zip(p.lengths_q, p.lengths_k, strict=True))
        return 1.0 + 0.2 * tiles * (5 if p.backward else 1)

    def look(self) -> dict[str, Any]:
        """The semaphores of a backward pass that hangs, and why it does."""
        return hanging_on_gpu(self._visited)

    @property
    def _seams(self) -> str:
        """Name of its seam set; a bug in the metadata has none."""
        if not self.mutant:
            return ""
        from kernels.mutants.blocksparse.table import SEAMS

        return self.name if self.name in SEAMS else ""

    def _changed(self, blocks: BlockSparse) -> BlockSparse:
        if not self.mutant:
            return blocks
        from kernels.mutants.blocksparse.table import MUTANTS as planted

        return planted[self.mutant].blocks(blocks)

    def _blocks(self, case: Case, device: torch.device) -> BlockSparse:
        """Of the case at hand, made once for all its repeats, so that their contents are checked once."""
        return blocks_on(case, device)

    def _visits(self, case: Case, blocks: BlockSparse, mutant: str) -> dq_visits.Visits | None:
        """The ordered adds of the case; None where there are none, or nothing is known of them. mutant: "" for those
        that the lists say."""
        p = case.problem
        if not p.backward or not options_of(case)["deterministic"]:
            return None
        return visits_of(case, blocks, mutant)

    def _launched(self) -> Iterable[str]:
        if self.device == "emulator":
            return emulated().launched
        from fuzz.devices import cuda

        return [f"{one.variant.name} {one.arch}" for one in cuda.LAUNCHES.since_mark()]

    def _forget(self) -> None:
        if self.device != "emulator":  # which forgets at the beginning of a run
            from fuzz.devices import cuda

            cuda.LAUNCHES.mark()


def targets() -> list[BundledBlockSparse]:
    """The kernel on every device; on 'host' only where the emulator is missing."""
    return [BundledBlockSparse(device) for device in _devices()]


def mutants() -> list[BundledBlockSparse]:
    """The planted bugs on every device: never part of a session unless named."""
    return [BundledBlockSparse(device, name) for device in _devices() for name in MUTANTS]


def _devices() -> tuple[Device, ...]:
    return ("emulator", "cuda") if emulator_there() else ("host", "cuda")


@functools.cache
def _kernel(mutant: str) -> Callable[..., tuple[Tensor, Tensor]]:
    if mutant:
        from kernels.mutants.blocksparse.table import MUTANTS as planted

        return planted[mutant]
    from kernels.blocksparse.api import block_sparse_attention

    return block_sparse_attention


def _strange(case: Case) -> bool:
    return any(name not in _KNOWN or value not in _KNOWN[name] for name, value in case.variant.items())


def _inexpressible(case: Case) -> bool:
    return not expressible(case.problem, str(options_of(case)["mask"]))


def _bad_scale(case: Case) -> bool:
    return case.problem.scale is not None and case.problem.scale <= 0


_RULES = (
    Rule(f"variants other than {_KNOWN}", _strange),
    Rule("a variant whose mask kind cannot express the mask", _inexpressible),
    Rule("a scale that is not positive", _bad_scale, "refuses"),
)
